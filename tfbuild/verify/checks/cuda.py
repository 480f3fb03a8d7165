"""The cuda check: TensorFlow reaches the GPU, and a convolution there gives what the CPU gives."""

from tfbuild.in_container.smoke import judge
from tfbuild.in_container.smoke.records import GpuConvolution
from tfbuild.verify.verification import Claim, Verification, VerificationCheck, answered, needs_tensorflow, unpromised

LIMITS = {"convolution": judge.MOST_GPU_ERROR}


def _skip(verification: Verification) -> str:
    unprobed = judge.cuda(None, judge.Ended(0, ""), verification.planned.smoke())
    return needs_tensorflow(verification) or unpromised(unprobed)


def _run(verification: Verification) -> judge.Judgement:
    reason = verification.engine.lacks_gpus(verification.ref, verification.sandbox)
    result = verification.ask("cuda", GpuConvolution, gpus=not reason, limits=LIMITS)
    outcome = result.outcome
    if outcome.broken:
        return judge.Judgement("cuda", judge.FAIL, outcome.broken)
    check = judge.cuda(outcome.first(GpuConvolution), outcome.ended, verification.planned.smoke())
    return judge.skipped("cuda", reason) if reason and check.status == judge.SKIP else answered(check, result)


CHECK = VerificationCheck(
    name="cuda",
    claim=Claim(
        proves="TensorFlow reaches the GPU, and a convolution there gives what the CPU gives.",
        how="The same convolution on both, TensorFloat-32 off.",
        fix="check the driver and the container toolkit on the host: docker run --gpus all IMAGE nvidia-smi",
    ),
    skip=_skip,
    run=_run,
)
