"""The GPUs of a build, and the CUDA and cuDNN that compile for them: the typed view on facts/cuda.toml.

They are the requested ones, else the release's own, else the nearest that the release takes and that compile for the
GPUs. If no CUDA of the release compiles for the GPUs, the build is refused with a release and a CUDA that can.

Compute capabilities are spelled as TensorFlow's configure.py explains them (v2.14.0): "x.y" or "compute_xy" means
virtual and binary GPU code, "sm_xy" binary code only. Binary code runs on GPUs of the same major version and at least
its minor one; the driver compiles virtual code for every GPU that is not older (CUDA C++ Programming Guide, "Compute
Capability").
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import msgspec

from tfbuild import facts
from tfbuild.errors import Unsupported, UsageError
from tfbuild.facts import Facts, releases, targets
from tfbuild.facts.release_table import Cuda, version
from tfbuild.plan.request import Request

SPELLED = re.compile(r"(?P<kind>sm_|compute_)?(?P<major>\d{1,2}?)(?(kind)|\.)(?P<minor>\d)", re.ASCII)
# "TensorFlow only supports compute capabilities >= 3.5" (configure.py, v2.2.0 to v2.20.0).
OLDEST = (3, 5)


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


def parse_capabilities(text: str, *, named: bool = True) -> tuple[Capability, ...]:
    """Read the comma-separated list `text`. `named`: whether the release knows "sm_80" and "compute_80".

    Raises UsageError for a word that is not a capability, or that the release cannot read.
    """
    return tuple(_capability(word.strip(), named) for word in text.split(","))


def _capability(word: str, named: bool) -> Capability:
    match = SPELLED.fullmatch(word)
    if match is None:
        likely = _likely(word)
        ask = "the GPU's own: nvidia-smi --query-gpu=name,compute_cap --format=csv prints it"
        raise UsageError(
            f"{word!r} is not a CUDA compute capability", hint=f"--compute-capabilities {likely}" if likely else ask
        )
    major, minor = int(match["major"]), int(match["minor"])
    if (major, minor) < OLDEST:
        raise UsageError(f"TensorFlow supports compute capabilities from 3.5, not {major}.{minor}", hint="leave it out")
    if match["kind"] and not named:
        raise UsageError(f"this release reads {major}.{minor}, not {word}", hint=f"write {major}.{minor}")
    number = 10 * major + minor
    # From 2.5 on, if all are spelled "x.y", only the greatest is compiled as virtual code, and "12.0" counts as less
    # than "8.9" (cuda_configure.bzl, v2.14.0; master, 2025-04).
    code = f"compute_{number}" if named and not match["kind"] else word
    return Capability(name=word, code=code, major=major, number=number, virtual=match["kind"] != "sm_")


def _likely(word: str) -> str:
    """Return the capabilities that a GPU's name, "86" or "sm_120a" means; "" for anything else."""
    name = re.sub(r"nvidia|geforce|tesla|quadro|[\W_]", "", word.lower())
    name = re.sub(r"^(?:sm|compute)?(\d{2,3})[af]?$", r"\1", name)
    digits = [row.name for row in table().capability if row.name.replace(".", "") == name]
    return ",".join(digits) or next((row.capability for row in table().gpu if re.fullmatch(row.name, name)), "")


# --- CUDA and cuDNN ---------------------------------------------------------------------------------------------------

NVCC = "cuda_nvcc"
# As conda-forge's recipe sets them, beside HERMETIC_CUDA_VERSION (tensorflow-feedstock, recipe/build.sh).
OWN_PATHS = ("LOCAL_CUDA_PATH", "LOCAL_CUDNN_PATH", "LOCAL_NCCL_PATH")


class Span(Facts, frozen=True, kw_only=True):
    """A fact that holds for the CUDAs in [since, before)."""

    since: str = msgspec.field(name="from")
    before: str

    def covers(self, cuda: str) -> bool:
        """Whether that CUDA is in the span."""
        return version(self.since) <= version(cuda) < version(self.before)


class CapabilityRow(Span, frozen=True, kw_only=True):
    """The CUDAs whose nvcc compiles for a capability, and the first Clang that does (0: none known)."""

    name: str
    clang: int


class CudnnRow(Span, frozen=True, kw_only=True):
    """A cuDNN that works with the CUDAs of the span."""

    version: str
    source: str


class GpuRow(Facts, frozen=True, kw_only=True):
    """The capabilities of the GPUs whose names fit a pattern."""

    name: str
    capability: str


class CudaTable(Facts, frozen=True, kw_only=True):
    capability: tuple[CapabilityRow, ...]
    gpu: tuple[GpuRow, ...]
    cudnn: tuple[CudnnRow, ...]


def table() -> CudaTable:
    """Return the facts, read once a process."""
    return facts.load("cuda", CudaTable)


def cuda_version(release: str, gpus: tuple[Capability, ...], requested: str = "") -> str:
    """Return the CUDA of a build of `release` for `gpus`; raises Unsupported if none fits."""
    refuse_unknown(gpus)
    own = releases.cuda(release)
    chosen = _requested(release, requested, "CUDA") if requested else _nearest(own, gpus)
    if not chosen:
        # All of them, if only their combination is impossible.
        never = [gpu for gpu in gpus if all(_missing(cuda, (gpu,)) for cuda in _takes(own))]
        raise Unsupported(
            f"none of the CUDAs that TensorFlow {release} takes ({', '.join(_takes(own))}) compiles for compute "
            f"capability {_figures(never or gpus)}",
            hint=_advice(release, gpus),
        )
    if missing := _missing(chosen, gpus):
        raise Unsupported(
            f"CUDA {chosen} does not compile for compute capability {_figures(missing)}",
            hint=_advice(release, gpus, cuda=_nearest(own, gpus)),
        )
    return chosen


def refuse_installed(request: Request, release: str, gpus: tuple[Capability, ...], *, own_place: bool) -> None:
    """Raise a refusal if the CUDA in the folders that the user names cannot be taken.

    It may be a version that Bazel cannot download. `own_place`: see `of_build`.
    """
    if not releases.cuda(release).hermetic:
        raise Unsupported(
            f"TensorFlow {release} takes CUDA from its base image anyway",
            hint="leave out cuda-path; --configure TF_CUDA_PATHS=FOLDER,FOLDER names its folders there",
        )
    if not own_place:
        raise UsageError(
            "cuda-path names a folder of the base image, and no known one has CUDA",
            hint="--base with an image that has CUDA, cuDNN and NCCL",
        )
    for library, version_there in (("CUDA", request.cuda), ("cuDNN", request.cudnn)):
        if not version_there:
            raise UsageError(
                f"the version of {library} in cuda-path is not known", hint="name both: --cuda 12.8.1 --cudnn 9.8.0"
            )
    refuse_unknown(gpus)
    if missing := _missing(request.cuda, gpus):
        raise Unsupported(
            f"CUDA {request.cuda} does not compile for compute capability {_figures(missing)}",
            hint="choose other GPUs (--compute-capabilities)",
        )


def refuse_unknown(gpus: tuple[Capability, ...]) -> None:
    """Raise UsageError for a capability that no CUDA knows, such as 9.9."""
    known = [row.name for row in table().capability]
    if unknown := [gpu for gpu in gpus if gpu.figure not in known]:
        raise UsageError(
            f"no CUDA is known to compile for compute capability {_figures(unknown)}",
            hint=f"one of: {', '.join(known)}",
        )


def _takes(fact: Cuda) -> tuple[str, ...]:
    return (fact.version, *fact.others)


def _missing(cuda: str, gpus: Iterable[Capability]) -> list[Capability]:
    """Return the GPUs that nvcc of that CUDA does not compile for."""
    able = {row.name for row in table().capability if row.covers(cuda)}
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


def _requested(release: str, text: str, library: Literal["CUDA", "cuDNN"]) -> str:
    """Return the version that --cuda or cudnn names, among those that the release takes."""
    fact = releases.cuda(release)
    known = _takes(fact) if library == "CUDA" else (fact.cudnn, *fact.others_cudnn)
    if patch := _newest_patch(known, text):
        return patch
    # Up to 2.17 the base has cuDNN, and configure.py finds any version of that major one.
    if library == "cuDNN" and not fact.hermetic and text.split(".")[0] == fact.cudnn.split(".")[0]:
        return text
    hint = f"it takes {', '.join(known)}"
    if library == "CUDA":
        able = (name for name in releases.others(release) if _newest_patch(_takes(releases.cuda(name)), text))
        tree = "--source plans a newer tree with those that its .bazelrc names"
        unknown = f"no release is known to take CUDA {text} ({tree})"
        hint += "; " + next((f"--release {name} takes CUDA {text}" for name in able), unknown)
    raise Unsupported(f"TensorFlow {release} is not known to build with {library} {text}", hint=hint)


def _advice(release: str, gpus: tuple[Capability, ...], cuda: str = "") -> str:
    """Suggest what compiles for `gpus`: another CUDA of the release, else the nearest other release's."""
    if cuda:
        return f"--cuda {cuda} does; or choose other GPUs (--compute-capabilities)"
    for other in releases.others(release):
        if able := _nearest(releases.cuda(other), gpus):
            which = "first" if version(other) > version(release) else "last"
            return f"--release {other} is the {which} that takes a CUDA which does ({able}); or choose other GPUs"
    cudas = sorted({row.since for row in table().capability if not _missing(row.since, gpus)}, key=version)
    if not cudas:
        return "no CUDA compiles for all of them: choose fewer GPUs"
    return f"CUDA {cudas[0]} is the first that does, and no release is known to take it: choose other GPUs"


def cudnn_version(release: str, gpus: tuple[Capability, ...], cuda: str, requested: str = "") -> str:
    """Return the requested cuDNN, else the one known to work with a CUDA that is not the release's, else its own.

    Raises Unsupported for a CUDA of another major version, which the release's own is not made for.
    """
    if requested:
        return _requested(release, requested, "cuDNN")
    fact = releases.cuda(release)
    named = dict(pair.split("/") for pair in fact.pairs).get(cuda)
    paired = [row.version for row in table().cudnn if cuda != fact.version and row.covers(cuda)]
    known = named or next((name for name in paired if name in fact.others_cudnn), "")
    if not known and version(cuda).major != version(fact.version).major and fact.hermetic:
        hint = f"--cudnn VERSION, one of: {', '.join(fact.others_cudnn)}"
        if missing := _missing(fact.version, gpus):
            which = f"its own CUDA, {fact.version}, does not compile for {_figures(missing)}"
            hint = f"{which}: leave them out (--compute-capabilities); or {hint}"
        raise Unsupported(f"no cuDNN is known to work with CUDA {cuda} in TensorFlow {release}", hint=hint)
    return known or fact.cudnn


def nvcc_config(release: str, gpus: tuple[Capability, ...], compiler: str) -> tuple[str, ...]:
    """Return the config with which nvcc compiles the kernels, and Clang the rest, if Clang cannot compile them.

    .bazelrc's own rbe_linux_cuda_nvcc does the same: cuda_clang, then cuda_nvcc (2025-04 to 2026-06). Raises
    Unsupported if the release has none.
    """
    missing = _not_by_clang(gpus, compiler)
    if missing and not releases.config(NVCC, release):
        raise Unsupported(
            f"{compiler} does not compile for compute capability {_figures(missing)}",
            hint=_other_compiler(release, gpus),
        )
    return (NVCC,) if missing else ()


def _other_compiler(release: str, gpus: tuple[Capability, ...]) -> str:
    """Suggest what compiles for `gpus`: the plan's own compiler, else a Clang; nvcc with GCC may be known to fail."""
    if not (missing := _not_by_clang(gpus, releases.compiler(release))):
        return "leave out --compiler: the plan takes one that does"
    first = {row.name: row.clang for row in table().capability}
    needed = [first[gpu.figure] for gpu in missing]
    return f"--compiler clang-{max(needed)}, or newer" if all(needed) else "choose other GPUs (--compute-capabilities)"


def _not_by_clang(gpus: tuple[Capability, ...], compiler: str) -> list[Capability]:
    """Return the GPUs that this Clang cannot compile for; none of GCC, which never compiles for them."""
    name, _, major = compiler.partition("-")
    first = {row.name: row.clang for row in table().capability}
    return [gpu for gpu in gpus if name == "clang" and not 0 < first[gpu.figure] <= int(major)]


def by_nvcc(gpus: tuple[Capability, ...], compiler: str) -> bool:
    """Whether nvcc compiles the kernels for these GPUs in a build with that compiler."""
    return bool(gpus) and (compiler.startswith("gcc") or bool(_not_by_clang(gpus, compiler)))


# --- of a request -----------------------------------------------------------------------------------------------------


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
    return parse_capabilities(request.compute_capabilities or own, named="_" in own)


def of_build(
    request: Request, target: str, release: str, gpus: tuple[Capability, ...], compiler: str, *, own_place: bool
) -> tuple[str, str]:
    """Return the CUDA and the cuDNN to compile with; "" for a target without CUDA.

    `own_place`: it is compiled on a base that the user named, or on a machine. Only those have a CUDA.
    """
    if not targets.get(target).cuda:
        given = {"--cuda": request.cuda, "cudnn": request.cudnn, "cuda-path": request.cuda_path}
        if name := next((name for name, value in given.items() if value), ""):
            raise UsageError(f"{name} is for GPUs, and --target {target} is not", hint=targets.options("cuda"))
        return "", ""
    if request.cuda_path:
        refuse_installed(request, release, gpus, own_place=own_place)
        return request.cuda, request.cudnn
    version_of_cuda = cuda_version(release, gpus, request.cuda)
    nvcc_config(release, gpus, compiler)
    return version_of_cuda, cudnn_version(release, gpus, version_of_cuda, request.cudnn)


def likely(request: Request, target: str, release: str, gpus: tuple[Capability, ...]) -> str:
    """Return the CUDA that `of_build` will return for any compiler; "" where it has none, or refuses the request."""
    if not targets.get(target).cuda:
        return ""
    return request.cuda or _nearest(releases.cuda(release), gpus)


def notes(release: str, gpus: tuple[Capability, ...], compiler: str, cuda: str, *, installed: bool) -> Iterator[str]:
    """Yield notes on a CUDA that is not the release's own, and on nvcc. `installed`: it is the user's own."""
    own = releases.cuda(release)
    if installed and not _newest_patch(_takes(own), cuda):
        yield f"not certain: that TensorFlow {release} builds with CUDA {cuda}"
    elif not installed and cuda != own.version:
        if missing := _missing(own.version, gpus):
            yield f"CUDA {cuda} is taken: the release's own, {own.version}, does not compile for {_figures(missing)}"
        named = any(pair.startswith(f"{cuda}/") for pair in own.pairs)
        of = "" if releases.known(release) else f"of {releases.nearest(release)}: "
        evidence = "its .bazelrc names that CUDA" if named else f"{of}{own.evidence}"
        yield f"not certain: that TensorFlow {release} builds with CUDA {cuda}; {evidence}"
    if missing := _not_by_clang(gpus, compiler):
        yield f"nvcc compiles the kernels (--config={NVCC}): {compiler} cannot for {_figures(missing)}"


def installed_answers(request: Request) -> dict[str, str]:
    """Return the answers for configure.py that name the user's own CUDA; {} without one."""
    if not request.cuda_path:
        return {}
    folders = request.cuda_path.split(",")
    return dict(zip(OWN_PATHS, folders * 3 if len(folders) == 1 else folders, strict=True))
