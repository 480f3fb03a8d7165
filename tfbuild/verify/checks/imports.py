"""The import check: TensorFlow imports and computes; where it does not, all checks that need it are skipped."""

from tfbuild.in_container.smoke import judge
from tfbuild.in_container.smoke.records import Environment, TensorFlow
from tfbuild.verify.verification import NO_START, Claim, Start, Verification, VerificationCheck


def _skip(verification: Verification) -> str:
    return NO_START if verification.failed("guard") else ""


def _run(verification: Verification) -> judge.Judgement:
    outcome = verification.ask("start", Environment, TensorFlow)
    start = Start(outcome=outcome)
    if outcome.broken:
        check = judge.Judgement("import", judge.FAIL, outcome.broken)
    else:
        check = judge.importing(start.environment, start.tensorflow, outcome.ended, verification.planned.smoke())
    if check.status == judge.FAIL and not start.tensorflow:
        start = Start(outcome=outcome, why="TensorFlow does not import (see import)")
    verification.start = start
    return check


CHECK = VerificationCheck(
    name="import",
    claim=Claim(
        proves="TensorFlow imports and computes, and its version, Python and CUDA support are the plan's.",
        how="Imported in a process of its own, so that a death by signal is read as one; compared with the labels.",
        fix="read the message: SIGILL means a wrong instruction set, an error under NumPy 2 the need of numpy<2",
    ),
    skip=_skip,
    run=_run,
)
