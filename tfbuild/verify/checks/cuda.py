"""The cuda check: TensorFlow reaches the GPU, and a convolution there gives what the CPU gives."""

from tfbuild.in_container.smoke import judge
from tfbuild.in_container.smoke.records import Cuda
from tfbuild.measure import probe
from tfbuild.verify.verification import Claim, Verification, VerificationCheck, needs_tensorflow, unpromised


def _skip(verification: Verification) -> str:
    unasked = judge.cuda(None, judge.Ended(0, ""), verification.planned.smoke())
    return needs_tensorflow(verification) or unpromised(unasked)


def _run(verification: Verification) -> judge.Check:
    lacks = verification.engine.lacks_gpus(verification.ref)
    outcome = probe.ask(verification.engine, verification.ref, "cuda", (Cuda,), gpus=not lacks)
    if outcome.broken:
        return judge.Check("cuda", judge.FAIL, outcome.broken)
    check = judge.cuda(outcome.first(Cuda), outcome.ended, verification.planned.smoke())
    return judge.skipped("cuda", lacks) if lacks and check.status == judge.SKIP else check


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
