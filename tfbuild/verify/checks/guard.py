"""The guard check: the image's entry point is the rendered one, starts on this host, and stops on a lesser CPU."""

from tfbuild import __version__, facts
from tfbuild.context import dockerfile
from tfbuild.errors import TfbuildError
from tfbuild.in_container.smoke import judge
from tfbuild.in_container.smoke.judge import Judgement
from tfbuild.measure import probe
from tfbuild.plan import Build
from tfbuild.util import files
from tfbuild.verify import Verification, VerificationCheck
from tfbuild.verify.report import NO_START

PATH = "/usr/local/bin/tfbuild-entrypoint"
MOST_BYTES = 64 * 1024
# The line with the command that wrote the script. It is a comment, and nothing else in the labels has that command.
HEADER = 1
# In the sandbox of a verification.
LESSER_CPU = "lesser-cpu"


def _run(verification: Verification) -> Judgement:
    planned = verification.planned
    if why := _does_not_start(verification):
        verification.why = NO_START
        return Judgement(judge.FAIL, why)
    difference = _difference(verification)
    # Nothing but its own text can excuse an entry point of this version.
    if difference and verification.version == __version__:
        return Judgement(judge.FAIL, f"{difference}; `invoke build` makes an image with this version's")
    if wrong := _starts_without(verification, lacking(planned)):
        return Judgement(judge.FAIL, wrong)
    started = judge.guard(judge.Ended(0, "")).detail
    if difference:
        made = f"tfbuild {verification.version[:40] or 'unknown'} made it, so it was judged only by what it does"
        return Judgement(judge.WARN, f"{started}; {difference}: {made}")
    return Judgement(judge.PASS, started)


def _does_not_start(verification: Verification) -> str:
    """Return why the image does not start a command on this host, as a user would start it; else ""."""
    engine, command = verification.engine, ["python", "-c", "print('started')"]
    try:
        run = engine.run(verification.ref, command, sandbox=verification.sandbox, timeout=judge.SECONDS)
    except TimeoutError:
        return judge.guard(judge.Ended(1, "", judge.TOO_LONG)).detail
    if run.truncated:
        return f"Python does not start: {probe.FLOOD_REASON}"
    if run.exit_code == 0 and run.stdout != "started\n":
        return "the entry point does not start the command that it is given"
    judged = judge.guard(judge.Ended(run.exit_code, run.stderr))
    return judged.detail if judged.status == judge.FAIL else ""


# --- a lesser CPU -----------------------------------------------------------------------------------------------------


def lacking(planned: Build) -> str:
    """Return the labelled feature that the lesser CPU lacks; "" if no kernel prints any of them."""
    # Not `required`, which raises for a feature that only a later tfbuild knows: checks say so, in a report.
    held = planned.instruction_set
    return max((row.cpuinfo for row in facts.features(held.arch) if row.name in held.features), default="")


def lesser_cpu(planned: Build) -> bytes:
    """Return /proc/cpuinfo of a core that has all known features but one of the labelled ones."""
    names = {row.cpuinfo for row in facts.features(planned.instruction_set.arch) if row.cpuinfo} - {lacking(planned)}
    return f"flags\t\t: {' '.join(sorted(names))}\n".encode()


def _starts_without(verification: Verification, feature: str) -> str:
    """Return what the entry point does wrong on a CPU that lacks the feature; else ""."""
    if not feature:
        return ""
    env = {"TFBUILD_CPUINFO": f"{probe.ROOT}/{LESSER_CPU}"}
    engine, command = verification.engine, ["python", "-c", ""]
    try:
        run = engine.run(verification.ref, command, env=env, sandbox=verification.sandbox, timeout=judge.SECONDS)
    except TimeoutError:
        return f"the entry point {judge.TOO_LONG}"
    if run.exit_code == 0:
        return f"the entry point starts Python on a CPU that lacks {feature}"
    if run.exit_code != judge.GUARD_EXIT:
        return f"the entry point exits with code {run.exit_code} on a CPU that lacks {feature}"
    named = f"lacks {feature}," in run.stderr
    return "" if named else f"the entry point does not name {feature} on a CPU that lacks it"


# --- its text ---------------------------------------------------------------------------------------------------------


def _difference(verification: Verification) -> str:
    """Return how the script differs from the one that this tfbuild renders for the labels; else ""."""
    try:
        text = dockerfile.render_entrypoint(verification.planned, header="#")
    except TfbuildError as error:
        return f"no entry point can be rendered for the image's labels: {error.reason}"
    with files.temporary_folder() as scratch:
        try:
            copy = verification.engine.read_file(verification.ref, PATH, scratch / "script", MOST_BYTES)
        except FileNotFoundError:
            return f"{PATH} is missing"
        return "" if same(copy.read_bytes(), text) else f"{PATH} does not match the image's labels"


def same(script: bytes, text: str) -> bool:
    """Whether a script is the rendered `text`, whoever wrote it by which command."""
    lines, others = script.split(b"\n"), text.encode().split(b"\n")
    if len(lines) != len(others) or not lines[HEADER].startswith(b"#"):
        return False
    del lines[HEADER], others[HEADER]
    return lines == others


CHECK = VerificationCheck(
    name="guard",
    proves="This host has every feature that the image requires, Python starts behind its entry point, and the entry "
    "point is the one for the labels, which stops on a CPU that lacks a labelled feature.",
    how="The entry point was started with a one-line Python program, on this CPU and with a /proc/cpuinfo that lacks a "
    "labelled feature. Its text was compared with the one that this tfbuild renders for the labels.",
    fix="run the image that the message names, or build one for this CPU: invoke build --cpu host; if the "
    "entry point was changed, build the image again",
    run=_run,
)
