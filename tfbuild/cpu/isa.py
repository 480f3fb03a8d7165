"""Instruction sets, and the compiler flags that stand for them.

An instruction set is a list of features closed over what they need. Its flags are a level (``-march=x86-64-v3``) plus
the features beyond it, never ``-march=native`` (which means another thing on each machine) and never the bare list
(which makes Clang tune for nothing: Eigen's GEMM at half of plain ``-mavx``) or a CPU's name (some tune as badly).
"""

import difflib
import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tfbuild import facts
from tfbuild.cpu import compilers, names
from tfbuild.cpu.detection import Cpu, detect
from tfbuild.errors import UnknownCompiler, UnknownCpu, UsageError
from tfbuild.facts import FullLevel

# A name spells at most so many features beyond its level out; more become a fingerprint, for a tag has 128 characters.
MOST_SPELLED = 3
WIDTH = "-mprefer-vector-width="
MACHINES = {"x86_64": "linux/amd64", "aarch64": "linux/arm64"}
closure = facts.closure


@dataclass(frozen=True, kw_only=True)
class InstructionSet:
    """`features`: canonical names, sorted, closed over what they need; `level`: the largest level they contain."""

    name: str
    arch: str
    level: str
    features: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class DroppedFeature:
    """A feature that gets no flag, and why."""

    feature: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Flags:
    """The flags for one compiler, in the order they must stand: level, features, extras.

    `instruction_set` is what they switch on: what was asked for without the `dropped` features, so that nothing is
    promised of those (on aarch64 with ``asimd``, which no compiler leaves out). `notes` are for the reader.
    """

    compiler: str
    flags: tuple[str, ...]
    dropped: tuple[DroppedFeature, ...]
    instruction_set: InstructionSet
    notes: tuple[str, ...] = ()

    @property
    def copts(self) -> tuple[str, ...]:
        return tuple(f"--copt={flag}" for flag in self.flags)


def instruction_set(names: Iterable[str], arch: str) -> InstructionSet:
    """The smallest instruction set that holds `names`, named after its level and what lies beyond it."""
    held = closure(names)
    level = largest_level(held, arch)
    return InstructionSet(name=_name(held, level), arch=arch, level=level.name, features=tuple(sorted(held)))


def largest_level(held: frozenset[str], arch: str) -> FullLevel:
    """The largest level within `held`; the architecture's smallest where even that is not in it."""
    known = facts.levels(arch)
    return next((level for level in reversed(known) if level.features <= held), known[0])


def option(asked: InstructionSet) -> str:
    """What `--cpu` takes for exactly this set: its level and the features beyond, without those that others bring."""
    level = next(row for row in facts.levels(asked.arch) if row.name == asked.level)
    beyond = frozenset(asked.features) - level.features
    return ",".join((level.name, *sorted(beyond - _implied(beyond))))


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


def hidden(cpu: Cpu) -> tuple[DroppedFeature, ...]:
    """Features of this CPU that cannot be used since one that they need is masked."""
    held = frozenset(cpu.features)
    lacking = ((name, sorted(closure([name]) - held)) for name in cpu.features)
    return tuple(
        DroppedFeature(feature=name, reason=f"needs {', '.join(miss)}, which is masked")
        for name, miss in lacking
        if miss
    )


def resolve(asked: str, *, arch: str, host: Cpu | None = None) -> InstructionSet:
    """The instruction set of "host", a level, a microarchitecture, a feature list, or a recorded machine's file.

    Raises UnknownCpu with the nearest known names.
    """
    if asked == "host":
        if host is None:
            known = ", ".join(level.name for level in facts.levels(arch))
            raise UnknownCpu("no host CPU is known here", hint=f"name a CPU or a level: --cpu {known}")
        return of_cpu(host)
    if facts.squeeze(asked) in _levels(arch):
        return instruction_set(_levels(arch)[facts.squeeze(asked)], arch)
    if (held := names.features(asked, arch)) is not None:
        return instruction_set(held, arch)
    try:
        return instruction_set(_listed(asked, arch), arch)
    except UnknownCpu:
        if os.sep not in asked and not os.path.isfile(asked):
            raise
    return of_cpu(same_architecture(detect(Path(asked)), arch, asked))


def same_architecture(cpu: Cpu, arch: str, origin: str) -> Cpu:
    """UnknownCpu where a recorded machine is not one of the platform's."""
    if cpu.arch != arch:
        raise UnknownCpu(
            f"{origin} describes an {cpu.arch} CPU, not an {arch} one", hint=f"--platform {MACHINES[cpu.arch]}"
        )
    return cpu


def _levels(arch: str) -> dict[str, frozenset[str]]:
    return {facts.squeeze(level.name): level.features for level in facts.levels(arch)}


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
    for other, place in MACHINES.items():
        if other != arch and _is_known(asked, other):
            return f"{asked} is for {other}: --platform {place}"
    levels, features = ([row.name for row in rows] for rows in (facts.levels(arch), facts.features(arch)))
    generic = {facts.squeeze(name) for name in (arch, *levels, *features)}
    known = levels + features + [name for name in names.known(arch) if facts.squeeze(name) not in generic]
    near = difflib.get_close_matches(asked.lower(), known, n=3, cutoff=0.5) or known[:4]
    return f"nearest: {', '.join(near)}; or --cpu host"


def _is_known(asked: str, arch: str) -> bool:
    levelled = facts.squeeze(asked) in _levels(arch) or facts.spelled(asked, arch) is not None
    return levelled or names.features(asked, arch) is not None


# --- flags -----------------------------------------------------------------------------------------------------------


def flags(
    isa: InstructionSet, asked: str, *, release: str = "", prefer_vector_width: str = "", named: str = ""
) -> Flags:
    """The flags of an instruction set for a compiler such as "gcc-12".

    Left out, with the reason: what that version does not know, and what breaks `release` where one is given.
    `named`: what the user called the CPU, for a note where the name itself would tune badly.
    Raises UnknownCompiler where the compiler was not tried, UsageError where the vector width changes nothing.
    """
    name, version = compilers.find(asked)
    dropped = dict(_unusable(isa, name, version, release))
    level = _level_for(frozenset(isa.features) - dropped.keys(), isa.arch, name, version)
    dropped |= dict(_unknown(frozenset(isa.features) - level.features - dropped.keys(), name, version))
    dropped |= _without(isa, dropped)
    kept = (frozenset(isa.features) - dropped.keys()) | level.features
    build = _x86 if isa.arch == "x86_64" else _arm
    return Flags(
        compiler=f"{name}-{version}",
        flags=(*build(kept, level), *_extras(kept, isa.arch, name, version, prefer_vector_width)),
        dropped=tuple(DroppedFeature(feature=feature, reason=dropped[feature]) for feature in sorted(dropped)),
        instruction_set=instruction_set(kept, isa.arch),
        notes=_slow_name(named, isa.arch, name, version),
    )


def _unusable(isa: InstructionSet, name: str, version: int, release: str) -> Iterator[tuple[str, str]]:
    """Features that no flag is for, or that break the release, with the reason."""
    held = frozenset(isa.features)
    for feature in held:
        if not facts.feature(feature).use:
            yield feature, "code reaches it by intrinsics alone; to require it would exclude hosts for nothing"
    for row in compilers.broken(name, version, release):
        if row.feature in held and not (row.below and _holds_level(held, row.below, isa.arch)):
            yield row.feature, f"breaks TensorFlow {release} with {name}-{version}: {row.reason} ({row.source})"
    for feature in held:
        if not _has_flag(feature, held, isa.arch):
            yield feature, "has no flag of its own, and nothing here that brings it"


def _has_flag(feature: str, held: frozenset[str], arch: str) -> bool:
    """Whether a flag switches the feature on: its own, its level's, or that of another one."""
    if facts.feature(feature).flag or feature in largest_level(held, arch).features:
        return True
    return any(feature in switched_on(other) for other in held)


def _level_for(held: frozenset[str], arch: str, name: str, version: int) -> FullLevel:
    """The largest level within `held` that the compiler knows; the smallest is the architecture itself."""
    known = [level for level in facts.levels(arch) if getattr(level, name) <= version]
    return next((level for level in reversed(known) if level.features <= held), facts.levels(arch)[0])


def _unknown(features: frozenset[str], name: str, version: int) -> Iterator[tuple[str, str]]:
    for row in map(facts.feature, features):
        first, oldest = getattr(row, name), getattr(facts.levels(row.arch)[0], name)
        if version < oldest:
            yield row.name, f"{name}-{version} was not tried for {row.arch} ({name} {oldest} was)"
        elif version < first:
            yield row.name, f"{name}-{version} does not know {row.flag} ({name} {first} does)"


def _without(isa: InstructionSet, dropped: dict[str, str]) -> dict[str, str]:
    """Those that need a dropped feature."""
    lacking = {name: sorted((closure([name]) - {name}) & dropped.keys()) for name in isa.features}
    return {
        name: f"needs {', '.join(miss)}, which is dropped"
        for name, miss in lacking.items()
        if miss and name not in dropped
    }


def _x86(kept: frozenset[str], level: FullLevel) -> tuple[str, ...]:
    beyond = kept - level.features
    brought = {needed for name in beyond for needed in switched_on(name)}
    return (f"-march={level.march}", *(facts.feature(name).flag for name in sorted(beyond - brought)))


def _arm(kept: frozenset[str], level: FullLevel) -> tuple[str, ...]:
    extensions = [row.flag for row in map(facts.feature, sorted(kept - level.features)) if row.flag]
    return ("-march=" + "+".join([level.march, *extensions]),)


def switched_on(name: str) -> frozenset[str]:
    """What every compiler switches on with this feature's flag, so that it needs no flag of its own."""
    direct = facts.feature(name).implies
    return frozenset(direct).union(*(switched_on(needed) for needed in direct))


def _extras(held: frozenset[str], arch: str, name: str, version: int, width: str) -> tuple[str, ...]:
    rows = (row for row in compilers.table().extra if row.compiler == name and row.feature in held)
    found = [row.flag for row in rows if not row.below or not _holds_level(held, row.below, arch)]
    if not width:
        return tuple(found)
    refuse_vector_width(held, name, version, width)
    return (*(flag for flag in found if not flag.startswith(WIDTH)), f"{WIDTH}{width}")


def refuse_vector_width(held: frozenset[str], name: str, version: int, width: str) -> None:
    """A width that is none, or that this instruction set or compiler can make nothing of."""
    if width not in compilers.WIDTHS:
        raise UsageError(
            f"{width!r} is no vector width", hint=f"--prefer-vector-width {', '.join(compilers.WIDTHS)} (in bits)"
        )
    if not compilers.takes_vector_width(name, version):
        raise UnknownCompiler(f"{name}-{version} does not know {WIDTH}{width}", hint="leave out --prefer-vector-width")
    needed = "avx512f" if width == "512" else "avx"
    if needed not in held:
        raise UsageError(
            f"--prefer-vector-width {width} changes nothing: the instruction set has no {needed}",
            hint="leave it out, or name a CPU that has it",
        )


def _holds_level(held: frozenset[str], level: str, arch: str) -> bool:
    return next(row for row in facts.levels(arch) if row.name == level).features <= held


def _slow_name(named: str, arch: str, name: str, version: int) -> tuple[str, ...]:
    row = compilers.slow(named, name, version, arch) if named else None
    if row is None:
        return ()
    return (
        f"-march={row.name} is not used: with {name}-{version} it runs Eigen's GEMM at {row.ratio:.2f} of plain -mavx; "
        "the same features behind a level do not",
    )
