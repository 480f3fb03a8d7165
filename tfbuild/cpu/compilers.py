"""Compilers: which were tried, and what is known to go wrong between one, a feature and a TensorFlow release."""

import re
from collections.abc import Iterator

from packaging.version import Version

from tfbuild import facts
from tfbuild.cpu import names
from tfbuild.errors import UnknownCompiler
from tfbuild.facts import Facts

SPELLED = re.compile(r"(gcc|clang)-?(\d{1,4})(?:\.\d+)*")
WIDTHS = ("128", "256", "512")


class Compiler(Facts, frozen=True):
    name: str
    versions: tuple[int, ...]
    prefer_vector_width: int


class Extra(Facts, frozen=True):
    """A flag that `compiler` needs for sets with `feature` (only for sets that lack the level `below`, if named)."""

    compiler: str
    feature: str
    flag: str
    below: str = ""


class Slow(Facts, frozen=True):
    """A name whose tuning makes Eigen's GEMM `ratio` as fast as plain -mavx."""

    name: str
    compiler: str
    since: int
    ratio: float
    until: int = 0


class Broken(Facts, frozen=True, kw_only=True, rename={"start": "from"}):
    """A feature whose flag does not let the release compile (only for sets that lack the level `below`).

    Releases and compilers are half-open ranges, 0 and "" for no bound.
    """

    feature: str
    reason: str
    source: str
    start: str
    before: str = ""
    compiler: str = ""
    since: int = 0
    until: int = 0
    below: str = ""

    def concerns(self, compiler: str, version: int, release: str) -> bool:
        return (
            self.compiler in ("", compiler)
            and self.since <= version
            and (not self.until or version < self.until)
            and bool(release)
            and Version(self.start) <= Version(release)
            and (not self.before or Version(release) < Version(self.before))
        )


class CompilerTable(Facts, frozen=True):
    compiler: tuple[Compiler, ...]
    extra: tuple[Extra, ...]
    slow: tuple[Slow, ...]
    broken: tuple[Broken, ...]


def table() -> CompilerTable:
    return facts.load("compilers", CompilerTable)


def find(asked: str) -> tuple[str, int]:
    """("gcc", 12) out of "gcc-12"; UnknownCompiler with the nearest that was tried."""
    match = SPELLED.fullmatch(asked.strip().lower())
    tried = {row.name: row.versions for row in table().compiler}
    if match and int(match[2]) in tried[match[1]]:
        return match[1], int(match[2])
    if match:
        near = sorted(tried[match[1]], key=lambda version: (abs(version - int(match[2])), version))[:3]
        options = ", ".join(f"{match[1]}-{version}" for version in near)
    else:
        options = ", ".join(f"{name}-{versions[-1]}" for name, versions in tried.items())
    raise UnknownCompiler(f"unknown compiler {asked!r}", hint=f"its flags were tried with: {options}")


def takes_vector_width(compiler: str, version: int) -> bool:
    return next(row for row in table().compiler if row.name == compiler).prefer_vector_width <= version


def broken(compiler: str, version: int, release: str) -> Iterator[Broken]:
    """Features that break this release with this compiler; none where the release is ""."""
    return (row for row in table().broken if row.concerns(compiler, version, release))


def slow(name: str, compiler: str, version: int, arch: str) -> Slow | None:
    """The row of a CPU's name that this compiler tunes badly for."""
    for row in table().slow:
        fits = row.compiler == compiler and row.since <= version and (not row.until or version < row.until)
        if fits and names.same(name, row.name, arch):
            return row
    return None
