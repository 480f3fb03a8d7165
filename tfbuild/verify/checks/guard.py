"""The guard check: the image's entry point starts on this host, and stops on every lesser one."""

import random
import secrets
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from tfbuild import __version__
from tfbuild.engine import Sandbox
from tfbuild.in_container.smoke import judge
from tfbuild.measure import probe
from tfbuild.util.process import interruptible
from tfbuild.verify import entrypoint
from tfbuild.verify.entrypoint import Trial
from tfbuild.verify.verification import Claim, Verification, VerificationCheck

CPUINFO = "/proc/cpuinfo"
FOLDER = "/tfbuild-cpus"
AT_ONCE = 4
TRIAL_SECONDS = 30
TIMED_OUT = -1
# The codes of a container that the engine could not start.
NOT_RUN = (125, 126, 127, 128)


def _run(verification: Verification) -> judge.Judgement:
    if why := _does_not_start(verification):
        verification.unstartable = True
        return judge.Judgement("guard", judge.FAIL, why)
    difference = _difference(verification)
    # Nothing but its own text can excuse an entry point of this version.
    if difference and verification.planned.version == __version__:
        again = f"{difference}; `invoke build` makes an image with this version's"
        return judge.Judgement("guard", judge.FAIL, again)
    return concluded(*_try_all(verification), difference, verification.planned.version)


def concluded(trials: Sequence[Trial], codes: Sequence[int], difference: str, version: str) -> judge.Judgement:
    """Judge an entry point by its exit codes on the CPUs of `trials`.

    `difference`: from this tfbuild's text, if another `version` made the image; else "".
    """
    started = judge.guard(judge.Ended(0, "")).detail
    if all(code in NOT_RUN for code in codes):
        untried = f"this engine cannot replace {CPUINFO}, so it was not tried on lesser CPUs"
        return judge.Judgement("guard", judge.FAIL if difference else judge.PASS, f"{difference or started}; {untried}")
    wrong = next((why for trial, code in zip(trials, codes, strict=True) if (why := _wrong(trial, code))), "")
    if wrong:
        return judge.Judgement("guard", judge.FAIL, wrong)
    if difference:
        made = f"tfbuild {version[:40] or 'unknown'} made it, so it was judged by what it does alone"
        return judge.Judgement("guard", judge.WARN, f"{started}; {difference}: {made}")
    return judge.Judgement("guard", judge.PASS, started)


def _wrong(trial: Trial, code: int) -> str:
    """Return what an entry point did wrong on a CPU by its exit code; else ""."""
    if code == TIMED_OUT:
        return "the entry point does not end in time"
    if code == (judge.GUARD_EXIT if trial.lacks else 0):
        return ""
    if trial.lacks and code == 0:
        return f"the entry point starts Python on a CPU that lacks {trial.lacks}"
    place = f"that lacks {trial.lacks}" if trial.lacks else "with all labelled features"
    return f"the entry point exits with code {code} on a CPU {place}"


def _does_not_start(verification: Verification) -> str:
    """Return why the image does not start a command on this host, as a user would start it; else ""."""
    alive = secrets.token_hex(8)
    try:
        run = verification.run(["python", "-c", f"print('{alive}')"])
    except TimeoutError:
        return judge.guard(judge.Ended(1, "", timed_out=True)).detail
    if run.truncated:
        return f"Python does not start: {probe.FLOOD}"
    if run.exit_code == 0 and run.stdout != f"{alive}\n":
        return "the entry point does not start the command that it is given"
    judged = judge.guard(judge.Ended(run.exit_code, run.stderr))
    return judged.detail if judged.status == judge.FAIL else ""


def _difference(verification: Verification) -> str:
    """Return how the script differs from the one that this tfbuild renders for the labels; else ""."""
    try:
        text = entrypoint.expected(verification.planned)
        found = verification.engine.read_contents(verification.ref, [entrypoint.PATH], entrypoint.MOST_BYTES)
    except ValueError as error:
        return str(error)
    except OSError as error:
        return f"{entrypoint.PATH} cannot be read: {error.strerror or error}"
    if entrypoint.PATH not in found:
        return f"{entrypoint.PATH} is missing"
    return "" if entrypoint.same(found[entrypoint.PATH], text) else f"{entrypoint.PATH} is not what its labels ask for"


def _try_all(verification: Verification) -> tuple[list[Trial], list[int]]:
    """Try the entry point on CPUs that lack one labelled feature each, and on two that lack none.

    Each sees its description in place of the machine's own /proc/cpuinfo, and is given the same command.
    """
    trials = entrypoint.trials(verification.planned, random.Random())
    files = {str(number): trial.cpuinfo for number, trial in enumerate(trials)}
    with (
        # The runs cannot do this in their threads. Those that have begun remove their containers first.
        interruptible(),
        verification.engine.sandbox(verification.ref, files, FOLDER) as sandbox,
        ThreadPoolExecutor(AT_ONCE) as pool,
    ):
        try:
            boxes = (sandbox.replacing({CPUINFO: name}) for name in files)
            return trials, list(pool.map(lambda box: _exit_code(verification, box), boxes))
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
    claim=Claim(
        proves="This host has every feature that the image requires, Python starts behind its entry point, and the "
        "entry point stops on a CPU that lacks any one of the labelled features.",
        how="The image's own entry point was started with a one-line Python program, then once for each labelled "
        "feature with a /proc/cpuinfo in which one core lacks that feature. Its text, read without starting the image, "
        "was compared with the one that this tfbuild renders for the labels.",
        fix="run the image that the message names, or build one for this CPU: invoke build --cpu host; build an image "
        "again whose entry point was changed",
    ),
    run=_run,
)
