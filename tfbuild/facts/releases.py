"""Look-ups of facts about a TensorFlow release: the typed view on facts/releases.toml.

An uncertain fact raises Unsupported, with the candidates and the option that forces a choice; an unknown release
raises Unsupported, with the nearest ones. Nothing here guesses.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

import msgspec
from packaging.version import Version

from tfbuild import facts
from tfbuild.errors import Unsupported
from tfbuild.facts import guard as guards
from tfbuild.facts import targets
from tfbuild.facts.release_table import (
    UNCERTAIN,
    Cuda,
    KnownCompiler,
    Package,
    RangeRow,
    Release,
    Step,
    Threading,
    WheelTarget,
    base,
    table,
    version,
)

R = TypeVar("R", bound=RangeRow)
DEFAULT_COMPILER = "gcc-12"
# A release, a candidate and a nightly, as pip and as TensorFlow spell them.
NEWER = re.compile(r"\d\.\d{1,3}(\.\d{1,3}([-.]?(rc\d{1,2}|dev\d{0,8}))?)?", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class OfficialWheel:
    """An official wheel on PyPI. `flags` and `compiler` are empty where it is not known how it was compiled."""

    release: str
    arch: str
    pythons: tuple[str, ...]
    features: tuple[str, ...]
    flags: tuple[str, ...]
    compiler: str
    onednn: bool
    cpu: str
    gpu: str

    def requirement(self, release: str, target: str) -> str:
        """Return the requirement for pip; raises Unsupported if no official wheel is for that target."""
        wanted = targets.get(target)
        name = wanted.column(self.cpu, self.gpu)
        if not name:
            raise Unsupported(
                f"no official {self.arch} wheel of TensorFlow {release} is for {wanted.title}",
                hint="build it from source",
            )
        if version(release).is_devrelease:
            own, bracket, extras = name.partition("[")
            row = next(row for row in table().nightly if row.name == own and row.covers(release))
            name = f"{row.nightly}{bracket}{extras}"
        return f"{name}=={release}"


# --- releases --------------------------------------------------------------------------------------------------------


def releases() -> tuple[Release, ...]:
    """Return all releases, oldest first."""
    return table().release


@cache
def newest_first() -> tuple[str, ...]:
    """Return the versions of all releases, newest first."""
    return tuple(row.version for row in reversed(releases()))


def get(release: str) -> Release:
    """Return the release of that exact version, known or `newer`; raises Unsupported."""
    if row := _by_version().get(release):
        return row
    if release and newer(release) == release:
        return Release(version=release, sure="newer")
    raise Unsupported(f"unknown TensorFlow release {release!r}", hint=f"one of: {', '.join(newest_first())}")


def known(release: str) -> bool:
    """Whether the facts have the release itself; others stand in for a newer one, a candidate and a nightly."""
    return release in _by_version()


def newer(text: str) -> str:
    """Return the release that `text` means if it is newer than the facts, a candidate or a nightly; else ""."""
    if not NEWER.fullmatch(text):
        return ""
    number = version(text)
    name = str(number) if text.count(".") > 1 else f"{number}.0"
    final = base(name)
    unknown = final > version(newest_first()[0]) or (number.is_prerelease and known(str(final)))
    return name if unknown and final < version(table().known_until) else ""


def nearest(release: str) -> str:
    """Return the newest known release that is not newer than `release`, whose facts stand in for its own."""
    return next(name for name in newest_first() if version(name) <= base(release))


def release_of_wheel(number: Version) -> str:
    """Return the release that a wheel's version means: without ".post1" and a local part, with "rc0"."""
    return number.public if number.is_prerelease else number.base_version


@cache
def _by_version() -> dict[str, Release]:
    return {row.version: row for row in releases()}


def another(release: str) -> str:
    """Return "a newer release", for a hint, or "an older release" where there is none."""
    return "an older release" if release == newest_first()[0] else "a newer release"


# --- one fact of one release -----------------------------------------------------------------------------------------


def rows(among: Iterable[R], release: str, key: str | None = None) -> tuple[R, ...]:
    """Return the rows that hold for a release (and have `key`), in the file's order.

    Raises Unsupported if the release does not exist.
    """
    get(release)
    rows = among if key is None else (row for row in among if row.key == key)
    return tuple([row for row in rows if row.covers(release)])


def row(among: Iterable[R], release: str, key: str | None = None) -> R:
    """Return the one row that holds; raises Unsupported if there is none."""
    matches = rows(among, release, key)
    if len(matches) != 1:
        raise Unsupported(
            f"there is no such fact ({key or 'any'}) for TensorFlow {release}", hint=f"take {another(release)}"
        )
    return matches[0]


def pythons(release: str) -> tuple[str, ...]:
    """Return the Pythons that a build from source supports, oldest first."""
    return row(table().python, release).versions


def bazel(release: str, arch: str = "x86_64") -> str:
    """Return the Bazel to build with; raises Unsupported with the candidates if it is not certain."""
    fact = row(table().bazel, release)
    if not fact.version:
        raise Unsupported(
            f"which Bazel TensorFlow {release} needs is not certain: {fact.source}",
            hint="choose one: " + " or ".join(f"--bazel {name}" for name in fact.candidates),
        )
    return (arch == "aarch64" and fact.aarch64) or fact.version


def compilers(release: str) -> tuple[KnownCompiler, ...]:
    """Return the compilers that can build the release, the surest first."""
    order = ("wheel", "measured", "packagers", *UNCERTAIN)
    return tuple(sorted(rows(table().known_compiler, release), key=lambda known: order.index(known.sure)))


def compiler(release: str) -> str:
    """Return the surest compiler of a release, such as "clang-18"; Debian 12's own for no release ("")."""
    return compilers(release)[0].name if release else DEFAULT_COMPILER


def wheel_compiler(release: str) -> str:
    """Return the compiler of the official wheel ("clang-18.1.8"), or "" if that wheel was not looked at."""
    fact = row(table().compiler, release)
    return fact.wheel if release in fact.measured else ""


def wheel(release: str) -> WheelTarget:
    """Return how the wheel is made."""
    return row(table().wheel_target, release)


def wheel_target(release: str) -> str:
    """Return the Bazel target of the wheel."""
    return wheel(release).target


def wheel_flags(release: str, target: str, arch: str) -> tuple[str, ...]:
    """Return what else the official build passes to Bazel."""
    return tuple(
        row.flag
        for row in rows(table().wheel_flag, release)
        if row.arch in ("", arch) and (not row.targets or target in row.targets)
    )


def llvm(release: str) -> str:
    """Return the LLVM that TensorFlow is linked with ("18.0.0git"), or "" if that was not looked at."""
    return next((row.version for row in table().llvm if row.covers(release)), "")


def python_flag(release: str, python: str) -> str:
    """Return the Bazel flag that chooses the hermetic Python, or "" before 2.14, which uses the builder's Python."""
    variables = rows(table().hermetic_python, release)
    return f"--repo_env={variables[0].variable}={python}" if variables else ""


def hermetic(release: str) -> bool:
    """Whether Bazel downloads the Python that it builds for; otherwise it uses the builder's."""
    return bool(rows(table().hermetic_python, release))


def host_tools(release: str) -> tuple[str, ...]:
    """Return the programs that the tree calls besides a compiler; Debian's packages have the same names."""
    return tuple(tool.name for tool in rows(table().host_tool, release))


def constraints(release: str, step: Step = "run") -> tuple[str, ...]:
    """Return the pip constraints that the wheel needs to work today ("run") or to be built ("build")."""
    return tuple(
        constraint.requirement for constraint in rows(table().constraint, release) if step in constraint.applies
    )


def cuda(release: str) -> Cuda:
    """Return the release's own CUDA and cuDNN, and the others that it takes."""
    return row(table().cuda, release)


def cuda_from_base(release: str, target: str) -> bool:
    """Whether a compile takes CUDA from its base image (up to 2.17). Only a base that the user names can have it."""
    return targets.get(target).cuda and not cuda(release).hermetic


# --- configs ---------------------------------------------------------------------------------------------------------


def config(name: str, release: str) -> bool | None:
    """Whether .bazelrc has --config=NAME; None where that is not known."""
    get(release)
    of_name = [row for row in table().config if row.name == name]
    if not of_name:
        return None
    matches = [row for row in of_name if row.covers(release)]
    return None if any(row.sure == "unknown" for row in matches) else bool(matches)


def threading_row(release: str, arch: str) -> Threading:
    """Return how oneDNN runs in a build for `arch`; raises Unsupported if that has no oneDNN."""
    matches = rows(table().threading, release, arch)
    if not matches:
        raise Unsupported(
            f"TensorFlow {release} has no oneDNN build for {arch}",
            hint=f"take {another(release)}, or --target cpu",
        )
    return matches[0]


def thread_env(threading: str) -> tuple[tuple[str, str], ...]:
    """Return the variables that an image sets for that runtime unless the user has."""
    return tuple((row.variable, row.value) for row in table().thread_env if row.threading == threading)


def onednn_env(release: str) -> tuple[tuple[str, str], ...]:
    """Return the variables that switch oneDNN on in an image that promises it; () from `known_until` on."""
    known = table().onednn_env if version(release) < version(table().known_until) else ()
    return tuple((row.variable, row.value) for row in known if row.covers(release))


# --- the official wheel ----------------------------------------------------------------------------------------------


@cache
def official_wheel(release: str, arch: str) -> OfficialWheel:
    """Return the wheel on PyPI; raises Unsupported if that architecture has none."""
    matches = rows(table().official_wheel, release, arch)
    if not matches:
        first = _first_official(arch)
        raise Unsupported(
            f"TensorFlow {release} has no official wheel for {arch}",
            hint=f"the first with one is {first}" if first else "build it from source: leave out --wheel official",
        )
    fact = matches[0]
    compiler = wheel_compiler(release) if arch == "x86_64" else ""
    return OfficialWheel(
        release=release,
        arch=arch,
        pythons=official_pythons(release, arch),
        features=fact.features,
        flags=fact.flags,
        compiler=compiler.partition(".")[0],
        onednn=fact.onednn,
        cpu=fact.cpu,
        gpu=fact.gpu,
    )


@cache
def wheel_digests() -> dict[str, dict[str, str]]:
    """By requirement, then by Python and architecture; `python -m tests.facts.digests` reads them from PyPI's API."""
    text = (facts.FOLDER / "wheel_digests.json").read_bytes()
    return msgspec.json.decode(text, type=dict[str, dict[str, str]])


def official_pythons(release: str, arch: str) -> tuple[str, ...]:
    """Return the Pythons from 3.5 on that have a wheel on PyPI, oldest first; () if that architecture has none.

    Before the digests of a release are recorded, they are those of the release before it.
    """
    for name in (name for name in newest_first() if version(name) <= base(release)):
        wheels = {f"{row.cpu}=={name}" for row in rows(table().official_wheel, name, arch)}
        places = [place.split() for wheel in wheels for place in wheel_digests().get(wheel, ())]
        if (pythons := tuple(python for python, platform in places if platform == arch)) or not wheels:
            return pythons
    return ()


@cache
def _first_official(arch: str) -> str:
    return next((other.version for other in releases() if rows(table().official_wheel, other.version, arch)), "")


def newest_official(arch: str, python: str) -> str:
    """Return the newest release with an official wheel for that architecture and Python."""
    known: set[str] = set()
    for release in newest_first():
        pythons = official_pythons(release, arch)
        if python in pythons:
            return release
        known.update(pythons)
    raise Unsupported(
        f"no official {arch} wheel supports Python {python!r}",
        hint=f"the newest is --python {max(known, key=version)}" if known else "build it from source",
    )


def package(release: str) -> Package:
    """Return where a wheel has TensorFlow's libraries; of an unknown release, or "", where the newest one has them."""
    return next((row for row in table().package if release and row.covers(release)), table().package[-1])


# --- TensorFlow's own message ----------------------------------------------------------------------------------------


def guard_names(release: str) -> tuple[str, ...]:
    """Return the features that the guard of a release knows, as its message names and orders them."""
    get(release)
    return tuple(known.name for known in guards.known(release))


def guard_spelling(release: str, features: Iterable[str]) -> tuple[str, ...]:
    """Return canonical features as that message names and orders them, without those that it does not know."""
    get(release)
    return guards.spelling(release, frozenset(features))
