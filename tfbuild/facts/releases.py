"""Look up facts about a TensorFlow release, in facts/releases.toml, guard.toml and defects.toml; raise Unsupported."""

import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import TypeVar

import msgspec
from packaging.version import Version

from tfbuild import facts
from tfbuild.errors import Unsupported
from tfbuild.facts import Facts, release_table, targets
from tfbuild.facts.release_table import RangeRow, Release, base, table, version

R = TypeVar("R", bound=RangeRow)
# The folder of a wheel with TensorFlow's libraries, and the one of them with the CPU guard.
PACKAGE = "tensorflow"
FRAMEWORK = "libtensorflow_framework.so.2"
# A release, a candidate and a nightly, as pip and as TensorFlow spell them.
NEWER = re.compile(r"(\d\.\d{1,3})(\.\d{1,3})?([-.]?(?:rc\d{1,2}|dev\d{0,8}))?", re.ASCII)


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
    if has_facts(release):
        return Release(version=release, sure="newer")
    raise Unsupported(f"unknown TensorFlow release {release!r}", hint=f"one of: {', '.join(newest_first())}")


def known(release: str) -> bool:
    """Whether the facts include the release itself; a newer one, a candidate or a nightly uses those of another."""
    return release in _by_version()


def has_facts(release: str) -> bool:
    """Whether there are facts for that exact version: its own, or those of another that stand in."""
    return known(release) or (release != "" and newer(release) == release)


def newer(text: str) -> str:
    """Return the release that `text` means ("2.22-rc0": "2.22.0rc0") if the facts lack it but can stand in; else ""."""
    name = _full(text)
    if not name or too_new(text):
        return ""
    final = base(name)
    unknown = final > version(newest_first()[0]) or (version(name).is_prerelease and known(str(final)))
    return name if unknown else ""


def too_new(text: str) -> bool:
    """Whether `text` means a release so new that no other release's facts can stand in for its own."""
    name = _full(text)
    return bool(name) and base(name) >= version(table().known_until)


def _full(text: str) -> str:
    """Return a release with all of its numbers as packaging spells it: 2.22.0rc0 for 2.22-rc0; "" for another text."""
    match = NEWER.fullmatch(text)
    return str(version(f"{match[1]}{match[2] or '.0'}{match[3] or ''}")) if match else ""


def nearest(release: str) -> str:
    """Return the newest known release that is not newer than `release`, whose facts stand in for its own, else ""."""
    return next((name for name in newest_first() if version(name) <= base(release)), "")


def nearest_wheel(release: str) -> str:
    """Return the release whose official wheel stands in for that of `release`: a candidate for it, else the nearest."""
    own = (name for name in table().candidates if base(name) == base(release) and not known(release))
    return next(own, nearest(release))


def release_of_wheel(number: Version) -> str:
    """Return the release that a wheel's version means: without ".post1" and a local part, with "rc0"."""
    return number.public if number.is_prerelease else number.base_version


@cache
def _by_version() -> dict[str, Release]:
    return {row.version: row for row in releases()}


def others(release: str) -> Iterator[str]:
    """Yield the other releases, for hints: newer ones, the oldest first, then older ones, the newest first."""
    yield from (row.version for row in releases() if version(row.version) > version(release))
    yield from (name for name in newest_first() if version(name) < version(release))


# --- one fact of one release -----------------------------------------------------------------------------------------


def rows(among: Iterable[R], release: str, key: str | None = None) -> tuple[R, ...]:
    """Return the rows that hold for a release (and have `key`), in the file's order; raises Unsupported without one."""
    get(release)
    return tuple([row for row in among if key in (None, row.key) and row.covers(release)])


def row(among: Iterable[R], release: str, key: str | None = None) -> R:
    """Return the one row that holds for a release; raises Unsupported if there is none."""
    matches = rows(among, release, key)
    if len(matches) != 1:
        other = next((name for name in others(release) if rows(among, name, key)), "")
        raise Unsupported(
            f"tfbuild has no data on {key or 'this'} for TensorFlow {release}",
            hint=f"--release {other} has it" if other else "",
        )
    return matches[0]


def pythons(release: str) -> tuple[str, ...]:
    """Return the Pythons that a build from source supports, oldest first."""
    return row(table().python, release).versions


def bazel(release: str) -> str:
    """Return the release's own Bazel."""
    return row(table().bazel, release).version


def compilers(release: str) -> tuple[release_table.KnownCompiler, ...]:
    """Return the compilers that built the release and that a base may have, the official wheel's first."""
    known = (known for known in rows(table().known_compiler, release) if not known.absent)
    return tuple(sorted(known, key=lambda known: not known.wheels))


def wheel_compiler(release: str) -> str:
    """Return the compiler of the official x86-64 wheel ("clang-18"), or "" if that wheel was not examined."""
    return next((known.name for known in rows(table().known_compiler, release) if release in known.wheels), "")


def wheel(release: str) -> release_table.WheelTarget:
    """Return the Bazel target of the wheel, and the options that name it."""
    return row(table().wheel_target, release)


def wheel_flags(release: str, target: str, arch: str) -> tuple[str, ...]:
    """Return what else the official build passes to Bazel."""
    return tuple(
        row.flag
        for row in rows(table().wheel_flag, release)
        if row.arch in ("", arch) and (not row.targets or target in row.targets)
    )


def compile_cost(release: str, arch: str = "x86_64", *, cuda: bool = False) -> release_table.CompileCost:
    """Return what a compile takes, as recorded, or estimated from the nearest release that was compiled.

    The estimate: that release's actions, at the rate of the fastest and of the slowest machine that compiled any.
    """
    found = row(table().compile, release)
    if release == found.recorded and arch == "x86_64" and not cuda:
        return found
    wanted = f"{release}{' with CUDA' if cuda else ''}{' for arm64' if arch == 'aarch64' else ''}"
    hours = [other.cpu_hours * found.actions / other.actions for other in table().compile]
    return msgspec.structs.replace(found, wanted=wanted, hours=(min(hours), max(hours)))


def constraints(
    release: str, arch: str = "", features: Iterable[str] = (), *, step: release_table.Step = "run"
) -> tuple[str, ...]:
    """Return the pip constraints that the wheel needs to work today ("run") or to be built ("build").

    `arch`, `features`: of the CPU that it is for; without them, constraints of certain CPUs are left out.
    """
    return tuple(
        row.requirement
        for row in rows(table().constraint, release)
        if step in row.applies and (not row.without or (row.arch == arch and row.without not in features))
    )


def cuda(release: str) -> release_table.Cuda:
    """Return the release's own CUDA and cuDNN, and the others that it takes."""
    return row(table().cuda, release)


def cuda_from_base(release: str, target: str) -> bool:
    """Whether a compile takes CUDA from its base image (up to 2.17). Only a base that the user names can have it."""
    return targets.get(target).cuda and not cuda(release).hermetic


# --- configs ---------------------------------------------------------------------------------------------------------


def config(name: str, release: str) -> bool:
    """Whether .bazelrc has --config=NAME."""
    return bool(rows(table().config, release, name))


def onednn_env(release: str, threading: str = "") -> tuple[tuple[str, str], ...]:
    """Return the variables that switch oneDNN on in an image that promises it, or those that tune it on `threading`."""
    known = table().onednn_env if version(release) < version(table().known_until) else ()
    return tuple((row.variable, row.value) for row in known if row.covers(release) and row.threading == threading)


# --- the official wheel ----------------------------------------------------------------------------------------------


@cache
def official_wheel(release: str, arch: str) -> release_table.OfficialWheel:
    """Return how the release's wheels on PyPI are compiled and named."""
    return row(table().official_wheel, release, arch)


@cache
def wheel_digests() -> dict[str, dict[str, str]]:
    """Return digests of wheels by requirement, then by Python and architecture ("3.11 x86_64")."""
    text = (facts.FOLDER / "wheel_digests.json").read_bytes()
    return msgspec.json.decode(text, type=dict[str, dict[str, str]])


def official_pythons(release: str, arch: str) -> tuple[str, ...]:
    """Return the Pythons from 3.11 on that have a wheel on PyPI, oldest first; () if that architecture has none.

    While a release's digests are not recorded, the release before it decides.
    """
    for name in (name for name in newest_first() if version(name) <= base(release)):
        wheels = {f"{row.cpu}=={name}" for row in rows(table().official_wheel, name, arch)}
        files = [file.split() for wheel in wheels for file in wheel_digests().get(wheel, ())]
        if (pythons := tuple(python for python, platform in files if platform == arch)) or not wheels:
            return pythons
    return ()


# --- TensorFlow's own message at start: facts/guard.toml --------------------------------------------------------------


class GuardFeature(Facts, frozen=True):
    """One feature that the CPU guard knows; see facts/guard.toml."""

    name: str
    number: int
    since: str = ""
    certain: str = ""
    silent: bool = False


def guard(release: str) -> tuple[GuardFeature, ...]:
    """Return the features that the guard of a release knows, in the order of its message."""
    return tuple(row for row in facts.rows("guard", GuardFeature) if version(row.since or "0") <= base(release))


def guard_judged(release: str) -> frozenset[str]:
    """Return the features, by the guard's names, of which the guard can tell whether a build uses them."""
    return frozenset(row.name for row in guard(release) if version(row.certain or "0") <= base(release))


def guard_features(release: str) -> frozenset[str]:
    """Return `guard_judged` in canonical names."""
    return frozenset(row.name for row in facts.features("x86_64") if row.tensorflow in guard_judged(release))


def guard_spelling(release: str, features: Iterable[str]) -> tuple[str, ...]:
    """Return canonical features as the message of a release names and orders them, without those unknown to it."""
    held = frozenset(features)
    names = {row.tensorflow for row in facts.features("x86_64") if row.name in held}
    return tuple(row.name for row in guard(release) if row.name in names)


# --- wrong results, whatever the image: facts/defects.toml ------------------------------------------------------------


class Defect(Facts, frozen=True):
    """`parts` of the numerics check that are wrong from `since` on, and right again in `until`."""

    parts: tuple[str, ...]
    since: str
    until: str


def known_defects(release: str) -> tuple[str, ...]:
    """Return the parts of the numerics check that a release is known to get wrong."""
    found = (row for row in facts.rows("defects", Defect) if version(row.since) <= base(release) < version(row.until))
    return tuple(part for row in found for part in row.parts)
