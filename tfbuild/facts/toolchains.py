"""What a builder image needs: the typed view on facts/toolchains.toml, and where a compiler is installed from."""

from functools import cache

from packaging.requirements import Requirement
from packaging.version import Version

from tfbuild import facts
from tfbuild.errors import UnknownRelease
from tfbuild.facts import Facts, releases


class BazeliskRow(Facts, frozen=True):
    """`sha256`: of its Linux binary, by architecture."""

    version: str
    sha256: dict[str, str]


class BazelBinary(Facts, frozen=True):
    version: str
    arch: str
    sha256: str


class BazelFlags(Facts, frozen=True):
    """What a Bazel older than `before` is told; where rows follow each other, the first that fits."""

    before: str
    flags: tuple[str, ...]


class Distribution(Facts, frozen=True):
    """A Debian release and its compiler packages, as tfbuild names compilers ("gcc-12", "clang-16").

    `libstdcxx`: what Clang takes there; `python`: of its own package python3; `ended`: the last day of its long-term
    support, "" while it has some.
    """

    name: str
    glibc: str
    libstdcxx: int
    python: str
    compilers: tuple[str, ...]
    ended: str = ""


class Llvm(Facts, frozen=True):
    """LLVM's apt repository, its signing key, and the compilers that Debian releases get from there."""

    url: str
    key: str
    fingerprint: str
    compilers: dict[str, tuple[str, ...]]


class PythonPackages(Facts, frozen=True):
    """`hermetic` false: only for releases that build with the builder's own Python."""

    names: tuple[str, ...]
    hermetic: bool = True


class ToolchainTable(Facts, frozen=True):
    bazelisk: BazeliskRow
    bazel: tuple[BazelBinary, ...]
    first_bazel: dict[str, str]
    profile: tuple[BazelFlags, ...]
    compile_once: tuple[BazelFlags, ...]
    host_apart: tuple[BazelFlags, ...]
    distribution: tuple[Distribution, ...]
    llvm: Llvm
    python_package: tuple[PythonPackages, ...]


@cache
def table() -> ToolchainTable:
    """The facts, read and checked once a process."""
    return facts.load("toolchains", ToolchainTable)


def bazel(release: str, arch: str) -> str:
    """The Bazel to build a release with there; UnknownRelease where it has no binary for that architecture."""
    version, first = releases.bazel(release, arch), table().first_bazel.get(arch, "0")
    if Version(version) < Version(first):
        raise UnknownRelease(
            f"TensorFlow {release} needs Bazel {version}, and the first for Linux on {arch} is {first}",
            hint="take TensorFlow 2.3 or newer, or --platform linux/amd64",
        )
    return version


def bazel_sha256(version: str, arch: str) -> str:
    """The digest of that Bazel's binary; "" where it is not known."""
    return next((row.sha256 for row in table().bazel if (row.version, row.arch) == (version, arch)), "")


def profile_flags(version: str) -> tuple[str, ...]:
    """Bazel's options that make its --profile a JSON trace."""
    return _flags(table().profile, version)


def compile_once_flags(version: str) -> tuple[str, ...]:
    """Bazel's options for a machine that runs what it compiles; () for a Bazel that has no such options."""
    return _flags(table().compile_once, version)


def host_apart_flags(version: str) -> tuple[str, ...]:
    """Bazel's options that keep the target's flags away from host tools; () for a Bazel that always does."""
    return _flags(table().host_apart, version)


def _flags(rows: tuple[BazelFlags, ...], version: str) -> tuple[str, ...]:
    return next((row.flags for row in rows if Version(version) < Version(row.before)), ())


def distribution(name: str) -> Distribution | None:
    """Debian's release of that name; None for one that was not looked at."""
    return next((row for row in table().distribution if row.name == name), None)


def compilers(distribution: Distribution) -> tuple[str, ...]:
    """All that can be installed there, the distribution's own first."""
    return (*distribution.compilers, *table().llvm.compilers.get(distribution.name, ()))


def llvm_suite(name: str, compiler: str) -> str:
    """The suite of LLVM's repository that the compiler comes from there; "" where the distribution has it itself."""
    if compiler not in table().llvm.compilers.get(name, ()):
        return ""
    return f"llvm-toolchain-{name}-{compiler.partition('-')[2]}"


def python_requirements(release: str) -> tuple[str, ...]:
    """What pip installs for TensorFlow's own build, sorted; the release's constraints take the plain name's place."""
    hermetic = releases.hermetic(release)
    constraints = releases.constraints(release, "build")
    # Pip before 20.3 refuses a name that is given twice.
    taken = {Requirement(text).name for text in constraints}
    names = {name for row in table().python_package if row.hermetic or not hermetic for name in row.names}
    return tuple(sorted((names - taken) | set(constraints)))
