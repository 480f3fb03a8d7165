"""Which GPUs a request compiles for, and with which CUDA and cuDNN."""

from typing import Any

from tfbuild.errors import UsageError
from tfbuild.facts import releases, targets
from tfbuild.plan import compute_capability, cuda_versions
from tfbuild.plan.compute_capability import Capability
from tfbuild.plan.cuda_versions import CudaChoice
from tfbuild.plan.request import Request


def capabilities(request: Request, target: str, release: str) -> tuple[Capability, ...]:
    """Return the requested compute capabilities, else those of the official wheels; () without CUDA."""
    for_cuda = targets.get(target).cuda
    if request.compute_capabilities and not for_cuda:
        raise UsageError(
            f"--compute-capabilities is for GPUs, and --target {target} is not", hint=targets.options("cuda")
        )
    if not for_cuda:
        return ()
    own = releases.cuda(release).capabilities
    return compute_capability.parse(request.compute_capabilities or own, named="_" in own)


def cuda_of(
    request: Request, target: str, release: str, gpus: tuple[Capability, ...] = (), compiler: str = ""
) -> CudaChoice:
    """Return the CUDA to compile with; an official wheel has the release's own, and a target without CUDA none."""
    if not targets.get(target).cuda:
        if request.cuda or request.cudnn:
            name = "--cuda" if request.cuda else "cudnn"
            raise UsageError(f"{name} is for GPUs, and --target {target} is not", hint=targets.options("cuda"))
        return CudaChoice(cuda="", cudnn="", configs=(), notes=())
    if not compiler:
        return cuda_versions.own(release)
    return cuda_versions.choose(release, gpus, compiler=compiler, cuda=request.cuda, cudnn=request.cudnn)


def gpu_fields(gpus: tuple[Capability, ...], cuda: CudaChoice) -> dict[str, Any]:
    return {"compute_capabilities": tuple(gpu.name for gpu in gpus), "cuda": cuda.cuda, "cudnn": cuda.cudnn}
