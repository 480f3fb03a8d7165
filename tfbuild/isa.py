"""Instruction sets, and the compiler flags that stand for them.

An instruction set is a list of features closed over what they need. Its flags are a level (``-march=x86-64-v3``) plus
the features beyond it, never ``-march=native`` (which means another thing on each machine) and never the bare list
(which makes Clang tune for nothing: Eigen's GEMM at half of plain ``-mavx``).
"""

import difflib
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from tfbuild import facts
from tfbuild.cpu import Cpu
from tfbuild.errors import UnknownCompiler, UnknownCpu, UsageError
from tfbuild.facts import Facts, FullLevel

# A name spells at most so many features beyond its level out; more become a fingerprint, for a tag has 128 characters.
MOST_SPELLED = 3
COMPILER = re.compile(r"(gcc|clang)-?(\d+)(?:\.\d+)*")


class Compiler(Facts, frozen=True):
    name: str
    versions: tuple[int, ...]


class Extra(Facts, frozen=True):
    """A flag that `compiler` needs for sets with `feature` (only for sets that lack the level `below`, if named)."""

    compiler: str
    feature: str
    flag: str
    below: str = ""


class CompilerTable(Facts, frozen=True):
    compiler: tuple[Compiler, ...]
    extra: tuple[Extra, ...]


@dataclass(frozen=True, kw_only=True)
class InstructionSet:
    """`features`: canonical names, sorted, closed over what they need; `level`: the largest level they contain."""

    name: str
    arch: str
    level: str
    features: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Dropped:
    """A feature that gets no flag, and why."""

    feature: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Flags:
    """The flags for one compiler, in the order they must stand: level, features, extras."""

    compiler: str
    flags: tuple[str, ...]
    dropped: tuple[Dropped, ...]

    @property
    def copts(self) -> tuple[str, ...]:
        return tuple(f"--copt={flag}" for flag in self.flags)


def closure(names: Iterable[str]) -> frozenset[str]:
    """The features with all that they need (``avx512f`` needs ``fma``: GCC refuses Eigen without it)."""
    found: set[str] = set()
    todo = list(names)
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            row = facts.feature(name)
            todo.extend((*row.implies, *row.needs))
    return frozenset(found)


def instruction_set(names: Iterable[str], arch: str) -> InstructionSet:
    """The smallest instruction set that holds `names`, named after its level and what lies beyond it."""
    held = closure(names)
    level = largest_level(held, arch)
    return InstructionSet(name=_name(held, level), arch=arch, level=level.name, features=tuple(sorted(held)))


def largest_level(held: frozenset[str], arch: str) -> FullLevel:
    """The largest level within `held`; the architecture's smallest where even that is not in it."""
    known = facts.levels(arch)
    return next((level for level in reversed(known) if level.features <= held), known[0])


def intersection(sets: Iterable[InstructionSet]) -> InstructionSet:
    """The largest instruction set that is in all of `sets`; that of closed sets is closed itself.

    Raises UsageError where there are none, or they are of several architectures: nothing runs on both.
    """
    members = tuple(sets)
    archs = sorted({member.arch for member in members})
    if len(archs) != 1:
        what = " and ".join(archs) or "no instruction set at all"
        raise UsageError(f"no instruction set is common to {what}", hint="name machines of one architecture")
    return instruction_set(frozenset.intersection(*(frozenset(member.features) for member in members)), archs[0])


def _name(held: frozenset[str], level: FullLevel) -> str:
    beyond = held - level.features
    spelled = sorted(beyond - _implied(beyond))
    # The smallest level of all says nothing in front of a list: "avx", not "x86-64-v1-avx".
    front = [] if spelled and level == facts.levels(level.arch)[0] else [level.name]
    if len(spelled) > MOST_SPELLED:
        return f"{level.name}-{hashlib.sha256(' '.join(sorted(beyond)).encode()).hexdigest()[:8]}"
    return "-".join(front + spelled)


def _implied(names: Iterable[str]) -> frozenset[str]:
    return frozenset(needed for name in names for needed in closure([name]) - {name})


def of_cpu(cpu: Cpu) -> InstructionSet:
    """All that this CPU can be used for; a feature whose needs a hypervisor hides is left out (see `hidden`)."""
    out = {item.feature for item in hidden(cpu)}
    usable = (name for name in cpu.features if facts.feature(name).use and name not in out)
    return instruction_set(usable, cpu.arch)


def hidden(cpu: Cpu) -> tuple[Dropped, ...]:
    """Features of this CPU that cannot be used since one that they need is masked."""
    held = frozenset(cpu.features)
    lacking = ((name, sorted(closure([name]) - held)) for name in cpu.features)
    return tuple(
        Dropped(feature=name, reason=f"needs {', '.join(miss)}, which is masked") for name, miss in lacking if miss
    )


def resolve(asked: str, *, arch: str, host: Cpu | None = None) -> InstructionSet:
    """The instruction set of a level, a microarchitecture, a comma-separated feature list, or "host".

    Raises UnknownCpu with the nearest known names.
    """
    if asked == "host":
        if host is None:
            raise UnknownCpu("no host CPU is known here", hint="name a level or a CPU: --cpu x86-64-v3")
        return of_cpu(host)
    if facts.squeeze(asked) in _levels(arch):
        return instruction_set(_levels(arch)[facts.squeeze(asked)], arch)
    if (held := _microarchitecture(asked, arch)) is not None:
        return instruction_set(held, arch)
    return instruction_set(_listed(asked, arch), arch)


def _levels(arch: str) -> dict[str, frozenset[str]]:
    return {facts.squeeze(level.name): level.features for level in facts.levels(arch)}


def _microarchitecture(asked: str, arch: str) -> frozenset[str] | None:
    """The features of a CPU by archspec's database, which also knows Spack's and the compilers' names of it."""
    from archspec.cpu import TARGETS

    names = {facts.squeeze(name): target for name, target in TARGETS.items() if target.family.name == arch}
    names |= {
        facts.squeeze(entry["name"]): target
        for target in list(names.values())
        for compiler in ("gcc", "clang")
        for entry in target.compilers.get(compiler, ())
        if "name" in entry and not entry["name"].startswith("x86-64")
    }
    if facts.squeeze(asked) not in names:
        return None
    target = names[facts.squeeze(asked)]
    rows = (facts.spelled(name, arch) for name in target.features)
    return frozenset(row.name for row in rows if row is not None and row.use)


def _listed(asked: str, arch: str) -> frozenset[str]:
    """The features of a comma-separated list of levels and features: ``x86-64-v4,avx512_vnni``."""
    held: set[str] = set()
    levels = _levels(arch)
    parts = [part.strip() for part in asked.split(",") if part.strip()]
    for part in parts:
        row = facts.spelled(part, arch)
        if row is None and facts.squeeze(part) not in levels:
            raise UnknownCpu(f"unknown CPU, level or feature {part!r} for {arch}", hint=_nearest(part, arch))
        held |= {row.name} if row is not None else levels[facts.squeeze(part)]
    if not parts:
        raise UnknownCpu(f"{asked!r} names no CPU, level or feature", hint=_nearest(asked, arch))
    return frozenset(held)


def _nearest(asked: str, arch: str) -> str:
    from archspec.cpu import TARGETS

    known = [level.name for level in facts.levels(arch)] + [row.name for row in facts.features(arch)]
    generic = {facts.squeeze(name) for name in (arch, *known)}
    known += [n for n, target in TARGETS.items() if target.family.name == arch and facts.squeeze(n) not in generic]
    near = difflib.get_close_matches(asked, known, n=3, cutoff=0.5) or known[:4]
    return f"nearest: {', '.join(near)}; or --cpu host"


def compiler(asked: str) -> tuple[str, int]:
    """("gcc", 12) out of "gcc-12"; UnknownCompiler with the nearest that was tried."""
    match = COMPILER.fullmatch(asked.strip().lower())
    tried = {row.name: row.versions for row in facts.load("compilers", CompilerTable).compiler}
    if match and int(match[2]) in tried[match[1]]:
        return match[1], int(match[2])
    if match:
        near = sorted(tried[match[1]], key=lambda version: (abs(version - int(match[2])), version))[:3]
        options = ", ".join(f"{match[1]}-{version}" for version in near)
    else:
        options = ", ".join(f"{name}-{versions[-1]}" for name, versions in tried.items())
    raise UnknownCompiler(f"unknown compiler {asked!r}", hint=f"its flags were tried with: {options}")


def flags(isa: InstructionSet, asked: str) -> Flags:
    """The flags of an instruction set for a compiler such as "gcc-12"; what that version does not know is dropped.

    Raises UnknownCompiler where the compiler was not tried.
    """
    name, version = compiler(asked)
    build = _x86 if isa.arch == "x86_64" else _arm
    found, dropped = build(isa, name, version)
    return Flags(compiler=f"{name}-{version}", flags=found, dropped=dropped)


def _x86(isa: InstructionSet, name: str, version: int) -> tuple[tuple[str, ...], tuple[Dropped, ...]]:
    held = frozenset(isa.features)
    fitting = [x for x in facts.levels(isa.arch) if x.features <= held and getattr(x, name) <= version]
    level = fitting[-1]
    kept, dropped = _split(sorted(held - level.features), name, version)
    switched_on = {needed for row in kept for needed in _switched_on(row.name)}
    spelled = [row for row in kept if row.name not in switched_on]
    extras = (x for x in facts.load("compilers", CompilerTable).extra if x.compiler == name and x.feature in held)
    tail = [x.flag for x in extras if not x.below or not _holds_level(held, x.below, isa.arch)]
    return (f"-march={level.march}", *(row.flag for row in spelled), *tail), dropped


def _switched_on(name: str) -> frozenset[str]:
    """What every compiler switches on with this feature's flag, so that it needs no flag of its own."""
    direct = facts.feature(name).implies
    return frozenset(direct).union(*(_switched_on(needed) for needed in direct))


def _holds_level(held: frozenset[str], level: str, arch: str) -> bool:
    return next(row for row in facts.levels(arch) if row.name == level).features <= held


def _arm(isa: InstructionSet, name: str, version: int) -> tuple[tuple[str, ...], tuple[Dropped, ...]]:
    level = largest_level(frozenset(isa.features), isa.arch)
    kept, dropped = _split(sorted(frozenset(isa.features) - level.features), name, version)
    extensions = [row.flag for row in kept if row.flag]
    return ("-march=" + "+".join([level.march, *extensions]),), dropped


def _split(names: list[str], name: str, version: int) -> tuple[list[facts.Feature], tuple[Dropped, ...]]:
    rows = [facts.feature(feature) for feature in names]
    kept = [row for row in rows if getattr(row, name) <= version]
    dropped = tuple(
        Dropped(
            feature=row.name, reason=f"{name}-{version} does not know {row.flag} ({name} {getattr(row, name)} does)"
        )
        for row in rows
        if getattr(row, name) > version
    )
    return kept, dropped
