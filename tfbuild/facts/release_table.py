"""The types of the rows in facts/releases.toml. tfbuild/facts/releases.py answers questions with them."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, lru_cache
from typing import ClassVar, Literal

import msgspec
from packaging.version import VERSION_PATTERN, Version

from tfbuild import facts
from tfbuild.facts import Facts

Step = Literal["run", "build"]
VERSION = re.compile(VERSION_PATTERN, re.VERBOSE | re.IGNORECASE)
# Python reads no number of more than 4300 digits. No version is nearly that long.
MOST_VERSION = 64


@cache
def version(text: str) -> Version:
    """Return a version that compares by its numbers; raises InvalidVersion, a ValueError."""
    return Version(text)


def is_version(text: str) -> bool:
    """Whether a text by others is a version, and short enough to be read."""
    return len(text) <= MOST_VERSION and re.fullmatch(VERSION, text.strip()) is not None


class Release(Facts, frozen=True, kw_only=True):
    """One release. `commit` is whole, abbreviated (a prefix), or "" where it was not seen. `date`: when it came out.

    `sure` "newer": it is not in the facts, and has those of the newest release before it.
    """

    version: str
    sure: Literal["exact", "near-exact", "bracketed", "inherited", "newer"]
    commit: str = ""
    date: str = ""

    @property
    def tag(self) -> str:
        """The tag in TensorFlow's repository."""
        return f"v{spelled(self.version)}"


@cache
def base(release: str) -> Version:
    """Return the release that a candidate or a nightly becomes: 2.22.0 for 2.22.0rc0. It has that release's facts."""
    return version(version(release).base_version)


def spelled(release: str) -> str:
    """Return a release as TensorFlow itself spells it: 2.22.0-rc0 for 2.22.0rc0."""
    return re.sub(r"\.?(rc|dev)", r"-\1", release)


@lru_cache(maxsize=2**14)
def within(release: str, since: str, before: str) -> bool:
    """Whether a release is in [since, before); an empty bound is open."""
    number = base(release)
    return (not since or version(since) <= number) and (not before or number < version(before))


class RangeRow(Facts, frozen=True, kw_only=True):
    """A fact that holds for the releases, or in facts/cuda.toml the CUDAs, in [since, before); an empty bound is open.

    The file explains each table's fields. Rows of one table with the same `key` exclude each other.
    """

    KEY: ClassVar[str] = ""
    since: str = msgspec.field(name="from", default="")
    before: str = ""
    note: str = ""

    @property
    def key(self) -> str:
        return str(getattr(self, self.KEY)) if self.KEY else ""

    def covers(self, release: str) -> bool:
        """Whether the row holds for a release, or for a CUDA."""
        return within(release, self.since, self.before)


class Sourced(RangeRow, frozen=True, kw_only=True):
    """A row that names its own source. The source of other rows is in the file, above their table."""

    source: str


class Config(RangeRow, frozen=True, kw_only=True):
    KEY = "name"
    name: str


class LinkedLlvm(RangeRow, frozen=True, kw_only=True):
    """`major`: that of the official wheels; `also`: others with which it was compiled."""

    major: int
    also: tuple[int, ...] = ()


class Python(Sourced, frozen=True, kw_only=True):
    versions: tuple[str, ...]


class Bazel(Sourced, frozen=True, kw_only=True):
    version: str


class KnownCompiler(Sourced, frozen=True, kw_only=True):
    KEY = "name"
    name: str
    wheels: tuple[str, ...] = ()
    absent: bool = False
    patches: str = ""


class WheelTarget(Sourced, frozen=True, kw_only=True):
    target: str
    cpu: str = ""
    gpu: str = ""


class WheelFlag(Sourced, frozen=True, kw_only=True):
    """A flag of the official build, for the architecture ("": each) and the targets (none: all)."""

    KEY = "flag"
    flag: str
    arch: str = ""
    targets: tuple[str, ...] = ()


class CompileCost(RangeRow, frozen=True, kw_only=True):
    recorded: str
    machine: str
    cpu_hours: float
    disk: float
    memory: float
    actions: int
    # What it stands in for, where that itself was not compiled, and the hours of one processor that it may take.
    wanted: str = ""
    hours: tuple[float, float] = (0.0, 0.0)

    @property
    def described(self) -> str:
        """Say what a compile takes, and where that is from."""
        took = f"{self.cpu_hours:.1f} hours of one processor, {self.disk:g} GB of disk, {self.memory} GB of memory"
        if not self.wanted:
            return f"{took}, recorded for {self.recorded} on {self.machine}"
        least, most = self.hours
        why = f"tfbuild has not compiled {self.wanted}; {self.recorded} took {took} on {self.machine}"
        return f"{least:.0f} to {most:.0f} hours of one processor: {why}"


class HermeticPython(Sourced, frozen=True, kw_only=True):
    variable: str
    archive: bool = False


class HostTool(Sourced, frozen=True, kw_only=True):
    KEY = "name"
    name: str


class Constraint(Sourced, frozen=True, kw_only=True):
    """`arch`, `without`: only for CPUs of that architecture that lack that feature."""

    KEY = "requirement"
    requirement: str
    applies: tuple[Step, ...]
    arch: str = ""
    without: str = ""


class OneDnn(Sourced, frozen=True, kw_only=True):
    """Whether a build for `arch` has oneDNN without any --config. It is on by default on CPUs with one of `on_with`."""

    KEY = "arch"
    arch: str
    compiled: bool
    on_with: tuple[str, ...] = ()


class Threading(Sourced, frozen=True, kw_only=True):
    KEY = "arch"
    arch: str
    threadpool: str
    openmp: str = ""


class OnednnEnv(Sourced, frozen=True, kw_only=True):
    KEY = "variable"
    variable: str
    value: str
    threading: Literal["", "openmp", "threadpool"] = ""


class Configure(RangeRow, frozen=True, kw_only=True):
    variable: str
    value: str
    cuda: bool | None = None
    compiler: Literal["", "gcc", "clang"] = ""
    overridden: str = ""

    @property
    def key(self) -> str:
        return f"{self.variable} {self.cuda} {self.compiler}"


class Cuda(Sourced, frozen=True, kw_only=True):
    """`pairs`: CUDAs of `others` with the cuDNN that the tree itself names for each: "13.0.0/9.12.0"."""

    version: str
    cudnn: str
    capabilities: str
    hermetic: bool = False
    others: tuple[str, ...] = ()
    others_cudnn: tuple[str, ...] = ()
    pairs: tuple[str, ...] = ()
    evidence: str = ""


class OfficialWheel(Sourced, frozen=True, kw_only=True):
    KEY = "arch"
    arch: str
    cpu: str
    gpu: str = ""
    features: tuple[str, ...]
    flags: tuple[str, ...] = ()


class Nightly(Sourced, frozen=True, kw_only=True):
    KEY = "name"
    name: str
    nightly: str


class ReleaseTable(Facts, frozen=True, kw_only=True):
    """The tables of facts/releases.toml."""

    known_until: str
    release: tuple[Release, ...]
    candidates: tuple[str, ...]
    config: tuple[Config, ...]
    llvm: tuple[LinkedLlvm, ...]
    python: tuple[Python, ...]
    bazel: tuple[Bazel, ...]
    known_compiler: tuple[KnownCompiler, ...]
    wheel_target: tuple[WheelTarget, ...]
    wheel_flag: tuple[WheelFlag, ...]
    compile: tuple[CompileCost, ...]
    hermetic_python: tuple[HermeticPython, ...]
    host_tool: tuple[HostTool, ...]
    constraint: tuple[Constraint, ...]
    onednn: tuple[OneDnn, ...]
    threading: tuple[Threading, ...]
    onednn_env: tuple[OnednnEnv, ...]
    configure: tuple[Configure, ...]
    cuda: tuple[Cuda, ...]
    official_wheel: tuple[OfficialWheel, ...]
    nightly: tuple[Nightly, ...]


def table() -> ReleaseTable:
    """Return the facts: those of releases.toml, or with what a source tree said, inside `using`."""
    return _extended.get() or facts.load("releases", ReleaseTable)


_extended: ContextVar[ReleaseTable | None] = ContextVar("extended", default=None)


@contextmanager
def using(releases: ReleaseTable) -> Iterator[None]:
    """Look facts up in `releases` instead of in the file."""
    token = _extended.set(releases)
    try:
        yield
    finally:
        _extended.reset(token)
