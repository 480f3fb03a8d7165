"""The import check: TensorFlow imports and computes; where it does not, all checks that need it are skipped."""

from dataclasses import replace

from tfbuild.engine import Process
from tfbuild.facts import releases
from tfbuild.in_container.smoke import judge
from tfbuild.in_container.smoke.records import Environment, TensorFlow
from tfbuild.measure import probe
from tfbuild.plan import failures
from tfbuild.verify import libraries
from tfbuild.verify.verification import NO_START, Claim, Start, Verification, VerificationCheck, answered


def _skip(verification: Verification) -> str:
    return NO_START if verification.unstartable else ""


def _run(verification: Verification) -> judge.Judgement:
    seen: list[Process | None] = []
    result = verification.ask("start", Environment, TensorFlow, look=seen.append)
    outcome = result.outcome
    start = Start(outcome=outcome)
    if outcome.broken:
        check = judge.Judgement("import", judge.FAIL, outcome.broken)
    else:
        check = judge.importing(start.environment, start.tensorflow, outcome.ended, verification.planned.smoke())
        check = with_known_failure(check, verification.planned.release)
        check = from_outside(answered(check, result), verification, seen[0] if seen else None)
    if check.status == judge.FAIL and not start.tensorflow:
        start = Start(outcome=outcome, why="TensorFlow does not import (see import)")
    verification.start, verification.process = start, seen[0] if seen else None
    return check


def with_known_failure(check: judge.Judgement, release: str) -> judge.Judgement:
    """Add what helps, where the message of a failed import is a known failure of the release."""
    rows = failures.known(release) if releases.known(release) and check.status == judge.FAIL else ()
    row = next((row for row in rows if row.matches(check.detail)), None)
    return replace(check, detail=f"{check.detail}; a known failure ({row.id}): {row.workaround}") if row else check


def from_outside(check: judge.Judgement, verification: Verification, process: Process | None) -> judge.Judgement:
    """Fail where the kernel shows another process than the probe reported; without a look say so."""
    if check.status != judge.PASS:
        return check
    if process is None:
        return replace(check, detail=f"{check.detail}; its process cannot be looked at from here")
    planned = verification.planned
    library = libraries.framework_path(planned)
    if process.program != verification.program:
        return judge.Judgement("import", judge.FAIL, f"the process that answered does not run {probe.PYTHON}")
    if library not in process.code:
        return judge.Judgement("import", judge.FAIL, f"the process that answered has not loaded {library}")
    return check


CHECK = VerificationCheck(
    name="import",
    claim=Claim(
        proves="TensorFlow imports and computes, and its version, Python and CUDA support are the plan's.",
        how="Imported in a process of its own, so that a death by signal is read as one; compared with the labels. It "
        "multiplied matrices that the host chose for this run. If the engine is on this machine, the kernel was asked "
        "which program the process runs, and whether it has loaded TensorFlow's library.",
        fix="read the message: SIGILL means a wrong instruction set, an error under NumPy 2 the need of numpy<2; "
        "files that Python runs at every start have to leave the image, or its base image",
    ),
    skip=_skip,
    run=_run,
)
