"""Which features of a CPU make a difference to TensorFlow, and where: facts/uses.toml."""

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


class Beyond(Facts, frozen=True):
    """A feature in no level. `kept`: in a CPU's set, but not beside the feature `unless`; `reason`: why, or why not."""

    feature: str
    kept: bool
    reason: str
    source: str
    unless: str = ""


class UseTable(Facts, frozen=True):
    use: tuple[Use, ...]
    beyond: tuple[Beyond, ...]


def table() -> UseTable:
    """Return the rows of facts/uses.toml."""
    return facts.load("uses", UseTable)


def relevant(features: Iterable[str], arch: str) -> frozenset[str]:
    """Return those of a CPU's features that are in a level or make a difference to TensorFlow, with all they need."""
    held = frozenset(features)
    rows = {row.feature: row for row in table().beyond}
    in_levels = facts.levels(arch)[-1].features
    return facts.closure(
        name
        for name in held
        if name in in_levels or ((row := rows.get(name)) is not None and row.kept and row.unless not in held)
    )


def left_out(feature: str) -> str:
    """Return why a CPU's set does not keep a feature that the CPU has."""
    row = next((row for row in table().beyond if row.feature == feature), None)
    if row is None:
        return LEFT_OUT
    return f"{row.unless} does the same" if row.kept else row.reason
