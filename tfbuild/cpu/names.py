"""Names of CPUs: archspec's, Spack's and the compilers' own, old spellings and new, as the features they stand for."""

from functools import cache
from typing import Any

from tfbuild import facts
from tfbuild.facts import Facts


class CpuName(Facts, frozen=True):
    """What archspec lacks: a name with its level and the features beyond, or features beyond those of `same`."""

    name: str
    arch: str
    level: str = ""
    features: tuple[str, ...] = ()
    same: str = ""


class CpuNameTable(Facts, frozen=True):
    name: tuple[CpuName, ...]


def features(asked: str, arch: str) -> frozenset[str] | None:
    """What a CPU of that name has, without what tfbuild never emits (`use` of facts/features.toml); None: unknown."""
    row = _rows(arch).get(facts.squeeze(asked), CpuName(name=asked, arch=arch, same=asked))
    target = _targets(arch).get(facts.squeeze(row.same))
    if not row.level and target is None:
        return None
    level = next((level.features for level in facts.levels(arch) if level.name == row.level), frozenset[str]())
    spelled = (facts.spelled(name, arch) for name in (target.features if target is not None else ()))
    found = {feature.name for feature in spelled if feature is not None}
    return frozenset(name for name in facts.closure(level | found | {*row.features}) if facts.feature(name).use)


def known(arch: str) -> tuple[str, ...]:
    """The names to suggest to a user: archspec's and the rows of facts/names.toml."""
    from archspec.cpu import TARGETS

    own = (name for name, target in TARGETS.items() if _has_features(target, arch))
    return tuple(dict.fromkeys((*own, *(row.name for row in _rows(arch).values()))))


def same(asked: str, other: str, arch: str) -> bool:
    """Whether two names are of one CPU: skylake-avx512 and skylake_avx512, haswell and core-avx2."""
    if facts.squeeze(asked) == facts.squeeze(other):
        return True
    targets = _targets(arch)
    first, second = (targets.get(facts.squeeze(name)) for name in (asked, other))
    return first is not None and first is second


def _has_features(target: Any, arch: str) -> bool:
    """archspec knows armv8.3a to armv9.2a by their flags alone: what a CPU of those has is more than it says."""
    return bool(target.family.name == arch and (target.features or target.name in ("x86_64", "aarch64")))


@cache
def _rows(arch: str) -> dict[str, CpuName]:
    return {facts.squeeze(row.name): row for row in facts.load("names", CpuNameTable).name if row.arch == arch}


@cache
def _targets(arch: str) -> dict[str, Any]:
    """archspec's targets by their own names and, after those, by the compilers' names of them.

    A compiler that is too old for a CPU gets the name of an older one there (zen4 is "znver3" to GCC 11), so that the
    first target with a name, the oldest, is the one that it means.
    """
    from archspec.cpu import TARGETS

    found = {facts.squeeze(name): target for name, target in TARGETS.items() if _has_features(target, arch)}
    for target in list(found.values()):
        for entry in (entry for compiler in ("gcc", "clang") for entry in target.compilers.get(compiler, ())):
            if "name" in entry:
                found.setdefault(facts.squeeze(entry["name"]), target)
    return found
