"""The GPUs of a build, and the CUDA and cuDNN that compile for them: the typed view on facts/cuda.toml.

They are the requested ones, else the release's own, else the nearest that the release takes and that compile for the
GPUs. If no CUDA of the release compiles for the GPUs, the build is refused with a release and a CUDA that can.

Of the spellings of compute capabilities, "x.y" and "compute_xy" mean virtual and binary GPU code, "sm_xy" binary code
only (configure.py, v2.14.0). Binary code runs on GPUs of the same major version and at least its minor one; the driver
compiles virtual code for every GPU that is not older (CUDA C++ Programming Guide).
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from tfbuild import facts
from tfbuild.errors import Unsupported, UsageError
from tfbuild.facts import Facts, releases, targets
from tfbuild.facts.release_table import Cuda, RangeRow, Sourced, version
from tfbuild.plan.request import GPUS, Request
from tfbuild.util import options

CAPABILITY = re.compile(r"(?P<kind>sm_|compute_)?(?P<major>\d{1,2}?)(?(kind)|\.)(?P<minor>\d)", re.ASCII)
OTHER_GPUS = "choose other GPUs (--compute-capabilities)"


@dataclass(frozen=True, kw_only=True)
class Capability:
    """`name`: as requested; `code`: for configure.py; `number`: 86 for 8.6; `virtual`: later GPUs run it too."""

    name: str
    code: str
    major: int
    number: int
    virtual: bool

    @property
    def figure(self) -> str:
        """The spelling of NVIDIA: "8.6"."""
        return f"{self.major}.{self.number % 10}"


def parse_capabilities(text: str) -> tuple[Capability, ...]:
    """Read the comma-separated list `text`; raises UsageError for a word that is not a capability."""
    return tuple(_capability(word.strip()) for word in text.split(","))


def _capability(word: str) -> Capability:
    match = CAPABILITY.fullmatch(word)
    if match is None:
        ask = "the GPU's own, such as 8.6: nvidia-smi --query-gpu=name,compute_cap --format=csv prints it"
        meant = _of_gpu(word)
        raise UsageError(
            f"{word!r} is not a CUDA compute capability", hint=f"--compute-capabilities {meant}" if meant else ask
        )
    major, number = int(match["major"]), 10 * int(match["major"]) + int(match["minor"])
    # If all are spelled "x.y", only the greatest is compiled as virtual code, and "12.0" counts as less than "8.9"
    # (cuda_configure.bzl, v2.14.0; master, 2025-04).
    code = word if match["kind"] else f"compute_{number}"
    return Capability(name=word, code=code, major=major, number=number, virtual=match["kind"] != "sm_")


def _of_gpu(word: str) -> str:
    """Return the capabilities that a GPU's name, "86" or "sm_120a" means; "" for anything else."""
    name = re.sub(r"nvidia|geforce|tesla|quadro|[\W_]", "", word.lower())
    name = re.sub(r"^(?:sm|compute)?(\d{2,3})[af]?$", r"\1", name)
    known = [(row.name.replace(".", ""), row.name) for row in cuda_table().capability] + [*cuda_table().gpu]
    return next((meant for pattern, meant in known if re.fullmatch(pattern, name)), "")


def capabilities(request: Request, target: str, release: str) -> tuple[Capability, ...]:
    """Return the requested compute capabilities, else those of the official wheels; () without CUDA."""
    if targets.get(target).cuda:
        return parse_capabilities(request.compute_capabilities or releases.cuda(release).capabilities)
    for name, row, _ in options.given(request):
        if row.group == GPUS:
            raise UsageError(f"--{name} is for GPUs, and --target {target} is not", hint=targets.choosing("cuda"))
    return ()


# --- CUDA and cuDNN ---------------------------------------------------------------------------------------------------

NVCC = "cuda_nvcc"


class CapabilityRow(RangeRow, frozen=True, kw_only=True):
    """The CUDAs whose nvcc compiles for a capability, and the first Clang that does (0: none known)."""

    name: str
    clang: int


class CudnnRow(Sourced, frozen=True, kw_only=True):
    """A cuDNN that works with these CUDAs."""

    version: str


class CudaTable(Facts, frozen=True, kw_only=True):
    capability: tuple[CapabilityRow, ...]
    gpu: tuple[tuple[str, str], ...]
    cudnn: tuple[CudnnRow, ...]


cuda_table = partial(facts.load, "cuda", CudaTable)


def refuse_base(request: Request, cuda: str, cudnn: str) -> None:
    """Raise Unsupported for a base whose name says that it has another CUDA or cuDNN than these.

    A wheel that exists runs with each CUDA of its major version.
    """
    compiles = request.wheel in ("", "source")
    number = r"cuda:(\d+\.\d+)" if compiles else r"cuda:(\d+)"
    for library, pattern, planned in (("CUDA", number, cuda), ("cuDNN", r"cudnn(\d+)", cudnn)):
        if (match := re.search(pattern, request.base)) and not f"{planned}.".startswith(f"{match[1]}."):
            other = f"; or --cuda {match[1]}, if the release takes it" if library == "CUDA" and compiles else ""
            raise Unsupported(
                f"{request.base} has {library} {match[1]}, and the plan {library} {planned}",
                hint=f"--base with {library} {planned}{other}",
            )


def cuda_version(release: str, gpus: tuple[Capability, ...], requested: str = "") -> str:
    """Return the CUDA of a build of `release` for `gpus`; raises Unsupported if none fits."""
    known = [row.name for row in cuda_table().capability]
    if unknown := [gpu for gpu in gpus if gpu.figure not in known]:
        raise UsageError(
            f"no CUDA is known to compile for compute capability {_figures(unknown)}",
            hint=f"one of: {', '.join(known)}",
        )
    own = releases.cuda(release)
    chosen = _requested(release, requested, "CUDA", _takes(own)) if requested else _nearest(own, gpus)
    if not chosen:
        # All of them, if only their combination is impossible.
        never = [gpu for gpu in gpus if all(_missing(cuda, (gpu,)) for cuda in _takes(own))]
        raise Unsupported(
            f"none of the CUDAs that TensorFlow {release} takes ({', '.join(_takes(own))}) compiles for compute "
            f"capability {_figures(never or gpus)}",
            hint=_other_release(release, gpus),
        )
    if missing := _missing(chosen, gpus):
        nearest = _nearest(own, gpus)
        raise Unsupported(
            f"CUDA {chosen} does not compile for compute capability {_figures(missing)}",
            hint=f"--cuda {nearest} does; or {OTHER_GPUS}" if nearest else _other_release(release, gpus),
        )
    return chosen


def _takes(fact: Cuda) -> tuple[str, ...]:
    return (fact.version, *fact.others)


def _missing(cuda: str, gpus: Iterable[Capability]) -> list[Capability]:
    """Return the GPUs that nvcc of that CUDA does not compile for."""
    able = {row.name for row in cuda_table().capability if row.covers(cuda)}
    return [gpu for gpu in gpus if gpu.figure not in able]


def _figures(gpus: Iterable[Capability]) -> str:
    return ", ".join(dict.fromkeys(gpu.figure for gpu in gpus))


def _nearest(fact: Cuda, gpus: tuple[Capability, ...]) -> str:
    """Return the release's own CUDA, else the newest patch of the first minor version that compiles for `gpus`."""
    able = [cuda for cuda in _takes(fact) if not _missing(cuda, gpus)]
    if not able or fact.version in able:
        return able[0] if able else ""
    return _newest_patch(able, ".".join(able[0].split(".")[:2]))


def _newest_patch(among: Iterable[str], prefix: str) -> str:
    """Return the newest version that is `prefix` or a patch of it, or ""."""
    return max((name for name in among if f"{name}.".startswith(f"{prefix}.")), key=version, default="")


def _requested(release: str, text: str, library: str, known: tuple[str, ...]) -> str:
    """Return the version that --cuda or cudnn names, among those that the release is `known` to take."""
    if patch := _newest_patch(known, text):
        return patch
    takes = (name for name in releases.others(release) if _newest_patch(_takes(releases.cuda(name)), text))
    other = next(takes, "") if library == "CUDA" else ""
    hint = f"it takes {', '.join(known)}{f'; --release {other} takes {library} {text}' if other else ''}"
    raise Unsupported(f"TensorFlow {release} is not known to build with {library} {text}", hint=hint)


def _other_release(release: str, gpus: tuple[Capability, ...]) -> str:
    """Suggest the nearest release with a CUDA that compiles for `gpus`."""
    for other in releases.others(release):
        if able := _nearest(releases.cuda(other), gpus):
            return f"--release {other} takes a CUDA which does ({able}); or {OTHER_GPUS}"
    return OTHER_GPUS


def cudnn_version(release: str, cuda: str, requested: str = "") -> str:
    """Return the requested cuDNN, else one that is known to work with this CUDA, else the release's own.

    Raises Unsupported if none is known for a CUDA of another major version than the release's.
    """
    fact = releases.cuda(release)
    if requested:
        # Up to 2.17 the base has cuDNN, and configure.py finds any version of that major one.
        if not fact.hermetic and requested.split(".")[0] == fact.cudnn.split(".")[0]:
            return requested
        return _requested(release, requested, "cuDNN", (fact.cudnn, *fact.others_cudnn))
    named = dict(pair.split("/") for pair in fact.pairs).get(cuda)
    paired = [row.version for row in cuda_table().cudnn if cuda != fact.version and row.covers(cuda)]
    known = named or next((name for name in paired if name in fact.others_cudnn), "")
    if not known and version(cuda).major != version(fact.version).major and fact.hermetic:
        raise Unsupported(
            f"no cuDNN is known to work with CUDA {cuda} in TensorFlow {release}",
            hint=f"--cudnn VERSION, one of: {', '.join(fact.others_cudnn)}; or {OTHER_GPUS}",
        )
    return known or fact.cudnn


def nvcc_config(release: str, gpus: tuple[Capability, ...], compiler: str) -> tuple[str, ...]:
    """Return the config with which nvcc compiles the kernels, and Clang the rest, if Clang cannot compile them.

    .bazelrc's own rbe_linux_cuda_nvcc does the same: cuda_clang, then cuda_nvcc (2025-04 to 2026-06). Raises
    Unsupported if the release has none.
    """
    missing = _not_by_clang(gpus, compiler)
    if missing and not releases.config(NVCC, release):
        first = {row.name: row.clang for row in cuda_table().capability}
        needed = [first[gpu.figure] for gpu in missing]
        raise Unsupported(
            f"{compiler} does not compile for compute capability {_figures(missing)}",
            hint=f"--compiler clang-{max(needed)}, or newer" if all(needed) else OTHER_GPUS,
        )
    return (NVCC,) if missing else ()


def _not_by_clang(gpus: tuple[Capability, ...], compiler: str) -> list[Capability]:
    """Return the GPUs that this Clang cannot compile for; none of GCC, which never compiles for them."""
    name, _, major = compiler.partition("-")
    first = {row.name: row.clang for row in cuda_table().capability}
    return [gpu for gpu in gpus if name == "clang" and not 0 < first.get(gpu.figure, 0) <= int(major)]


def by_nvcc(gpus: tuple[Capability, ...], compiler: str) -> bool:
    """Whether nvcc compiles the kernels for these GPUs in a build with that compiler."""
    return bool(gpus) and (compiler.startswith("gcc") or bool(_not_by_clang(gpus, compiler)))


def cuda_notes(release: str, gpus: tuple[Capability, ...], compiler: str, cuda: str) -> Iterator[str]:
    """Yield notes on a CUDA that is not the release's own, and on nvcc."""
    own = releases.cuda(release)
    if cuda != own.version:
        if missing := _missing(own.version, gpus):
            yield f"CUDA {cuda} is taken: the release's own, {own.version}, does not compile for {_figures(missing)}"
        named = any(pair.startswith(f"{cuda}/") for pair in own.pairs)
        of = "" if releases.known(release) else f"of {releases.nearest(release)}: "
        evidence = "its .bazelrc names that CUDA" if named else f"{of}{own.evidence}"
        yield f"not certain: that TensorFlow {release} builds with CUDA {cuda}; {evidence}"
    if missing := _not_by_clang(gpus, compiler):
        yield f"nvcc compiles the kernels (--config={NVCC}): {compiler} cannot for {_figures(missing)}"
