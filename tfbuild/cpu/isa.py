"""Instruction sets, and what each value of --cpu names.

An instruction set is a list of features with all that they need. That of a CPU has only the features that make a
difference to TensorFlow (`relevant` in facts/features.toml), so that most CPUs share a few sets.
"""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tfbuild import facts
from tfbuild.cpu import names, uses
from tfbuild.cpu.detection import STDIN, Cpu, detect
from tfbuild.errors import Unsupported, UsageError
from tfbuild.facts import Level

# The longest name that spells out its features; others get a fingerprint: a tag has 128 characters.
MOST_NAME = 48
# In --cpu, behind a comma: keep all features of the CPU.
EXACT = "exact"
MACHINES = {"x86_64": "linux/amd64", "aarch64": "linux/arm64"}

# What other tools call the CPU of this machine, all that it has, and what every CPU has.
MEANING_HOST = ("native", "auto", "local", "this", "mine", "current")
MEANING_ALL = ("all", "max", "full", "everything")
MEANING_SMALLEST = ("none", "generic", "baseline", "any", "portable", "min", "minimal", "default")
# How alike a name and its misspelling are (difflib's ratio); bonnell and broadwell, which are two CPUs, are 0.62.
ALIKE = 0.8
# Models in the refusal of a name that many CPUs have.
MOST_MODELS = 4
# Between the words of --cpu; a model's name may have one itself: Intel Xeon Processor (Skylake, IBRS), and
# AMD FX-8800P Radeon R7, 12 Compute Cores 4C+8G.
COMMA = re.compile(r",(?![^()]*\)|\s*\d+ compute cores\b)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class InstructionSet:
    """`features`: canonical names, sorted, with all that they need. `level`: the largest level that they contain.

    `option`: the value of `--cpu` for exactly this set: its level and the features beyond, without implied ones.
    """

    name: str
    arch: str
    level: str
    features: tuple[str, ...]
    option: str


@dataclass(frozen=True, kw_only=True)
class DroppedFeature:
    """A feature that gets no flag, and why."""

    feature: str
    reason: str


def instruction_set(names: Iterable[str], arch: str) -> InstructionSet:
    """Return the smallest instruction set with `names`, named after its level and the features beyond it."""
    held = facts.closure(names)
    level = largest_level(held, arch)
    beyond = held - level.features
    explicit = beyond - _implied(beyond)
    return InstructionSet(
        name=_name(beyond, explicit, level),
        arch=arch,
        level=level.name,
        features=tuple(sorted(held)),
        option=",".join((level.name, *sorted(explicit))),
    )


def largest_level(held: frozenset[str], arch: str, compiler: str = "", version: int = 0) -> Level:
    """Return the largest level within `held` that `compiler` ("": any) knows; the smallest one is always known."""
    known = [level for level in facts.levels(arch) if not compiler or getattr(level, compiler) <= version]
    return next((level for level in reversed(known) if level.features <= held), facts.levels(arch)[0])


def intersection(sets: Iterable[InstructionSet]) -> InstructionSet:
    """Return the largest instruction set within all of `sets`; the intersection of closed sets is closed, too.

    Raises UsageError if there are no sets, or they have different architectures.
    """
    members = tuple(sets)
    archs = sorted({member.arch for member in members})
    if len(archs) != 1:
        machines = " and ".join(archs) or "no instruction set at all"
        raise UsageError(f"no instruction set is common to {machines}", hint="name machines of one architecture")
    return instruction_set(frozenset.intersection(*(frozenset(member.features) for member in members)), archs[0])


def _name(beyond: frozenset[str], explicit: frozenset[str], level: Level) -> str:
    spelled = [row.word or row.name for row in facts.features(level.arch) if row.name in explicit]
    # The smallest level adds nothing to a list: "avx", not "x86-64-v1-avx".
    front = [] if spelled and level == facts.levels(level.arch)[0] else [level.name]
    name = "-".join(front + spelled)
    if len(name) > MOST_NAME:
        import hashlib

        return f"{level.name}-{hashlib.sha256(' '.join(sorted(beyond)).encode()).hexdigest()[:8]}"
    return name


def _implied(names: Iterable[str]) -> frozenset[str]:
    return frozenset(needed for name in names for needed in facts.closure([name]) - {name})


def of_cpu(cpu: Cpu) -> InstructionSet:
    """Return what to compile for this CPU: what makes a difference to TensorFlow of `all_of_cpu`."""
    return instruction_set(uses.relevant(facts.closure(_usable(cpu))), cpu.arch)


def all_of_cpu(cpu: Cpu) -> InstructionSet:
    """Return all that programs can use on this CPU, without features that need a masked one (`hidden`)."""
    return instruction_set(_usable(cpu), cpu.arch)


def _usable(cpu: Cpu) -> list[str]:
    masked = {item.feature for item in hidden(cpu)}
    return [name for name in cpu.features if facts.feature(name).use and name not in masked]


def hidden(cpu: Cpu) -> tuple[DroppedFeature, ...]:
    """Return the features of this CPU that cannot be used because one that they need is masked."""
    held = frozenset(cpu.features)
    lacking = ((name, sorted(facts.closure([name]) - held)) for name in cpu.features)
    return tuple(
        DroppedFeature(feature=name, reason=f"needs {', '.join(miss)}, which is masked")
        for name, miss in lacking
        if miss
    )


# --- names ------------------------------------------------------------------------------------------------------------


def resolve(text: str, *, arch: str, host: Cpu | None = None) -> InstructionSet:
    """Return the instruction set that --cpu names.

    `text` is a recorded machine's file or a list of "host" or a CPU (also by a processor's name, tfbuild.cpu.names),
    levels, sets by their names, and features. A CPU stands for those of its features that make a difference to
    TensorFlow; with "exact" in the list, for all that a compiler can use. "-FEATURE" takes that feature away, and all
    that need it: "haswell,-avx2" is a Haswell without AVX2 and FMA.
    Raises Unsupported with the nearest known names, UsageError for two CPUs.
    """
    parts = [part.strip() for part in COMMA.split(text) if part.strip()]
    words = [part for part in parts if part.lower() != EXACT]
    exact = len(words) < len(parts)
    try:
        without = frozenset(_subtracted(word, arch) for word in words if word.startswith("-"))
        named = [word.removeprefix("+") for word in words if not word.startswith("-")]
        if not named:
            raise Unsupported(f"{text!r} names no CPU, level or feature", hint=_nearest(text, arch))
        sets = {word: _meaning(word, arch, host, exact) for word in named}
        _refuse_two_cpus({word: held for word, held in sets.items() if _is_cpu(word, arch)}, arch)
        held = facts.closure(frozenset().union(*sets.values()))
        return instruction_set((name for name in held if not facts.closure([name]) & without), arch)
    except Unsupported:
        path = text.removesuffix(f",{EXACT}")
        if means_host(text) or not (path == STDIN or os.sep in path or os.path.isfile(path)):
            raise
    return _of(same_architecture(detect(Path(path)), arch, path), exact)


def _subtracted(word: str, arch: str) -> str:
    """Return the feature that "-FEATURE" takes away; raises Unsupported for another word."""
    if (row := facts.spelled(word, arch)) is None:
        raise Unsupported(f"unknown feature {word!r} for {arch}", hint=_nearest(word, arch))
    return row.name


def _is_cpu(word: str, arch: str) -> bool:
    """Whether a word of --cpu names a machine's CPU, not a level, a set or a feature."""
    if word == "host":
        return True
    if facts.level(word, arch) is not None or _named(word, arch) is not None:
        return False
    return _of_name(word, arch) is not None or names.find_product(word) is not None


def _refuse_two_cpus(sets: dict[str, frozenset[str]], arch: str) -> None:
    """Raise UsageError for CPUs with different sets: no image for both has all that each of them has."""
    if len(set(sets.values())) > 1:
        common = instruction_set(frozenset.intersection(*sets.values()), arch)
        raise UsageError(
            f"{' and '.join(sets)} are {len(sets)} CPUs; a list adds features to one",
            hint=f"--cpu {common.option} runs on all of them; invoke fleet plans the images for several machines",
        )


def means_host(text: str) -> bool:
    """Whether this value of --cpu asks for the host's CPU; an empty one does."""
    return not text or "host" in (part.strip() for part in text.split(","))


def _of(cpu: Cpu, exact: bool) -> InstructionSet:
    return all_of_cpu(cpu) if exact else of_cpu(cpu)


def _meaning(word: str, arch: str, host: Cpu | None, exact: bool) -> frozenset[str]:
    """Return the features that one word of --cpu stands for."""
    if word == "host":
        if host is None:
            known = ", ".join(level.name for level in facts.levels(arch))
            raise Unsupported("no host CPU is known here", hint=f"name a CPU or a level: --cpu {known}")
        return frozenset(_of(host, exact).features)
    if (level := facts.level(word, arch)) is not None:
        return level.features
    if (held := _of_name(word, arch)) is not None:
        return held if exact else uses.relevant(held)
    if (held := _named(word, arch)) is not None:
        return held
    if (row := names.find_product(word)) is not None and row.arch == arch:
        return frozenset().union(*(_meaning(part, arch, host, exact) for part in row.cpu.split(",")))
    if len(models := names.models_beginning(word)) > 1 or (models and row is None):
        known = ", ".join(f"{model} ({cpu})" for cpu, model in [*models.items()][:MOST_MODELS])
        raise Unsupported(
            f"{word} is the name of several CPUs, such as {known}",
            hint="name the whole model; or --cpu FILE, with that machine's lscpu",
        )
    raise Unsupported(f"unknown CPU, level or feature {word!r} for {arch}", hint=_nearest(word, arch))


def _named(word: str, arch: str) -> frozenset[str] | None:
    """Return the features of a feature's or a set's name ("avx2-fma", "x86-64-v4-vnni-bf16"); None for other words.

    Compilers put a "+" between features.
    """
    if (row := facts.spelled(word, arch)) is not None:
        return frozenset([row.name])
    below: frozenset[str] = frozenset()
    for level in facts.levels(arch):
        if word.lower().startswith((f"{level.name}-", f"{level.name}+")):
            below, rest = level.features, word[len(level.name) + 1 :]
    rows = [facts.spelled(part, arch) for part in re.split("[-+]", rest if below else word)]
    return None if None in rows else below | {row.name for row in rows if row is not None}


def same_architecture(cpu: Cpu, arch: str, origin: str) -> Cpu:
    """Return `cpu`; raises Unsupported if it has another architecture than the platform."""
    if cpu.arch != arch:
        raise Unsupported(
            f"{origin} describes an {cpu.arch} CPU, not an {arch} one", hint=f"--platform {MACHINES[cpu.arch]}"
        )
    return cpu


def refuse_without_level(text: str, arch: str) -> None:
    """Raise UsageError for a list without a level, if every CPU with its features has a larger level: amx_tile."""
    words = [word for word in COMMA.split(text) if not word.strip().startswith("-")]
    rows = [row for word in words if (row := facts.spelled(word, arch)) is not None]
    beyond = {row.name for row in rows} - facts.levels(arch)[-1].features
    if len(rows) < len(words) or not beyond:
        return
    own = largest_level(facts.closure(row.name for row in rows), arch)
    sets = (held for name in names.known(arch) if (held := names.features(name, arch)) is not None and beyond <= held)
    smallest = min((largest_level(held, arch) for held in sets), key=lambda level: len(level.features), default=own)
    if not smallest.features <= own.features:
        raise UsageError(
            f"every CPU with {' and '.join(sorted(beyond))} has all of {smallest.name}, which this list leaves out",
            hint=f"--cpu {','.join((smallest.name, *(row.name for row in rows)))}",
        )


def _nearest(name: str, arch: str) -> str:
    if name.lower().lstrip("-").removeprefix("march=").removeprefix("mcpu=") in MEANING_HOST:
        return "--cpu host is the CPU of this machine"
    if name.lower() in MEANING_ALL:
        return f"--cpu host,{EXACT} keeps every feature of this machine's CPU"
    if name.lower() in MEANING_SMALLEST:
        return f"--cpu {facts.levels(arch)[0].name} runs on every {arch} CPU"
    for other, platform in MACHINES.items():
        if other != arch and is_known(name, other):
            return f"{name} is for {other}: --platform {platform}"
    levels, features = ([row.name for row in rows] for rows in (facts.levels(arch), facts.features(arch)))
    generic = {facts.squeeze(known) for known in (arch, *levels, *features)}
    others = features + [known for known in names.known(arch) if facts.squeeze(known) not in generic]
    from difflib import get_close_matches

    begun = [known for known in levels + others if len(name) > 1 and known.startswith(name.lower())]
    near = begun[:MOST_MODELS] or get_close_matches(name.lower(), levels, n=3)
    near = near or get_close_matches(name.lower(), others, n=3, cutoff=ALIKE)
    if not near:
        return f"a level ({', '.join(levels)}), a CPU such as 'EPYC 7763', or --cpu host; invoke cpus lists all"
    return f"nearest: {', '.join(near)}; or --cpu host"


def is_known(name: str, arch: str) -> bool:
    """Whether `name`, one word of --cpu, means something for the architecture."""
    is_fact = facts.level(name, arch) is not None or _named(name, arch) is not None
    row = names.find_product(name)
    return is_fact or _of_name(name, arch) is not None or (row is not None and row.arch == arch)


def _of_name(word: str, arch: str) -> frozenset[str] | None:
    """Return the features of archspec's and the compilers' names, also with a vendor in front: "AMD Zen 4".

    GCC's "corei7" is the first Core i7. "Core i7", as people write it, may be any of them, which gives None.
    """
    if word.lower() != facts.squeeze(word) and len(names.models_beginning(word)) > 1:
        return None
    return names.features(word, arch) or names.features(names.normalize(word), arch)
