"""The compiler flags of an instruction set, and known problems of a compiler with a feature and a TensorFlow release.

The flags are a level (``-march=x86-64-v3``) and the features beyond it; never ``-march=native`` (which differs between
machines), nor a CPU's name or a list without a level (Clang tunes badly for them: Eigen's GEMM at half of ``-mavx``).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache, partial

from tfbuild import facts
from tfbuild.cpu.isa import InstructionSet, instruction_set, largest_level
from tfbuild.errors import Unsupported, UsageError
from tfbuild.facts import Facts, Level
from tfbuild.facts.release_table import within

COMPILER_NAME = re.compile(r"(gcc|clang)-?(\d{1,4})(?:\.\d+)*", re.ASCII)
WIDTH_FLAG = "-mprefer-vector-width="
WIDTHS = ("128", "256", "512")


class Extra(Facts, frozen=True):
    """A flag that `compiler` needs for sets with `feature`; with `below`, only for sets that lack that level."""

    compiler: str
    feature: str
    flag: str
    below: str = ""


class Broken(Facts, frozen=True, kw_only=True, rename={"start": "from"}):
    """A feature whose flag breaks the compile of a release; with `below`, only for sets that lack that level.

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
        """Whether the feature breaks this release with this compiler. Without a release, nothing breaks."""
        return (
            self.compiler in ("", compiler)
            and self.since <= version
            and (not self.until or version < self.until)
            and bool(release)
            and within(release, self.start, self.before)
        )


class CompilerTable(Facts, frozen=True):
    compiler: dict[str, tuple[int, ...]]
    extra: tuple[Extra, ...]
    broken: tuple[Broken, ...]


compiler_table = partial(facts.load, "compilers", CompilerTable)


@lru_cache(maxsize=2**8)
def parse_compiler(text: str) -> tuple[str, int]:
    """Return ("gcc", 12) for "gcc-12"; raises Unsupported for one that was not tried."""
    match = COMPILER_NAME.fullmatch(text.strip().lower().replace("clang++", "clang").replace("g++", "gcc"))
    tried = compiler_table().compiler
    if match and int(match[2]) in tried[match[1]]:
        return match[1], int(match[2])
    raise Unsupported(f"unknown compiler {text!r}")


# --- flags ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Flags:
    """The flags for one compiler, in the necessary order: level, features, extras.

    `instruction_set` is what they switch on: the requested one without the features that are `dropped` for a reason,
    which are not promised (on aarch64 with ``asimd``, which every compiler switches on).
    """

    compiler: str
    flags: tuple[str, ...]
    dropped: tuple[tuple[str, str], ...]
    instruction_set: InstructionSet

    @property
    def copts(self) -> tuple[str, ...]:
        """The flags as options of Bazel."""
        return tuple(f"--copt={flag}" for flag in self.flags)


# A matrix asks for the same ones for each target and Python.
@lru_cache(maxsize=2**11)
def flags(isa: InstructionSet, compiler: str, *, release: str = "", prefer_vector_width: str = "") -> Flags:
    """Return the flags of an instruction set for a compiler such as "gcc-12".

    Raises Unsupported if the compiler was not tried, UsageError if the vector width would change nothing.
    """
    name, version = parse_compiler(compiler)
    dropped = dict(_unusable(isa, name, version, release))
    level = largest_level(frozenset(isa.features) - dropped.keys(), isa.arch, name, version)
    dropped |= dict(_unknown(frozenset(isa.features) - level.features - dropped.keys(), name, version))
    dropped |= _without(isa, dropped)
    kept = (frozenset(isa.features) - dropped.keys()) | level.features
    build = _x86 if isa.arch == "x86_64" else _arm
    return Flags(
        compiler=f"{name}-{version}",
        flags=(*build(kept, level), *_extras(kept, isa.arch, name, prefer_vector_width)),
        dropped=tuple(sorted(dropped.items())),
        instruction_set=instruction_set(kept, isa.arch),
    )


def _unusable(isa: InstructionSet, name: str, version: int, release: str) -> Iterator[tuple[str, str]]:
    """Yield features without a flag, and those that break the release, with the reason."""
    held = frozenset(isa.features)
    for feature in held:
        if not facts.feature(feature).use:
            yield feature, "only intrinsics use it; requiring it would exclude hosts without any gain"
    for row in compiler_table().broken:
        if row.concerns(name, version, release) and _is_about(row, held, isa.arch):
            yield row.feature, f"breaks TensorFlow {release} with {name}-{version}: {row.reason} ({row.source})"
    for feature in held:
        if not _has_flag(feature, held, isa.arch):
            yield feature, "has no flag of its own, and no other feature here switches it on"


def _has_flag(feature: str, held: frozenset[str], arch: str) -> bool:
    """Whether a flag switches the feature on: its own, its level's, or another feature's."""
    if facts.feature(feature).flag or feature in largest_level(held, arch).features:
        return True
    return any(feature in switched_on(other) for other in held)


def _unknown(features: frozenset[str], name: str, version: int) -> Iterator[tuple[str, str]]:
    for row in map(facts.feature, features):
        first = getattr(row, name)
        if version < first:
            yield row.name, f"{name}-{version} does not know {row.flag} ({name} {first} does)"


def _without(isa: InstructionSet, dropped: dict[str, str]) -> dict[str, str]:
    """Return the features that need a dropped one, with the reason."""
    lacking = {name: sorted((facts.closure([name]) - {name}) & dropped.keys()) for name in isa.features}
    return {
        name: f"needs {', '.join(miss)}, which is dropped"
        for name, miss in lacking.items()
        if miss and name not in dropped
    }


def _x86(kept: frozenset[str], level: Level) -> tuple[str, ...]:
    beyond = kept - level.features
    implied = {needed for name in beyond for needed in switched_on(name)}
    return (f"-march={level.march}", *(facts.feature(name).flag for name in sorted(beyond - implied)))


def _arm(kept: frozenset[str], level: Level) -> tuple[str, ...]:
    extensions = [row.flag for row in map(facts.feature, sorted(kept - level.features)) if row.flag]
    return ("-march=" + "+".join([level.march, *extensions]),)


@cache
def switched_on(name: str) -> frozenset[str]:
    """Return the features that this feature's flag switches on in every compiler, so that they need no flag."""
    direct = facts.feature(name).implies
    return frozenset(direct).union(*(switched_on(needed) for needed in direct))


def _extras(held: frozenset[str], arch: str, name: str, width: str) -> tuple[str, ...]:
    extras = [row.flag for row in compiler_table().extra if row.compiler == name and _is_about(row, held, arch)]
    if not width:
        return tuple(extras)
    if width not in WIDTHS:
        raise UsageError(f"{width!r} is not a vector width", hint=f"one of: {', '.join(WIDTHS)} (in bits)")
    needed = "avx512f" if width == "512" else "avx"
    if needed not in held:
        raise UsageError(
            f"--prefer-vector-width {width} changes nothing: the instruction set has no {needed}",
            hint="leave it out, or name a CPU that has it",
        )
    return (*(flag for flag in extras if not flag.startswith(WIDTH_FLAG)), f"{WIDTH_FLAG}{width}")


def _is_about(row: Extra | Broken, held: frozenset[str], arch: str) -> bool:
    """Whether a row is about a set: the set has its feature, and lacks the level `below`."""
    return row.feature in held and ((level := facts.level(row.below, arch)) is None or not level.features <= held)
