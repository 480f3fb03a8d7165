"""What is true of each TensorFlow release: the typed view on facts/releases.toml.

A fact that is not known for certain raises UncertainFact, with the candidates and the option that forces a choice;
a release that does not exist raises UnknownRelease with the nearest ones. Nothing here guesses.
"""

from bisect import bisect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import TypeVar

from packaging.version import InvalidVersion

from tfbuild.errors import TfbuildError, UncertainFact, UnknownCompiler, UnknownPython, UnknownRelease, UsageError
from tfbuild.facts import guard as guards
from tfbuild.facts import targets
from tfbuild.facts.release_table import (
    UNCERTAIN,
    Config,
    Cuda,
    KnownCompiler,
    Package,
    RangeRow,
    Release,
    ReleaseGuard,
    Step,
    Threading,
    WheelTarget,
    table,
    version,
)

R = TypeVar("R", bound=RangeRow)
DEFAULT_COMPILER = "gcc-12"


@dataclass(frozen=True, kw_only=True)
class OfficialWheel:
    """An official wheel on PyPI. `flags` is empty where it is not known how `features` got in; `compiler` likewise."""

    release: str
    arch: str
    pythons: tuple[str, ...]
    features: tuple[str, ...]
    flags: tuple[str, ...]
    compiler: str
    onednn: bool
    manylinux: str
    cpu: str
    gpu: str

    def requirement(self, release: str, target: str) -> str:
        """What pip is asked for; UnknownRelease where no official wheel is for that target."""
        row = targets.get(target)
        name = row.column(self.cpu, self.gpu)
        if not name:
            raise UnknownRelease(
                f"no official {self.arch} wheel of TensorFlow {release} is for {row.title}", hint="build it from source"
            )
        return f"{name}=={release}"


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where a builder image has what configure.py asks for."""

    python: str = "/usr/bin/python3"
    clang: str = "/usr/bin/clang"
    gcc: str = "/usr/bin/gcc"
    cuda_path: str = "/usr/local/cuda"


# --- releases --------------------------------------------------------------------------------------------------------


def releases() -> tuple[Release, ...]:
    """All releases, oldest first."""
    return table().release


def newest_first() -> tuple[str, ...]:
    return tuple(row.version for row in reversed(releases()))


def get(release: str) -> Release:
    """The release of that exact version; UnknownRelease with the nearest ones."""
    found = _by_version().get(release)
    if found is None:
        raise UnknownRelease(f"unknown TensorFlow release {release!r}", hint=f"nearest: {', '.join(_nearest(release))}")
    return found


@cache
def _by_version() -> dict[str, Release]:
    return {row.version: row for row in releases()}


def find(asked: str) -> str:
    """The release that `asked` means: "2.21.0", "v2.21.0", or "2.21" for its newest patch release."""
    wanted = asked.strip().removeprefix("v")
    if wanted in _by_version():
        return wanted
    patches = [row.version for row in releases() if row.version.startswith(f"{wanted}.") and wanted.count(".") == 1]
    return patches[-1] if patches else get(wanted).version


def _nearest(asked: str) -> list[str]:
    known = [row.version for row in releases()]
    try:
        place = bisect([version(name) for name in known], version(asked))
    except InvalidVersion:
        return get_close_matches(asked, known, n=3, cutoff=0.5) or known[-3:]
    return known[max(0, place - 2) : place + 2]


def newest(plan: Callable[[str], object]) -> str:
    """The newest release for which `plan` refuses nothing; raises its refusal of the newest one where there is none."""
    refusals: list[TfbuildError] = []
    for release in newest_first():
        try:
            plan(release)
        except (UncertainFact, UnknownRelease, UnknownPython, UnknownCompiler) as refusal:
            refusals.append(refusal)
        else:
            return release
    raise refusals[0]


# --- one fact of one release -----------------------------------------------------------------------------------------


def rows(among: Iterable[R], release: str, key: str | None = None) -> tuple[R, ...]:
    """The rows that hold for a release (and have that key), in the file's order; UnknownRelease where it is none."""
    get(release)
    return tuple(row for row in among if key in (None, row.key) and row.covers(release))


def row(among: Iterable[R], release: str, key: str | None = None) -> R:
    """The one row that holds; UnknownRelease where no row does."""
    found = rows(among, release, key)
    if len(found) != 1:
        raise UnknownRelease(
            f"there is no such fact ({key or 'any'}) for TensorFlow {release}", hint="take a newer release"
        )
    return found[0]


def pythons(release: str) -> tuple[str, ...]:
    """The Pythons that a build from source can be for, oldest first."""
    return row(table().python, release).versions


def bazel(release: str, arch: str = "x86_64") -> str:
    """The Bazel to build with; UncertainFact names the candidates."""
    found = row(table().bazel, release)
    if not found.version:
        raise UncertainFact(
            f"which Bazel TensorFlow {release} needs is not certain: {found.source}",
            hint="choose one: " + " or ".join(f"--bazel {name}" for name in found.candidates),
        )
    return (arch == "aarch64" and found.aarch64) or found.version


def compilers(release: str) -> tuple[KnownCompiler, ...]:
    """What the release can be built with, the surest first."""
    order = ("wheel", "measured", "packagers", *UNCERTAIN)
    return tuple(sorted(rows(table().known_compiler, release), key=lambda found: order.index(found.sure)))


def compiler(release: str) -> str:
    """The surest compiler of a release: "clang-18"; Debian 12's own where none is named ("")."""
    return compilers(release)[0].name if release else DEFAULT_COMPILER


def wheel_compiler(release: str) -> str:
    """What the official wheel was built with ("clang-18.1.8"), "" where that wheel was not looked at."""
    found = row(table().compiler, release)
    return found.wheel if release in found.measured else ""


def builder_image(release: str) -> str:
    """The system of TensorFlow's own build image: "ubuntu:22.04"."""
    found = row(table().builder, release)
    if not found.image:
        raise UncertainFact(
            f"the system that TensorFlow {release} is built on is not certain: {found.source}",
            hint="choose one: " + " or ".join(f"--base {name}" for name in found.candidates),
        )
    return found.image


def wheel(release: str) -> WheelTarget:
    """How the wheel is made."""
    return row(table().wheel_target, release)


def wheel_target(release: str) -> str:
    return wheel(release).target


def python_flag(release: str, python: str) -> str:
    """The Bazel flag that chooses the hermetic Python; "" where the builder's own Python is used (before 2.14)."""
    found = rows(table().hermetic_python, release)
    return f"--repo_env={found[0].variable}={python}" if found else ""


def hermetic(release: str) -> bool:
    """Whether Bazel downloads the Python that it builds for; else it takes the builder's own."""
    return bool(rows(table().hermetic_python, release))


def host_tools(release: str) -> tuple[str, ...]:
    """Programs that the tree calls besides a compiler; Debian's packages have their names."""
    return tuple(found.name for found in rows(table().host_tool, release))


def constraints(release: str, step: Step = "run") -> tuple[str, ...]:
    """pip constraints without which the wheel does not work today ("run") or cannot be built ("build")."""
    return tuple(found.requirement for found in rows(table().constraint, release) if step in found.applies)


def cuda(release: str) -> Cuda:
    return row(table().cuda, release)


def cuda_from_base(release: str, target: str) -> bool:
    """Whether a compile takes CUDA from its base image (up to 2.17), which only one that the user names can have."""
    return targets.get(target).cuda and not cuda(release).hermetic


# --- configs ---------------------------------------------------------------------------------------------------------


def config(name: str, release: str) -> bool | None:
    """Whether .bazelrc has --config=NAME; None where that is not known."""
    get(release)
    known = [found for found in table().config if found.name == name]
    if not known:
        return None
    found = [found for found in known if found.covers(release)]
    return None if any(one.sure == "unknown" for one in found) else bool(found)


def threading(release: str, arch: str, asked: str = "") -> str:
    """ "openmp" or "threadpool": what oneDNN runs on in a build that promises it; `asked` overrides the choice."""
    found = _threading(release, arch)
    fitting = [name for name, by in (("openmp", found.openmp), ("threadpool", found.threadpool)) if by]
    if asked and asked not in ("openmp", "threadpool"):
        raise UsageError(f"unknown threading {asked!r}", hint="one of: openmp, threadpool")
    if asked and asked not in fitting:
        raise UnknownRelease(
            f"TensorFlow {release} has no {arch} build with oneDNN on {asked}", hint=f"it has: {', '.join(fitting)}"
        )
    if not asked and not found.default:
        raise UncertainFact(
            f"what oneDNN runs on in TensorFlow {release} for {arch} is not certain: {found.source}",
            hint=" or ".join(f"--threading {name}" for name in fitting),
        )
    return asked or found.default


def _threading(release: str, arch: str) -> Threading:
    found = rows(table().threading, release, arch)
    if not found:
        raise UnknownRelease(
            f"TensorFlow {release} has no oneDNN build for {arch}", hint="take a newer release, or --target cpu"
        )
    return found[0]


def thread_env(threading: str) -> tuple[tuple[str, str], ...]:
    """What an image sets for that runtime where the user has not."""
    return tuple((found.variable, found.value) for found in table().thread_env if found.threading == threading)


def onednn_env(release: str) -> tuple[tuple[str, str], ...]:
    """What an image that promises oneDNN sets so that it is on; () from `known_until` on."""
    there = table().onednn_env if version(release) < version(table().known_until) else ()
    return tuple((found.variable, found.value) for found in there if found.covers(release))


def configs(release: str, target: str, arch: str, threading: str) -> tuple[str, ...]:
    """The configs that make `target`, without those that `spelled_out` stands for."""
    return tuple(name for name in _wanted(release, target, arch, threading) if _certain(name, release))


def spelled_out(release: str, target: str, arch: str, threading: str) -> tuple[Config, ...]:
    """The configs of `target` whose flags are passed instead: it is not known whether the release still has them."""
    wanted = _wanted(release, target, arch, threading)
    return tuple(_uncertain(name, release) for name in wanted if not _certain(name, release))


def _wanted(release: str, target: str, arch: str, threading: str) -> tuple[str, ...]:
    row = targets.get(target)
    onednn: tuple[str, ...] = ()
    if row.onednn:
        found = _threading(release, arch)
        onednn = (found.openmp if threading == "openmp" else found.threadpool,)
    there = (name for name in row.configs_unless_gone if config(name, release) is not False)
    return (*onednn, *row.configs, *there)


def _certain(name: str, release: str) -> bool:
    """Whether the release is known to have that config; UnknownRelease where it is known to have none."""
    there = config(name, release)
    if there is False:
        raise UnknownRelease(f"TensorFlow {release} has no --config={name}", hint="take a newer release")
    return there is True


def _uncertain(name: str, release: str) -> Config:
    """The row of a config that may be there; UncertainFact where its flags would be another guess."""
    found = row(table().config, release, name)
    if not found.expands:
        older = next(one for one in newest_first() if config(name, one))
        raise UncertainFact(
            f"whether TensorFlow {release} has --config={name} is not certain ({found.note})",
            hint=f"take --release {older}, or try it all the same with --target cpu --config {name}",
        )
    return found


def configure_env(
    release: str,
    target: str,
    *,
    compiler: str = "",
    places: Places | None = None,
    capabilities: str = "",
    cuda: str = "",
    cudnn: str = "",
) -> tuple[tuple[str, str], ...]:
    """The variables with which configure.py asks nothing, in the order of its questions.

    `compiler`: "clang-18", "gcc-12"; `capabilities`: "8.0,9.0"; `cuda`: "12.8.1"; the release's own where empty.
    """
    name = (compiler or compilers(release)[0].name).partition("-")[0]
    wanted = targets.get(target)
    fitting = [found for found in rows(table().configure, release) if found.cuda in (None, wanted.cuda)]
    card = row(table().cuda, release)
    # Up to 2.17 the library is looked for by its major version: what the CUDA image has is at most as precise.
    exact = card.hermetic or cudnn not in ("", card.cudnn)
    values = {
        **{field: getattr(places or Places(), field) for field in Places.__dataclass_fields__},
        "cuda": cuda or card.version,
        "cudnn": (cudnn or card.cudnn) if exact else card.cudnn.partition(".")[0],
        "capabilities": capabilities or card.capabilities,
    }
    return tuple(
        (one.variable, wanted.answers.get(one.variable, one.value).format(**values))
        for one in fitting
        if one.compiler in ("", name)
    )


def repo_env(release: str, env: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """The Bazel flags for the variables of `env` that a config of the tree would set otherwise after configure.py."""
    named = {one.variable for one in rows(table().configure, release) if one.overridden}
    return tuple(f"--repo_env={variable}={value}" for variable, value in env if variable in named)


# --- the official wheel ----------------------------------------------------------------------------------------------


def official_wheel(release: str, arch: str) -> OfficialWheel:
    """The wheel on PyPI; UnknownRelease where that architecture has none."""
    found = rows(table().official_wheel, release, arch)
    if not found:
        first = next((one.version for one in releases() if rows(table().official_wheel, one.version, arch)), "")
        raise UnknownRelease(
            f"TensorFlow {release} has no official wheel for {arch}",
            hint=f"the first with one is {first}" if first else "build it from source: leave out --wheel official",
        )
    made_by = wheel_compiler(release) if arch == "x86_64" else ""
    return OfficialWheel(
        release=release,
        arch=arch,
        pythons=row(table().official_python, release, arch).versions,
        features=found[0].features,
        flags=found[0].flags,
        compiler=made_by.partition(".")[0],
        onednn=found[0].onednn,
        manylinux=found[0].manylinux,
        cpu=found[0].cpu,
        gpu=found[0].gpu,
    )


def newest_official(arch: str, python: str) -> str:
    """The newest release with an official wheel for that architecture and Python."""
    known: set[str] = set()
    for release in newest_first():
        for found in rows(table().official_python, release, arch):
            if python in found.versions:
                return release
            known.update(found.versions)
    raise UnknownPython(
        f"no official {arch} wheel is for Python {python!r}",
        hint=f"one of: {', '.join(sorted(known, key=version))}" if known else "build it from source",
    )


def package(release: str) -> Package:
    """Where a wheel has TensorFlow's libraries; of a release that is not known ("", too), as in the newest."""
    return next((found for found in table().package if release and found.covers(release)), table().package[-1])


# --- TensorFlow's own message ----------------------------------------------------------------------------------------


def guard(release: str) -> ReleaseGuard:
    return row(table().guard, release)


def guard_names(release: str) -> tuple[str, ...]:
    """The features that the guard of a release knows, as its message names and orders them."""
    get(release)
    return tuple(known.name for known in guards.known(release))


def guard_spelling(release: str, features: Iterable[str]) -> tuple[str, ...]:
    """Canonical features as that message names and orders them; those that it does not know go."""
    get(release)
    return guards.spelling(release, frozenset(features))
