"""Processors by the names that people know (facts/products.toml): "EPYC 7763", or a model name of /proc/cpuinfo."""

import re
from functools import cache, lru_cache

from tfbuild import facts
from tfbuild.facts import Facts

# What a name has beside the processor: marks, the clock, graphics, the number of cores, the generation, the vendor.
FILLING = re.compile(
    r"\((r|tm)\)|[®™]|@.*|\b(with|w/) .*\bradeon\b.*|\b\d+\w\w gen\b|\b(\d+|dual|triple|quad|six|eight)-core\b"
    r"|\b(intel|amd|apple|ampere|aws|amazon|google|microsoft|azure|nvidia|cpu|apu|processors?|series|surface|edition)\b"
)
# Words in front of a number that people leave out.
FAMILY = "(core|xeon|ryzen|epyc)?"
# Letters of a name, more than any has.
MOST = 100
# A text that may be the beginning of a processor's name.
WORDY = re.compile(r"[a-z][a-z0-9-]+")


class Product(Facts, frozen=True):
    """Processors that are the same `cpu`, a value of --cpu; see facts/products.toml."""

    cpu: str
    examples: tuple[str, ...]
    arch: str = "x86_64"
    models: str = ""
    names: tuple[str, ...] = ()
    source: str = ""


class ProductTable(Facts, frozen=True):
    product: tuple[Product, ...]


def table() -> tuple[Product, ...]:
    return facts.load("products", ProductTable).product


def spelled(text: str) -> str:
    """Spell a name as the patterns do: without filling words, and with a "-" only between two digits."""
    words = re.findall(r"[a-z0-9]+", FILLING.sub(" ", text[:MOST].lower()))
    return re.sub(r"(?<!\d)-|-(?!\d)", "", "-".join(words))


# A CPU's name is looked up for each architecture, and for each release that may be planned.
@lru_cache(maxsize=2**8)
def find(text: str) -> Product | None:
    """Return the processors that `text` names."""
    name = spelled(text)
    return next((row for row, pattern in _patterns() if pattern.fullmatch(name)), None)


@cache
def _patterns() -> tuple[tuple[Product, re.Pattern[str]], ...]:
    def pattern(row: Product) -> str:
        return "|".join(filter(None, (row.models, *map(spelled, row.names))))

    return tuple((row, re.compile(pattern(row))) for row in table())


def begun(text: str) -> dict[str, str]:
    """Return the CPUs of the models whose names `text` begins ("i5", "Xeon Gold"), each with one of the models."""
    if not WORDY.fullmatch(name := spelled(text)):
        return {}
    beginning = re.compile(FAMILY + re.escape(name))
    models = ((row, model) for row in table() for model in row.examples if beginning.match(spelled(model)))
    return {row.cpu: model for row, model in models}
