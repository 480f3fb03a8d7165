"""The numerics check: results are right, by references in NumPy, and a small training converges."""

from tfbuild.in_container.smoke import judge
from tfbuild.in_container.smoke.records import Part
from tfbuild.verify.verification import Claim, Verification, VerificationCheck, answered, needs_tensorflow


def _run(verification: Verification) -> judge.Judgement:
    result = verification.ask("numerics", *(Part for _ in judge.LIMITS))
    outcome = result.outcome
    if outcome.broken:
        return judge.Judgement("numerics", judge.FAIL, outcome.broken)
    return answered(judge.numerics(outcome.records, outcome.ended, verification.planned.smoke()), result)


CHECK = VerificationCheck(
    name="numerics",
    claim=Claim(
        proves="Results are right: products, convolution, pooling in both layouts, batch norm, exp, softmax, a "
        "gradient, a product of 8-bit numbers, XLA, and a small training converges.",
        how="Compared with float64 references in NumPy, and, on random numbers and sizes that the host chose for this "
        "run, with the host's own float64 results; limits are ten times what seven real wheels gave.",
        fix="do not use this build; where a row of tfbuild/facts/defects.toml names the release, take a newer one",
    ),
    skip=needs_tensorflow,
    run=_run,
)
