"""CPUs by name: archspec's, Spack's and the compilers' names with their features, and processors as people know them.

A processor's name is "EPYC 7763", or a model name of /proc/cpuinfo (facts/products.toml).
"""

import re
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from typing import Any

from tfbuild import facts
from tfbuild.facts import Facts


class CpuName(Facts, frozen=True):
    """A name that archspec lacks, with its level and the features beyond, or features to add to those of `same`."""

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


def known(arch: str) -> tuple[str, ...]:
    """Return the names to suggest to a user: archspec's and those of facts/names.toml."""
    from archspec.cpu import TARGETS

    own = (name for name, target in TARGETS.items() if _has_features(target, arch))
    return tuple(dict.fromkeys((*own, *(row.name for row in _rows(arch).values()))))


def same(one: str, other: str, arch: str) -> bool:
    """Whether two names mean one CPU: skylake-avx512 and skylake_avx512, haswell and core-avx2."""
    if facts.squeeze(one) == facts.squeeze(other):
        return True
    targets = _targets(arch)
    first, second = (targets.get(facts.squeeze(name)) for name in (one, other))
    return first is not None and first is second


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
FILLING = re.compile(
    r"\((r|tm)\)|[®™]|@.*|\b(with|w/) .*\bradeon\b.*|\bradeon r\d\b.*|\b\d+\w\w gen\b"
    r"|\b(\d+|dual|triple|quad|six|eight)[- ]cores?\b"
    r"|\b(intel|amd|apple( silicon)?|ampere|aws|amazon|google|microsoft|azure|nvidia)\b"
    r"|\b(cpu|apu|soc|processors?|series|surface|edition)\b"
)
# Words in front of a number that people leave out.
FAMILY = "(core|xeon|ryzen|epyc)?"
# How people shorten the family.
SHORTENED = ((r"^r([3579])\b", r"ryzen \1"), (r"^tr\b", "threadripper"))
# Digits left open: "E5-26xx v2", "i7-12xxx". With one of LETTERS behind them, some models are another CPU.
OPEN = re.compile(r"(?<=\d)x{2,3}", re.IGNORECASE)
LETTERS = ("", "g", "h", "k", "u", "x")
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


class Vendor(Facts, frozen=True):
    """What the names of a vendor's models begin with, for its `name` alone; `families`: a regular expression."""

    name: str
    families: str


class Number(Facts, frozen=True):
    """What stands before a number of such a form in models' names, for a number alone; `form`: a regular expression."""

    form: str
    families: tuple[str, ...]


class ProductTable(Facts, frozen=True):
    vendor: tuple[Vendor, ...]
    number: tuple[Number, ...]
    product: tuple[Product, ...]


def _table() -> ProductTable:
    return facts.load("products", ProductTable)


def products() -> tuple[Product, ...]:
    """Return the processors of facts/products.toml."""
    return _table().product


def normalize(text: str) -> str:
    """Return a name as the patterns spell it: without filling words, and with a "-" only between two digits."""
    text = FILLING.sub(" ", text[:MOST_LETTERS].lower()).strip()
    for short, long in SHORTENED:
        text = re.sub(short, long, text)
    words = re.findall(r"[a-z0-9]+", text)
    return re.sub(r"(?<!\d)-|-(?!\d)", "", "-".join(words))


# A CPU's name is looked up for each architecture, and for each release that may be planned.
@lru_cache(maxsize=2**8)
def find_product(text: str) -> Product | None:
    """Return the processors that `text` names, or may stand for if they all are one CPU."""
    if (row := _fitting(text)) is None and len(meant := _meant(text)) == 1:
        return _fitting(*meant.values())
    return row


def _fitting(text: str) -> Product | None:
    name = normalize(text)
    return next((row for row, pattern in _patterns() if pattern.fullmatch(name)), None)


@cache
def _patterns() -> tuple[tuple[Product, re.Pattern[str]], ...]:
    def pattern(row: Product) -> str:
        models = (f"{normalize(name)}{QEMU_VERSION}" for name in row.qemu)
        return "|".join(filter(None, (row.models, *map(normalize, row.names), *models)))

    return tuple((row, re.compile(pattern(row))) for row in products())


@lru_cache(maxsize=2**8)
def _meant(text: str) -> dict[str, str]:
    """Return the CPUs that a name with open digits, or a number alone, may stand for, each with such a name."""
    return _first_of_each((row.cpu, model) for model in _completed(text) if (row := _fitting(model)) is not None)


def _completed(text: str) -> Iterator[str]:
    if len(text) <= MOST_LETTERS and (digits := OPEN.search(text)):
        before, after = text[: digits.start()], text[digits.end() :]
        for width, letters in ((len(digits[0]), [after] if after else LETTERS), (len(digits[0]) - 1, [f"x{after}"])):
            yield from (f"{before}{number:0{width}}{rest}" for number in range(10**width) for rest in letters)
    else:
        name = normalize(text)
        matches = ((re.fullmatch(row.form, name), row.families) for row in _table().number)
        yield from (f"{family}{match[1].upper()}" for match, families in matches if match for family in families)


def models_beginning(text: str) -> dict[str, str]:
    """Return the CPUs of the models that `text` may mean, each with one of those models.

    It is the beginning of their names ("i5", "Apple"), a name with open digits, or a number alone.
    """
    # A vendor alone is normalized to nothing.
    name = normalize(text) or facts.squeeze(text)
    if not WORDY.fullmatch(name):
        return _meant(text)
    families = next((row.families for row in _table().vendor if row.name == name), re.escape(name))
    beginning = re.compile(f"{FAMILY}({families})")
    models = ((row.cpu, model) for row in products() for model in row.examples)
    begun = (row for row in models if any(map(beginning.match, (normalize(row[1]), facts.squeeze(row[1])))))
    return _first_of_each(begun) or _meant(text)


def _first_of_each(models: Iterable[tuple[str, str]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for cpu, model in models:
        found.setdefault(cpu, model)
    return found
