"""The compilers that were tried, and known problems of a compiler with a feature and a TensorFlow release."""

import re
from collections.abc import Iterator
from functools import lru_cache

from tfbuild import facts
from tfbuild.cpu import names
from tfbuild.errors import Unsupported
from tfbuild.facts import Facts
from tfbuild.facts.release_table import within

SPELLED = re.compile(r"(gcc|clang)-?(\d{1,4})(?:\.\d+)*", re.ASCII)
WIDTHS = ("128", "256", "512")


class Compiler(Facts, frozen=True):
    """The versions that were tried, and the first one that knows -mprefer-vector-width=."""

    name: str
    versions: tuple[int, ...]
    prefer_vector_width: int


class Extra(Facts, frozen=True):
    """A flag that `compiler` needs for sets with `feature` (if `below` is named: that lack this level)."""

    compiler: str
    feature: str
    flag: str
    below: str = ""


class Slow(Facts, frozen=True):
    """A name whose tuning runs Eigen's GEMM at `ratio` of plain -mavx."""

    name: str
    compiler: str
    since: int
    ratio: float
    until: int = 0


class Broken(Facts, frozen=True, kw_only=True, rename={"start": "from"}):
    """A feature whose flag breaks the compile of a release (if `below` is named: for sets that lack this level).

    Releases and compilers are half-open ranges; 0 and "" mean no bound.
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
        """Whether the feature breaks this release with this compiler."""
        return (
            self.compiler in ("", compiler)
            and self.since <= version
            and (not self.until or version < self.until)
            and bool(release)
            and within(release, self.start, self.before)
        )


class CompilerTable(Facts, frozen=True):
    compiler: tuple[Compiler, ...]
    extra: tuple[Extra, ...]
    slow: tuple[Slow, ...]
    broken: tuple[Broken, ...]


def table() -> CompilerTable:
    """Return the rows of facts/compilers.toml."""
    return facts.load("compilers", CompilerTable)


@lru_cache(maxsize=2**8)
def find(text: str) -> tuple[str, int]:
    """Return ("gcc", 12) for "gcc-12"; raises Unsupported with the nearest ones that were tried."""
    match = SPELLED.fullmatch(text.strip().lower().replace("clang++", "clang").replace("g++", "gcc"))
    tried = {row.name: row.versions for row in table().compiler}
    if match and int(match[2]) in tried[match[1]]:
        return match[1], int(match[2])
    if match:
        near = sorted(tried[match[1]], key=lambda version: (abs(version - int(match[2])), version))[:3]
        options = ", ".join(f"{match[1]}-{version}" for version in near)
    else:
        options = ", ".join(f"{name}-{versions[-1]}" for name, versions in tried.items())
    raise Unsupported(f"unknown compiler {text!r}", hint=f"its flags were tried with: {options}")


def takes_vector_width(compiler: str, version: int) -> bool:
    """Whether the compiler knows -mprefer-vector-width=."""
    return next(row for row in table().compiler if row.name == compiler).prefer_vector_width <= version


def broken(compiler: str, version: int, release: str) -> Iterator[Broken]:
    """Yield the rows about features that break this release with this compiler; none for the release ""."""
    return (row for row in table().broken if row.concerns(compiler, version, release))


def slow(name: str, compiler: str, version: int, arch: str) -> Slow | None:
    """Return the row of a CPU's name that this compiler tunes badly for, or None."""
    for row in table().slow:
        fits = row.compiler == compiler and row.since <= version and (not row.until or version < row.until)
        if fits and names.same(name, row.name, arch):
            return row
    return None
