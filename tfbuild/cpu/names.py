"""CPUs by name: archspec's, Spack's and the compilers' names with their features, and processors as people know them.

A processor's name is "EPYC 7763", or a model name of /proc/cpuinfo (facts/products.toml).
"""

import re
from functools import cache, lru_cache, partial
from typing import Any

from tfbuild import facts
from tfbuild.facts import Facts


class CpuName(Facts, frozen=True):
    """A CPU that archspec lacks, by its level and further features, or as the CPU `same` with further features."""

    name: str
    arch: str
    level: str = ""
    features: tuple[str, ...] = ()
    same: str = ""


def features(name: str, arch: str) -> frozenset[str] | None:
    """Return the features of that CPU that tfbuild uses (`use` of facts/features.toml); None for an unknown name."""
    row = _rows(arch).get(facts.squeeze(name), CpuName(name=name, arch=arch, same=name))
    target = _targets(arch).get(facts.squeeze(row.same))
    if not row.level and target is None:
        return None
    lacking = _rows(arch).get(facts.squeeze(target.name)) if target is not None else None
    level = facts.level(row.level, arch)
    rows = (facts.spelled(spelling, arch) for spelling in (target.features if target is not None else ()))
    of_target = {feature.name for feature in rows if feature is not None}
    more = (*row.features, *(lacking.features if lacking else ()))
    held = facts.closure({*(level.features if level else ()), *of_target, *more})
    return frozenset(feature for feature in held if facts.feature(feature).use)


def known_names(arch: str) -> tuple[str, ...]:
    """Return the names to suggest to a user: archspec's and those of facts/names.toml."""
    from archspec.cpu import TARGETS

    own = (name for name, target in TARGETS.items() if _has_features(target, arch))
    return tuple(dict.fromkeys((*own, *(row.name for row in _rows(arch).values()))))


def _has_features(target: Any, arch: str) -> bool:
    """Whether archspec lists the target's features; for armv8.3a to armv9.2a it has only compiler flags."""
    return bool(target.family.name == arch and (target.features or target.name in ("x86_64", "aarch64")))


@cache
def _rows(arch: str) -> dict[str, CpuName]:
    return {facts.squeeze(row.name): row for row in facts.rows("names", CpuName) if row.arch == arch}


@cache
def _targets(arch: str) -> dict[str, Any]:
    """Return archspec's targets by their own names and, after those, by the compilers' names.

    For a compiler that is too old for a CPU, archspec has the name of an older one (zen4 is "znver3" to GCC 11), so a
    name means the first target that has it, which is the oldest.
    """
    from archspec.cpu import TARGETS

    by_name = {facts.squeeze(name): target for name, target in TARGETS.items() if _has_features(target, arch)}
    for target in list(by_name.values()):
        for entry in (entry for compiler in ("gcc", "clang") for entry in target.compilers.get(compiler, ())):
            if "name" in entry:
                by_name.setdefault(facts.squeeze(entry["name"]), target)
    return by_name


# --- processors -------------------------------------------------------------------------------------------------------

# What a name has beside the processor: marks, the clock, graphics, the number of cores, the generation, the vendor.
FILLING_WORDS = re.compile(
    r"\((r|tm)\)|[®™]|@.*|\b(with|w/) .*\bradeon\b.*|\bradeon r\d\b.*|\b\d+\w\w gen\b"
    r"|\b(\d+|dual|triple|quad|six|eight)[- ]cores?\b"
    r"|\b(extreme edition|x[- ]series)\b"
    r"|\b(intel|amd|apple( silicon)?|ampere|aws|amazon|google|microsoft|azure|nvidia)\b"
    r"|\b(cpu|apu|soc|processors?|series|surface|edition)\b"
)
# Words in front of a number that people leave out.
FAMILY = "(core|xeon|ryzen|epyc)?"
# How people shorten the family.
SHORT_NAMES = ((r"^r([3579])\b(?!\.)", r"ryzen \1"), (r"^tr\b", "threadripper"))
# Behind the name of a QEMU CPU model: -noTSX-IBRS, -v2, "Skylake, IBRS, no TSX", "IBRS update".
QEMU_VERSION = r"(notsx|nompx|noxsaves|ib(rs|pb)|update|v\d)*"
# Letters of a name, more than any has.
MOST_LETTERS = 100
# A text that may be the beginning of a processor's name.
WORDY = re.compile(r"[a-z][a-z0-9-]+")


class Product(Facts, frozen=True):
    """Processors that are the same `cpu`, a value of --cpu; see facts/products.toml."""

    cpu: str
    examples: tuple[str, ...]
    arch: str = "x86_64"
    models: str = ""
    names: tuple[str, ...] = ()
    qemu: tuple[str, ...] = ()
    note: str = ""
    source: str = ""


products = partial(facts.rows, "products", Product)


# All examples are compared with each name that is looked up.
@lru_cache(maxsize=2**11)
def normalize(text: str) -> str:
    """Return a name as the patterns spell it: "Intel(R) Core(TM) i7-6700" is "corei7-6700"."""
    text = FILLING_WORDS.sub(" ", text[:MOST_LETTERS].lower()).strip()
    for short, long in SHORT_NAMES:
        text = re.sub(short, long, text)
    words = re.findall(r"[a-z0-9]+", text)
    return re.sub(r"(?<!\d)-|-(?!\d)", "", "-".join(words))


# A CPU's name is looked up for each architecture, and for each release that may be planned.
@lru_cache(maxsize=2**8)
def find_product(text: str) -> Product | None:
    """Return the processors that `text` names."""
    name = normalize(text)
    return next((row for row, pattern in _patterns() if pattern.fullmatch(name)), None)


@cache
def _patterns() -> tuple[tuple[Product, re.Pattern[str]], ...]:
    def pattern(row: Product) -> str:
        models = (f"{normalize(name)}{QEMU_VERSION}" for name in row.qemu)
        return "|".join(filter(None, (row.models, *map(normalize, row.names), *models)))

    return tuple((row, re.compile(pattern(row))) for row in products())


def models_beginning(text: str) -> dict[str, str]:
    """Return the CPUs of the models whose names begin with `text` ("i5", "Apple"), each with one of those models."""
    # A vendor alone is normalized to nothing.
    name = normalize(text) or facts.squeeze(text)
    if not WORDY.fullmatch(name):
        return {}
    beginning = re.compile(f"{FAMILY}{re.escape(name)}")
    found: dict[str, str] = {}
    for row in products():
        for model in row.examples:
            if any(map(beginning.match, (normalize(model), facts.squeeze(model)))):
                found.setdefault(row.cpu, model)
    return found
