"""Every value of --cpu: the levels, CPUs with the processors that they are in, and features, to list and to search."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from tfbuild import facts
from tfbuild.cpu import isa, names


@dataclass(frozen=True, kw_only=True)
class CpuEntry:
    """A value of --cpu. `compiled_for`: its instruction set's name, or a feature's flag. `processors`: some with it."""

    name: str
    kind: str
    platform: str
    compiled_for: str
    processors: tuple[str, ...] = ()


def search(text: str) -> tuple[CpuEntry, ...]:
    """Return the entries with `text` in a name, and the one that it stands for. Raises Unsupported if none has."""
    part = facts.squeeze(text)
    named = names.find_product(text) if part else None
    hits = tuple(
        entry
        for entry in entries()
        if (named is not None and facts.squeeze(named.cpu) == facts.squeeze(entry.name))
        or any(_has(name, part) for name in (entry.name, *entry.processors))
    )
    if hits:
        return hits
    arch = next((arch for arch in isa.MACHINES if isa.is_known(text, arch)), "x86_64")
    resolved = isa.resolve(text, arch=arch)
    return (CpuEntry(name=text, kind="set", platform=isa.MACHINES[arch], compiled_for=resolved.name),)


def _has(name: str, part: str) -> bool:
    """Whether `part` is within a word of the name, or begins with one: "Ryzen 9 5950X" has "ryzen9", but not "zen9"."""
    words = re.split(r"[-_.\s]+", name.lower())
    return any(part in word or "".join(words[index:]).startswith(part) for index, word in enumerate(words))


@cache
def entries() -> tuple[CpuEntry, ...]:
    """Return all entries, by architecture."""
    return tuple(entry for arch in isa.MACHINES for kind in (_levels, _cpus, _features) for entry in kind(arch))


def _levels(arch: str) -> Iterator[CpuEntry]:
    for level in facts.levels(arch):
        yield _entry(level.name, "level", arch)


def _cpus(arch: str) -> Iterator[CpuEntry]:
    """Yield each CPU, and the values of --cpu that only processors' names stand for."""
    others = (row.cpu for row in names.products() if row.arch == arch and names.features(row.cpu, arch) is None)
    for name in dict.fromkeys((*names.known(arch), *others)):
        if facts.squeeze(name) != facts.squeeze(arch) and facts.level(name, arch) is None:
            yield _entry(name, "CPU", arch)


def _entry(name: str, kind: str, arch: str) -> CpuEntry:
    rows = (row for row in names.products() if row.arch == arch and names.same(row.cpu, name, arch))
    return CpuEntry(
        name=name,
        kind=kind,
        platform=isa.MACHINES[arch],
        compiled_for=isa.resolve(name, arch=arch).name,
        processors=tuple(dict.fromkeys(word for row in rows for word in (*row.examples, *row.names))),
    )


def _features(arch: str) -> Iterator[CpuEntry]:
    for row in facts.features(arch):
        yield CpuEntry(name=row.name, kind="feature", platform=isa.MACHINES[arch], compiled_for=row.flag)
