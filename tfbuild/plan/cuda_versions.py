"""Which CUDA and cuDNN a build takes, given the GPUs it compiles for: the typed view on facts/cuda.toml.

The ones asked for, else the release's own, else the nearest of those the release takes that compile for the GPUs. What
no CUDA of the release compiles for is refused, with a release and a CUDA that can.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

import msgspec

from tfbuild import facts
from tfbuild.errors import UnknownCompiler, UnknownRelease, UsageError
from tfbuild.facts import Facts, releases
from tfbuild.facts.release_table import Cuda, version
from tfbuild.plan.compute_capability import Capability

VERSION = re.compile(r"\d{1,2}\.\d{1,2}(\.\d{1,3}){0,2}", re.ASCII)
NVCC = "cuda_nvcc"


class Span(Facts, frozen=True, kw_only=True):
    """A fact that holds for the CUDAs in [since, before)."""

    since: str = msgspec.field(name="from")
    before: str

    def covers(self, cuda: str) -> bool:
        return version(self.since) <= version(cuda) < version(self.before)


class CapabilityRow(Span, frozen=True, kw_only=True):
    """The CUDAs whose nvcc compiles for a capability, and the first Clang that does (0: none known)."""

    name: str
    clang: int


class CudnnRow(Span, frozen=True, kw_only=True):
    version: str
    source: str


class CudaTable(Facts, frozen=True, kw_only=True):
    capability: tuple[CapabilityRow, ...]
    cudnn: tuple[CudnnRow, ...]


@dataclass(frozen=True, kw_only=True)
class CudaChoice:
    """`configs`: Bazel configs that the choice needs; `notes`: what the user should know about it."""

    cuda: str
    cudnn: str
    configs: tuple[str, ...]
    notes: tuple[str, ...]


@cache
def table() -> CudaTable:
    return facts.load("cuda", CudaTable)


def compiles(cuda: str, gpus: tuple[Capability, ...]) -> bool:
    """Whether nvcc of that CUDA compiles for all of them."""
    return not _missing(cuda, gpus)


def own(release: str) -> CudaChoice:
    card = releases.cuda(release)
    return CudaChoice(cuda=card.version, cudnn=card.cudnn, configs=(), notes=())


def choose(
    release: str, gpus: tuple[Capability, ...], *, compiler: str = "", cuda: str = "", cudnn: str = ""
) -> CudaChoice:
    """The CUDA and cuDNN of a build of `release` for `gpus`; UnknownRelease where none fits."""
    refuse_unknown(gpus)
    card = releases.cuda(release)
    taken = _asked(release, cuda, "CUDA") if cuda else _nearest(card, gpus)
    if not taken:
        raise UnknownRelease(
            f"none of the CUDAs that TensorFlow {release} takes ({', '.join(_takes(card))}) compiles for compute "
            f"capability {_figures(_impossible(card, gpus))}",
            hint=_advice(release, gpus),
        )
    if missing := _missing(taken, gpus):
        raise UnknownRelease(
            f"CUDA {taken} does not compile for compute capability {_figures(missing)}",
            hint=_advice(release, gpus, cuda=_nearest(card, gpus)),
        )
    configs, notes = _device_compiler(release, gpus, compiler)
    return CudaChoice(
        cuda=taken,
        cudnn=_cudnn(release, card, taken, cudnn),
        configs=configs,
        notes=(*_newer(release, card, taken, gpus), *notes),
    )


def refuse_unknown(gpus: tuple[Capability, ...]) -> None:
    """UsageError for a capability that no CUDA knows, such as 9.9."""
    known = [row.name for row in table().capability]
    if unknown := [gpu for gpu in gpus if gpu.figure not in known]:
        raise UsageError(
            f"no CUDA is known to compile for compute capability {_figures(unknown)}",
            hint=f"one of: {', '.join(known)}",
        )


def _takes(card: Cuda) -> tuple[str, ...]:
    return (card.version, *card.others)


def _missing(cuda: str, gpus: tuple[Capability, ...]) -> list[Capability]:
    able = {row.name for row in table().capability if row.covers(cuda)}
    return [gpu for gpu in gpus if gpu.figure not in able]


def _impossible(card: Cuda, gpus: tuple[Capability, ...]) -> tuple[Capability, ...]:
    """Those that no CUDA of the release compiles for; all of `gpus` where only their combination is the trouble."""
    return tuple(gpu for gpu in gpus if not any(compiles(one, (gpu,)) for one in _takes(card))) or gpus


def _figures(gpus: Iterable[Capability]) -> str:
    return ", ".join(dict.fromkeys(gpu.figure for gpu in gpus))


def _nearest(card: Cuda, gpus: tuple[Capability, ...]) -> str:
    """The release's own CUDA, else the newest patch of the first minor version that compiles for `gpus`; "" if none."""
    able = [one for one in _takes(card) if compiles(one, gpus)]
    return able[0] if card.version in able else _newest_patch(able, _minor(able[0])) if able else ""


def _minor(cuda: str) -> str:
    return ".".join(cuda.split(".")[:2])


def _newest_patch(among: Iterable[str], asked: str) -> str:
    """The newest of those that are `asked` or a patch of it; "" where none is."""
    return max((one for one in among if f"{one}.".startswith(f"{asked}.")), key=version, default="")


def _asked(release: str, text: str, what: str) -> str:
    """The version that --cuda or --cudnn names among those that the release takes."""
    if not VERSION.fullmatch(text):
        raise UsageError(
            f"{text!r} is no {what} version", hint=f"--{what.lower()} {'12.8' if what == 'CUDA' else '9.8'}"
        )
    card = releases.cuda(release)
    known = _takes(card) if what == "CUDA" else (card.cudnn, *card.others_cudnn)
    if found := _newest_patch(known, text):
        return found
    # Up to 2.17 the base has cuDNN, and configure.py finds what it has of that major version.
    if what == "cuDNN" and not card.hermetic and text.split(".")[0] == card.cudnn.split(".")[0]:
        return text
    more = _release_with(release, text) if what == "CUDA" else ""
    raise UnknownRelease(
        f"TensorFlow {release} is not known to build with {what} {text}", hint=f"it takes {', '.join(known)}{more}"
    )


def _release_with(release: str, cuda: str) -> str:
    found = next((one for one in _others(release) if _newest_patch(_takes(releases.cuda(one)), cuda)), "")
    return f"; --release {found} takes CUDA {cuda}" if found else f"; no release is known to take CUDA {cuda}"


def _others(release: str) -> tuple[str, ...]:
    """The other releases: newer ones oldest first, then older ones newest first."""
    names = [row.version for row in releases.releases()]
    place = names.index(release)
    return (*names[place + 1 :], *reversed(names[:place]))


def _advice(release: str, gpus: tuple[Capability, ...], cuda: str = "") -> str:
    """Where kernels for `gpus` can be compiled: by another CUDA of the release, else by the nearest other release's."""
    if cuda:
        return f"--cuda {cuda}, which does; or ask for other GPUs (--compute-capabilities)"
    for other in _others(release):
        if found := _nearest(releases.cuda(other), gpus):
            which = "first" if version(other) > version(release) else "last"
            return f"--release {other} is the {which} that takes a CUDA that does, {found}; or ask for other GPUs"
    able = sorted({row.since for row in table().capability if compiles(row.since, gpus)}, key=version)
    if not able:
        return "no CUDA compiles for all of them: ask for fewer GPUs"
    return f"CUDA {able[0]} is the first that does, and no release is known to take it: ask for other GPUs"


def _cudnn(release: str, card: Cuda, cuda: str, asked: str) -> str:
    """The cuDNN asked for, else the release's own, else the one known to go with another CUDA."""
    if asked:
        return _asked(release, asked, "cuDNN")
    paired = [row.version for row in table().cudnn if cuda != card.version and row.covers(cuda)]
    return next((one for one in paired if one in card.others_cudnn), card.cudnn)


def _newer(release: str, card: Cuda, cuda: str, gpus: tuple[Capability, ...]) -> Iterator[str]:
    if cuda == card.version:
        return
    if missing := _missing(card.version, gpus):
        yield f"CUDA {cuda} is taken: the release's own, {card.version}, does not compile for {_figures(missing)}"
    yield f"not certain: that TensorFlow {release} builds with CUDA {cuda}; {card.evidence}"


def _device_compiler(
    release: str, gpus: tuple[Capability, ...], compiler: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The config and the note of a build whose Clang cannot compile the kernels: nvcc does, with Clang for the rest.

    .bazelrc's own rbe_linux_cuda_nvcc is that: cuda_clang, then cuda_nvcc (2025-04 to 2026-06).
    """
    name, _, major = compiler.partition("-")
    first = {row.name: row.clang for row in table().capability}
    missing = [gpu for gpu in gpus if name == "clang" and not 0 < first[gpu.figure] <= int(major)]
    if not missing:
        return (), ()
    if not releases.config(NVCC, release):
        raise UnknownCompiler(
            f"{compiler} does not compile for compute capability {_figures(missing)}",
            hint="--compiler gcc-N: then nvcc compiles the kernels",
        )
    return (NVCC,), (f"nvcc compiles the kernels (--config={NVCC}): {compiler} cannot for {_figures(missing)}",)
