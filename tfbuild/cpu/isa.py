"""Instruction sets, what each value of --cpu names, and the list of these values.

An instruction set is a list of features with all that they need. That of a CPU has only the features that make a
difference to TensorFlow (`relevant` in facts/features.toml), so that most CPUs share a few sets.
"""

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from tfbuild import facts
from tfbuild.cpu import names
from tfbuild.cpu.detection import STDIN, Cpu, detect
from tfbuild.errors import Unsupported, UsageError
from tfbuild.facts import Facts, Level

# The longest name that spells out its features; others get a fingerprint: a tag has 128 characters.
MOST_NAME = 48
# In --cpu, behind a comma: keep all features of the CPU.
EXACT = "exact"
NO_EFFECT = "no known effect on TensorFlow"
MACHINES = {"x86_64": "linux/amd64", "aarch64": "linux/arm64"}

# What other tools call the CPU of this machine.
HOST_WORDS = ("native", "auto", "local")
# How alike a name and its misspelling are (difflib's ratio); bonnell and broadwell, which are two CPUs, are 0.62.
LEAST_SIMILARITY = 0.8
# Models in the refusal of a name that many CPUs have.
MOST_MODELS = 4
# Between the words of --cpu; a model's name may have one itself: Intel Xeon Processor (Skylake, IBRS), and
# AMD FX-8800P Radeon R7, 12 Compute Cores 4C+8G.
SEPARATOR = re.compile(r",(?![^()]*\)|\s*\d+ compute cores\b)|\s+(?=[-+!]\w)", re.IGNORECASE)
# -march=HASWELL, as people write HASWELL; no-FEATURE, !FEATURE, FEATURE=off, as they write -FEATURE.
AS_FLAG = re.compile(r"^--?m(?:arch|cpu)=", re.IGNORECASE)
OFF = re.compile(r"^(?:no-|!)(.+)$|^(.+)=off$", re.IGNORECASE)
# The beginnings of the names of CPUs that tfbuild does not compile for.
OTHER_ARCHITECTURE = re.compile(r"power|ppc|riscv|rv64|loongarch|s390|mips|sparc", re.IGNORECASE)


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


def instruction_set(names: Iterable[str], arch: str) -> InstructionSet:
    """Return the smallest instruction set with `names`, named after its level and the features beyond it."""
    held = facts.closure(names)
    level = largest_level(held, arch)
    beyond = held - level.features
    explicit = beyond - {needed for name in beyond for needed in facts.closure([name]) - {name}}
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


def _name(beyond: frozenset[str], explicit: frozenset[str], level: Level) -> str:
    spelled = [row.word or row.name for row in facts.features(level.arch) if row.name in explicit]
    # The smallest level adds nothing to a list: "avx", not "x86-64-v1-avx".
    front = [] if spelled and level == facts.levels(level.arch)[0] else [level.name]
    name = "-".join(front + spelled)
    if len(name) > MOST_NAME:
        import hashlib

        return f"{level.name}-{hashlib.sha256(' '.join(sorted(beyond)).encode()).hexdigest()[:8]}"
    return name


# --- what makes a difference to TensorFlow ----------------------------------------------------------------------------


class Use(Facts, frozen=True):
    """A library in TensorFlow that has code for these features, chosen by "flag" or at "run time"."""

    part: str
    when: Literal["flag", "run time"]
    features: tuple[str, ...]
    source: str


uses = partial(facts.rows, "uses", Use)


def relevant(features: Iterable[str]) -> frozenset[str]:
    """Return those of a CPU's features that make a difference to TensorFlow, with all that they need."""
    held = frozenset(features)
    rows = (facts.feature(name) for name in held)
    return facts.closure(row.name for row in rows if row.relevant and row.unless not in held)


def shared(cpu: Cpu) -> frozenset[str]:
    """Return what a CPU can have in common with others: its relevant features, also those that another one replaces."""
    return frozenset(name for name in held_by(cpu) if facts.feature(name).relevant)


def left_out(feature: str) -> str:
    """Return why a CPU's set does not keep a feature that the CPU has."""
    row = facts.feature(feature)
    return f"{row.unless} does the same" if row.relevant else row.left_out or NO_EFFECT


def of_cpu(cpu: Cpu, *, exact: bool = False) -> InstructionSet:
    """Return the set to compile for on this CPU: the features that make a difference to TensorFlow.

    `exact`: all that `held_by` returns.
    """
    return instruction_set(held_by(cpu) if exact else relevant(held_by(cpu)), cpu.arch)


def held_by(cpu: Cpu) -> frozenset[str]:
    """Return all features that programs can use on this CPU, except those that `hidden` lists."""
    masked = hidden(cpu)
    return facts.closure(name for name in cpu.features if facts.feature(name).use and name not in masked)


def hidden(cpu: Cpu) -> dict[str, str]:
    """Return the features of this CPU that cannot be used because one that they need is masked, with the reason."""
    held = frozenset(cpu.features)
    lacking = ((name, sorted(facts.closure([name]) - held)) for name in cpu.features)
    return {name: f"needs {', '.join(miss)}, which is masked" for name, miss in lacking if miss}


# --- names ------------------------------------------------------------------------------------------------------------


def resolve(text: str, *, arch: str, host: Cpu | None = None) -> InstructionSet:
    """Return the instruction set that --cpu names.

    `text` is a recorded machine's file or a list of "host" or a CPU (also by a processor's name, tfbuild.cpu.names),
    levels, sets by their names, and features. A CPU stands for those of its features that make a difference to
    TensorFlow; with "exact" in the list, for all that a compiler can use. "-FEATURE" takes that feature away, and all
    that need it: "haswell,-avx2" is a Haswell without AVX2.
    Raises Unsupported with the nearest known names, UsageError for two CPUs.
    """
    parts = [OFF.sub(r"-\1\2", part) for part in _parts(text)]
    words = [part for part in parts if part.lower() != EXACT]
    exact = len(words) < len(parts)
    try:
        without = frozenset(_subtracted(word, arch) for word in words if word.startswith("-"))
        named = [word.removeprefix("+") for word in words if not word.startswith("-")]
        if not named:
            raise Unsupported(f"{text!r} names no CPU, level or feature", hint=_nearest(text, arch))
        sets = {word: _meaning(word, arch, host, exact, without) for word in named}
        _refuse_two_cpus({word: held for word, held in sets.items() if _is_cpu(word, arch)}, arch)
        return instruction_set(_left(facts.closure(frozenset().union(*sets.values())), without), arch)
    except Unsupported:
        path = re.sub(rf"(,{EXACT})+$", "", text)
        if means_host(text) or not is_recording(path):
            raise
    return of_cpu(same_architecture(detect(Path(path)), arch, path), exact=exact)


def is_recording(text: str) -> bool:
    """Whether a value of --cpu that names no CPU is a file, or stdin."""
    return text == STDIN or os.sep in text or os.path.isfile(text)


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
    if len(set(sets.values())) > 1:
        common = instruction_set(frozenset.intersection(*sets.values()), arch)
        raise UsageError(
            f"{' and '.join(sets)} are {len(sets)} CPUs; a list adds features to one",
            hint=f"--cpu {common.option} runs on all of them; invoke fleet plans the images for several machines",
        )


def means_host(text: str) -> bool:
    """Whether this value of --cpu asks for the host's CPU; an empty one does."""
    return not text or "host" in (part.removeprefix("+") for part in _parts(text))


def _parts(text: str) -> list[str]:
    return [AS_FLAG.sub("", part.strip()) for part in SEPARATOR.split(text) if part.strip()]


def _left(features: frozenset[str], without: frozenset[str]) -> frozenset[str]:
    """Return those of the features that need none of `without`."""
    return frozenset(name for name in features if not facts.closure([name]) & without)


def _meaning(word: str, arch: str, host: Cpu | None, exact: bool, without: frozenset[str]) -> frozenset[str]:
    """Return the features that one word of --cpu stands for.

    `without` is taken from a CPU's features first: one that another feature made needless may count without that one.
    """
    if word == "host":
        if host is None:
            known = ", ".join(level.name for level in facts.levels(arch))
            raise Unsupported("no host CPU is known here", hint=f"name a CPU or a level: --cpu {known}")
        own = _left(held_by(host), without)
        return own if exact else relevant(own)
    if (level := facts.level(word, arch)) is not None:
        return level.features
    if (held := _of_name(word, arch)) is not None:
        held = _left(held, without)
        return held if exact else relevant(held)
    if (held := _named(word, arch)) is not None:
        return held
    if (row := names.find_product(word)) is not None and row.arch == arch:
        return frozenset().union(*(_meaning(part, arch, host, exact, without) for part in row.cpu.split(",")))
    if len(models := names.models_beginning(word)) > 1 or (models and row is None):
        known = ", ".join(f"{model} ({cpu})" for cpu, model in [*models.items()][:MOST_MODELS])
        raise Unsupported(
            f"{word} is the name of several CPUs, such as {known}",
            hint="name the whole model; or --cpu FILE, with that machine's lscpu",
        )
    raise Unsupported(f"unknown CPU, level or feature {word!r} for {arch}", hint=_nearest(word, arch))


def _named(word: str, arch: str) -> frozenset[str] | None:
    """Return the features of a feature's or a set's name: avx2-fma, AVX2+FMA, "AVX2 FMA"; None for other words."""
    if (row := facts.spelled(word, arch)) is not None:
        return frozenset([row.name])
    below, rest = frozenset[str](), word
    for level in facts.every_level(arch):
        if word.lower().startswith((f"{level.name}-", f"{level.name}+")):
            below, rest = level.features, word[len(level.name) + 1 :]
    rows = [facts.spelled(part, arch) for part in re.split("[-+ ]", rest)]
    return None if None in rows else below | {row.name for row in rows if row is not None}


def same_architecture(cpu: Cpu, arch: str, origin: str) -> Cpu:
    """Return `cpu`; raises Unsupported if it has another architecture than the platform."""
    if cpu.arch != arch:
        raise Unsupported(
            f"{origin} describes an {cpu.arch} CPU, not an {arch} one", hint=f"--platform {MACHINES[cpu.arch]}"
        )
    return cpu


def _nearest(name: str, arch: str) -> str:
    if name.lower() in HOST_WORDS:
        return "--cpu host is the CPU of this machine"
    if OTHER_ARCHITECTURE.match(name):
        return f"tfbuild compiles only for {' and '.join(MACHINES)}"
    for other, platform in MACHINES.items():
        if other != arch and is_known(name, other):
            return f"{name} is for {other}: --platform {platform}"
    from difflib import get_close_matches

    levels = [row.name for row in facts.every_level(arch)]
    words = (*levels, *(row.name for row in facts.features(arch)), *names.known_names(arch))
    known = [*{facts.squeeze(word): word for word in reversed(words)}.values()][::-1]
    begun = [word for word in known if len(name) > 1 and word.startswith(name.lower())]
    near = begun[:MOST_MODELS] or get_close_matches(name.lower(), known, n=3, cutoff=LEAST_SIMILARITY)
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


# --- the list of all values -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class CpuEntry:
    """A value of --cpu. `compiled_for`: its instruction set's name, or a feature's flag. `processors`: some with it."""

    name: str
    kind: str
    platform: str
    compiled_for: str
    processors: tuple[str, ...] = ()


def search(text: str) -> tuple[CpuEntry, ...]:
    """Return the entries whose name contains `text`, and the one that it stands for; raises Unsupported without any."""
    part = facts.squeeze(text)
    named = names.find_product(text) if part else None
    hits = tuple(
        entry
        for arch in MACHINES
        for entry in entries(arch)
        if (named is not None and facts.squeeze(named.cpu) == facts.squeeze(entry.name))
        or any(part in facts.squeeze(name) for name in (entry.name, *entry.processors))
    )
    if hits:
        return hits
    host = detect() if means_host(text) else None
    first = (_parts(text) or [text])[0].removeprefix("+")
    arch = host.arch if host else next((arch for arch in MACHINES if is_known(first, arch)), "x86_64")
    resolved = resolve(text, arch=arch, host=host)
    return (CpuEntry(name=text, kind="set", platform=MACHINES[arch], compiled_for=resolved.name),)


def entries(arch: str) -> Iterator[CpuEntry]:
    """Yield an architecture's levels, its CPUs with the processors that they are in, and its features."""
    levels = [row.name for row in facts.every_level(arch)]
    rows = [row for row in names.products() if row.arch == arch]
    # Some values only stand for processors.
    cpus = (*names.known_names(arch), *(row.cpu for row in rows if names.features(row.cpu, arch) is None))
    others = [cpu for cpu in cpus if facts.squeeze(cpu) != facts.squeeze(arch) and facts.level(cpu, arch) is None]
    for name in dict.fromkeys((*levels, *others)):
        own = (row for row in rows if facts.squeeze(row.cpu) == facts.squeeze(name))
        yield CpuEntry(
            name=name,
            kind="level" if name in levels else "CPU",
            platform=MACHINES[arch],
            compiled_for=resolve(name, arch=arch).name,
            processors=tuple(dict.fromkeys(word for row in own for word in (*row.examples, *row.names))),
        )
    for row in facts.features(arch):
        yield CpuEntry(name=row.name, kind="feature", platform=MACHINES[arch], compiled_for=row.flag)
