"""The guard check: the image's entry point starts on this host, and stops on every lesser one."""

import random
import secrets
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tfbuild import __version__, facts
from tfbuild.context import dockerfile
from tfbuild.context.labels import Planned
from tfbuild.engine import Sandbox
from tfbuild.errors import TfbuildError
from tfbuild.in_container.smoke import judge
from tfbuild.in_container.smoke.judge import Judgement
from tfbuild.measure import probe
from tfbuild.util.process import interruptible
from tfbuild.verify.verification import Verification, VerificationCheck

PATH = "/usr/local/bin/tfbuild-entrypoint"
MOST_BYTES = 64 * 1024
# The line with the command that wrote the script. It is a comment, and nothing else in the labels has that command.
HEADER = 1
CPUINFO = "/proc/cpuinfo"
FOLDER = "/tfbuild-cpus"
AT_ONCE = 4
TRIAL_SECONDS = 30
TIMED_OUT = -1
# The codes of a container that the engine could not start.
NOT_RUN = (125, 126, 127, 128)


def _run(verification: Verification) -> Judgement:
    if why := _does_not_start(verification):
        verification.unstartable = True
        return Judgement(judge.FAIL, why)
    difference = _difference(verification)
    # Nothing but its own text can excuse an entry point of this version.
    if difference and verification.planned.version == __version__:
        return Judgement(judge.FAIL, f"{difference}; `invoke build` makes an image with this version's")
    return judge_trials(*_try_all(verification), difference, verification.planned.version)


def judge_trials(trials: Sequence["Trial"], codes: Sequence[int], difference: str, version: str) -> Judgement:
    """Judge an entry point by its exit codes on the CPUs of `trials`.

    `difference`: from this tfbuild's text, if another `version` made the image; else "".
    """
    started = judge.guard(judge.Ended(0, "")).detail
    if all(code in NOT_RUN for code in codes):
        untried = f"this engine cannot replace {CPUINFO}, so it was not tried on lesser CPUs"
        return Judgement(judge.FAIL if difference else judge.PASS, f"{difference or started}; {untried}")
    if wrong := next(filter(None, map(_wrong, trials, codes)), ""):
        return Judgement(judge.FAIL, wrong)
    if difference:
        made = f"tfbuild {version[:40] or 'unknown'} made it, so it was judged only by what it does"
        return Judgement(judge.WARN, f"{started}; {difference}: {made}")
    return Judgement(judge.PASS, started)


def _wrong(trial: "Trial", code: int) -> str:
    """Return what an entry point did wrong on a CPU by its exit code; else ""."""
    if code == TIMED_OUT:
        return "the entry point does not end in time"
    if code == (judge.GUARD_EXIT if trial.lacks else 0):
        return ""
    if trial.lacks and code == 0:
        return f"the entry point starts Python on a CPU that lacks {trial.lacks}"
    cpu = f"that lacks {trial.lacks}" if trial.lacks else "with all labelled features"
    return f"the entry point exits with code {code} on a CPU {cpu}"


def _does_not_start(verification: Verification) -> str:
    """Return why the image does not start a command on this host, as a user would start it; else ""."""
    alive, engine, sandbox = secrets.token_hex(8), verification.engine, verification.sandbox
    command = ["python", "-c", f"print('{alive}')"]
    try:
        run = engine.run(verification.ref, command, sandbox=sandbox, timeout=probe.SECONDS)
    except TimeoutError:
        return judge.guard(judge.Ended(1, "", timed_out=True)).detail
    if run.truncated:
        return f"Python does not start: {probe.FLOOD}"
    if run.exit_code == 0 and run.stdout != f"{alive}\n":
        return "the entry point does not start the command that it is given"
    judged = judge.guard(judge.Ended(run.exit_code, run.stderr))
    return judged.detail if judged.status == judge.FAIL else ""


# --- its text ---------------------------------------------------------------------------------------------------------


def _difference(verification: Verification) -> str:
    """Return how the script differs from the one that this tfbuild renders for the labels; else ""."""
    try:
        text = dockerfile.render_entrypoint(verification.planned.check(), header="#")
    except TfbuildError as error:
        return f"no entry point can be rendered for its labels: {error.reason}"
    try:
        found = verification.engine.read_contents(verification.ref, [PATH], MOST_BYTES)
    except OSError as error:
        return f"{PATH} cannot be read: {error.strerror or error}"
    if PATH not in found:
        return f"{PATH} is missing"
    return "" if same(found[PATH], text) else f"{PATH} is not what its labels ask for"


def same(script: bytes, text: str) -> bool:
    """Whether a script is the rendered `text`, whoever wrote it by which command."""
    lines, others = script.split(b"\n"), text.encode().split(b"\n")
    if len(lines) != len(others) or not lines[HEADER].startswith(b"#"):
        return False
    del lines[HEADER], others[HEADER]
    return lines == others


# --- what it does on other CPUs ---------------------------------------------------------------------------------------

CORES = 2
# What kernels list for every CPU of an architecture, and no label names. A description without it is not real.
ALWAYS = {
    "x86_64": "fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat pse36 clflush mmx fxsr sse sse2 "
    "syscall nx lm constant_tsc rep_good nopl cpuid",
    "aarch64": "fp evtstrm cpuid",
}
CORE = {
    "x86_64": "processor\t: {number}\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 85\n"
    "model name\t: Intel(R) Xeon(R) Processor @ 2.80GHz\nstepping\t: 7\ncpu MHz\t\t: 2800.198\n"
    "core id\t\t: {number}\ncpu cores\t: 2\nflags\t\t: {features}\n"
    "bugs\t\t: spectre_v1 spectre_v2\nbogomips\t: 5600.39\nclflush size\t: 64\n"
    "address sizes\t: 46 bits physical, 48 bits virtual\n",
    "aarch64": "processor\t: {number}\nBogoMIPS\t: 50.00\nFeatures\t: {features}\n"
    "CPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x3\nCPU part\t: 0xd0c\nCPU revision\t: 1\n",
}


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A CPU on which the entry point is tried: its /proc/cpuinfo, and the feature that one of its cores lacks."""

    cpuinfo: bytes
    lacks: str = ""


def trials(planned: Planned, rng: random.Random) -> list[Trial]:
    """Return a CPU without each labelled feature that kernels print, and two that have all of them; in random order.

    One has exactly the labelled features, the other every known one. Those that lack one have a part of the others.
    """
    required = facts.cpuinfo_names(planned.features)
    others = sorted({row.cpuinfo for row in facts.features(planned.arch) if row.cpuinfo} - set(required))
    parts = {lacks: rng.sample(others, rng.randint(0, len(others))) for lacks in required}
    rows = [*parts.items(), ("", []), ("", others)]
    rng.shuffle(rows)
    return [Trial(cpuinfo=_cpuinfo(planned.arch, [*required, *more], rng, lacks), lacks=lacks) for lacks, more in rows]


def _cpuinfo(arch: str, names: Sequence[str], rng: random.Random, lacks: str) -> bytes:
    """Return /proc/cpuinfo as the kernel writes it, for cores of which one, by chance, lacks a feature."""
    lesser = rng.randrange(CORES)
    cores = []
    for number in range(CORES):
        held = [name for name in names if name != lacks or number != lesser]
        rng.shuffle(held)
        cores.append(CORE[arch].format(number=number, features=" ".join((ALWAYS[arch], *held))))
    return "\n".join(cores).encode()


def _try_all(verification: Verification) -> tuple[list[Trial], list[int]]:
    """Try the entry point on CPUs that lack one labelled feature each, and on two that lack none.

    Each sees its description in place of the machine's own /proc/cpuinfo, and is given the same command.
    """
    tried = trials(verification.planned, random.Random())
    files = {str(number): trial.cpuinfo for number, trial in enumerate(tried)}
    with (
        # The runs cannot do this in their threads. Those that have begun remove their containers first.
        interruptible(),
        verification.engine.sandbox(verification.ref, files, FOLDER) as sandbox,
        ThreadPoolExecutor(AT_ONCE) as pool,
    ):
        try:
            boxes = (sandbox.replacing({CPUINFO: name}) for name in files)
            return tried, list(pool.map(lambda box: _exit_code(verification, box), boxes))
        finally:
            pool.shutdown(cancel_futures=True)


def _exit_code(verification: Verification, sandbox: Sandbox) -> int:
    engine, command = verification.engine, ["python", "-c", ""]
    try:
        return engine.run(verification.ref, command, sandbox=sandbox, timeout=TRIAL_SECONDS).exit_code
    except TimeoutError:
        return TIMED_OUT


CHECK = VerificationCheck(
    name="guard",
    proves="This host has every feature that the image requires, Python starts behind its entry point, and the entry "
    "point stops on a CPU that lacks any one of the labelled features.",
    how="The image's own entry point was started with a one-line Python program, then once for each labelled feature "
    "with a /proc/cpuinfo in which one core lacks that feature. Its text, read without starting the image, was "
    "compared with the one that this tfbuild renders for the labels.",
    fix="run the image that the message names, or build one for this CPU: invoke build --cpu host; if the "
    "entry point was changed, build the image again",
    run=_run,
)
