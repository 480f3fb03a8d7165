"""The onednn check: convolutions run in oneDNN, in an implementation for this CPU, on the planned runtime."""

from tfbuild.in_container.smoke import judge
from tfbuild.in_container.smoke.records import OneDnnConvolution
from tfbuild.verify import challenges
from tfbuild.verify.verification import Claim, Verification, VerificationCheck, answered, needs_tensorflow, unpromised


def _skip(verification: Verification) -> str:
    unprobed = judge.onednn("", None, None, judge.Ended(0, ""), verification.planned.smoke())
    return needs_tensorflow(verification) or unpromised(unprobed)


def _run(verification: Verification) -> judge.Judgement:
    result = verification.ask("onednn", OneDnnConvolution, env=judge.TALKATIVE)
    outcome = result.outcome
    if outcome.broken:
        return judge.Judgement("onednn", judge.FAIL, outcome.broken)
    environment, record = verification.start.environment, outcome.first(OneDnnConvolution)
    judged = judge.onednn(outcome.output, environment, record, outcome.ended, verification.planned.smoke())
    if judged.status == judge.PASS and not challenges.traced(outcome.output, result.challenge):
        return judge.Judgement("onednn", judge.FAIL, "oneDNN printed no convolution of the sizes that the host chose")
    return answered(judged, result)


CHECK = VerificationCheck(
    name="onednn",
    claim=Claim(
        proves="Convolutions run in oneDNN's code for this CPU, on the planned threading runtime.",
        how="ONEDNN_VERBOSE=1, with sizes that the host chose for this run; only a convolution's implementation "
        "counts, since oneDNN's gemm runs with it off too.",
        fix="set TF_ENABLE_ONEDNN_OPTS=1 (images of target mkl do so from 2.5 on; before, it is always on); look for "
        "TF_DISABLE_MKL and ONEDNN_MAX_CPU_ISA in the environment",
    ),
    skip=_skip,
    run=_run,
)
