"""Which features of a CPU make a difference to TensorFlow, and which of its libraries have code for them."""

from collections.abc import Iterable
from typing import Literal

from tfbuild import facts
from tfbuild.facts import Facts

LEFT_OUT = "no known effect on TensorFlow"


class Use(Facts, frozen=True):
    """A library in TensorFlow that has code for these features, chosen by "flag" or at "run time"."""

    part: str
    when: Literal["flag", "run time"]
    features: tuple[str, ...]
    source: str


def table() -> tuple[Use, ...]:
    """Return the rows of facts/uses.toml."""
    return facts.rows("uses", Use)


def relevant(features: Iterable[str]) -> frozenset[str]:
    """Return those of a CPU's features that make a difference to TensorFlow, with all that they need."""
    held = frozenset(features)
    rows = (facts.feature(name) for name in held)
    return facts.closure(row.name for row in rows if row.relevant and row.unless not in held)


def left_out(feature: str) -> str:
    """Return why a CPU's set does not keep a feature that the CPU has."""
    row = facts.feature(feature)
    return f"{row.unless} does the same" if row.relevant else row.left_out or LEFT_OUT
