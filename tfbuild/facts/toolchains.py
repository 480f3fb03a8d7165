"""What images and builders are made of: facts/images.toml (bases) and toolchains.toml (Debian, compilers, Bazel)."""

import re
from functools import partial

from packaging.version import Version

from tfbuild import facts
from tfbuild.facts import Facts


class BazeliskRow(Facts, frozen=True):
    """Bazelisk. `sha256`: of its Linux binary, by architecture."""

    version: str
    sha256: dict[str, str]


class HostConfiguration(Facts, frozen=True):
    """Which `flag` says, to a Bazel older than `before`, whether host tools have a configuration of their own."""

    before: str
    flag: str


class Distribution(Facts, frozen=True):
    """A release of Debian or Ubuntu and its compiler packages, as tfbuild names compilers ("gcc-12", "clang-16").

    `libstdcxx`: the one that Clang uses there. `python`: the version of its package python3.
    """

    name: str
    number: str
    glibc: str
    libstdcxx: int
    python: str = ""
    compilers: tuple[str, ...] = ()


class Bolt(Facts, frozen=True):
    """LLVM's post-link optimizer: its package in `distributions`, and the Bazel flag that it needs."""

    package: str
    distributions: tuple[str, ...]
    flag: str


class Llvm(Facts, frozen=True):
    """LLVM's apt repository, its signing key, and the compilers that each Debian release gets from it."""

    url: str
    key: str
    fingerprint: str
    compilers: dict[str, tuple[str, ...]]


class PythonPackages(Facts, frozen=True):
    """Packages for TensorFlow's own build. `hermetic` false: only for releases that build with the builder's Python."""

    names: tuple[str, ...]
    hermetic: bool = True


class ToolchainTable(Facts, frozen=True):
    bazelisk: BazeliskRow
    host_configuration: HostConfiguration
    bolt: Bolt
    distribution: tuple[Distribution, ...]
    ubuntu: tuple[Distribution, ...]
    llvm: Llvm
    python_package: tuple[PythonPackages, ...]


table = partial(facts.load, "toolchains", ToolchainTable)


def host_configuration(bazel: str, own: str) -> tuple[str, ...]:
    """Return the flag that gives host tools their own configuration ("true") or the target's; () if Bazel has none."""
    row = table().host_configuration
    return (f"{row.flag}={own}",) if Version(bazel) < Version(row.before) else ()


def distribution(name: str) -> Distribution | None:
    """Return the release of Debian or Ubuntu with that name or number, or None if it is not known."""
    return next((row for row in (*table().distribution, *table().ubuntu) if name in (row.name, row.number)), None)


def compilers(distribution: Distribution) -> tuple[str, ...]:
    """Return all compilers that can be installed there, the distribution's own first."""
    return (*distribution.compilers, *table().llvm.compilers.get(distribution.name, ()))


def llvm_suite(name: str, compiler: str) -> str:
    """Return the suite of LLVM's repository with that compiler, or "" if it does not come from there."""
    known = compiler in table().llvm.compilers.get(name, ())
    return f"llvm-toolchain-{name}-{compiler.partition('-')[2]}" if known else ""


# --- base images ------------------------------------------------------------------------------------------------------


class BaseImage(Facts, frozen=True):
    """A registry's image with one Python, on one Debian release."""

    python: str
    distribution: str
    default: bool = False

    @property
    def image(self) -> str:
        """The image's name."""
        return f"python:{self.python}-slim-{self.distribution}"

    @property
    def debian(self) -> Distribution:
        """The Debian release that it is based on."""
        return next(row for row in table().distribution if row.name == self.distribution)

    @property
    def bootstrap(self) -> str:
        """The Debian release whose own python3 makes the same base, or "" if its Python is another one."""
        return self.distribution if self.debian.python == self.python else ""


class BaseImageTable(Facts, frozen=True):
    base: tuple[BaseImage, ...]
    without_apt: str
    variables: dict[str, str]


images = partial(facts.load, "images", BaseImageTable)


def is_harmless(variable: str, value: str) -> bool:
    """Whether base images set this variable to such a value, and nothing loads code from it."""
    return bool(re.fullmatch(images().variables.get(variable, r"(?!)"), value, re.ASCII))


def default_base() -> BaseImage:
    """Return the base of official wheels."""
    return next(row for row in images().base if row.default)


def base_pythons() -> tuple[str, ...]:
    """Return the Pythons that bases have, oldest first."""
    return tuple(dict.fromkeys(row.python for row in images().base))


def debian_of(image: str) -> Distribution | None:
    """Return the release of Debian or Ubuntu that an image of theirs, Python's or NVIDIA's names; None if unknown."""
    tag = r"(?:(?:debian|ubuntu):|python:[\w.]+-(?:slim-)?|cuda:[\w.-]+-ubuntu)([a-z]+|[\d.]+)"
    match = re.fullmatch(rf"(?:\S+/)?{tag}(?:-\d{{8}})?(?:-slim)?(?:@\S+)?", image)
    return distribution(match[1]) if match else None


def python_of(image: str) -> str:
    """Return the Python that an image has by its name: that of Python's tag, else its distribution's; "" if unknown."""
    tag, system = re.match(r"(?:\S+/)?python:(\d+\.\d+)", image), debian_of(image)
    return tag[1] if tag else system.python if system else ""


def without_apt(image: str) -> bool:
    """Whether an image is known by its name to be based neither on Debian nor on Ubuntu."""
    return bool(re.fullmatch(images().without_apt, image.rpartition("/")[2]))
