"""What a builder image needs: the typed view on facts/toolchains.toml, and the compilers that a base can install."""

from functools import cache

from packaging.version import Version

from tfbuild import facts, releases
from tfbuild.errors import UnknownCompiler
from tfbuild.facts import Facts


class Bazelisk(Facts, frozen=True):
    """`sha256`: of its Linux binary, by architecture."""

    version: str
    sha256: dict[str, str]


class BazelBinary(Facts, frozen=True):
    version: str
    arch: str
    sha256: str


class ProfileFlags(Facts, frozen=True):
    """What a Bazel older than `before` needs to write its profile as JSON."""

    before: str
    flags: tuple[str, ...]


class Distribution(Facts, frozen=True):
    """A Debian release and its compiler packages, as tfbuild names compilers ("gcc-12", "clang-16")."""

    name: str
    compilers: tuple[str, ...]


class PythonPackages(Facts, frozen=True):
    """`hermetic` false: only for releases that build with the builder's own Python."""

    names: tuple[str, ...]
    hermetic: bool = True


class Table(Facts, frozen=True):
    bazelisk: Bazelisk
    bazel: tuple[BazelBinary, ...]
    profile: tuple[ProfileFlags, ...]
    distribution: tuple[Distribution, ...]
    python_package: tuple[PythonPackages, ...]


@cache
def table() -> Table:
    """The facts, read and checked once a process."""
    return facts.load("toolchains", Table)


def bazel_sha256(version: str, arch: str) -> str:
    """The digest of that Bazel's binary; "" where it is not known."""
    return next((row.sha256 for row in table().bazel if (row.version, row.arch) == (version, arch)), "")


def profile_flags(version: str) -> tuple[str, ...]:
    """Bazel's options that make its --profile a JSON trace."""
    return tuple(flag for row in table().profile if Version(version) < Version(row.before) for flag in row.flags)


def compilers(distribution: str) -> tuple[str, ...] | None:
    """What can be installed there; None for a distribution that was not looked at."""
    return next((row.compilers for row in table().distribution if row.name == distribution), None)


def has(distribution: str, compiler: str) -> bool:
    """Whether the compiler can be installed there, as far as is known: an unknown distribution may have it."""
    there = compilers(distribution)
    return there is None or compiler in there


def refuse_missing(distribution: str, compiler: str, *, others: str) -> None:
    """UnknownCompiler where the base's distribution lacks the compiler, with those that it has; `others`: a way out."""
    there = compilers(distribution)
    if there is not None and compiler not in there:
        raise UnknownCompiler(
            f"{compiler} is not in {distribution}, which the base image is made of",
            hint=f"--compiler with one of: {', '.join(there)}{others}",
        )


def python_requirements(release: str) -> tuple[str, ...]:
    """What pip installs for TensorFlow's own build, sorted; the release's constraints take the plain name's place."""
    hermetic = releases.hermetic(release)
    names = {name for row in table().python_package if row.hermetic or not hermetic for name in row.names}
    return tuple(sorted(names | set(releases.constraints(release, "build"))))
