"""Estimates of an instruction set's speed, from the measurements in facts/gains.toml; there are none for aarch64."""

from functools import cache
from statistics import median

from tfbuild import facts
from tfbuild.cpu import isa
from tfbuild.facts import Facts


class SpeedRow(Facts, frozen=True):
    """A measurement; `by`: the compiler or setting of each ratio."""

    name: str
    arch: str
    what: str
    machine: str
    by: tuple[str, ...]
    source: str


class EstimatedGain(Facts, frozen=True):
    """The speed of code compiled for `cpu`, relative to code compiled with -mavx."""

    measure: str
    cpu: str
    ratios: tuple[float, ...]


class GainTable(Facts, frozen=True):
    measure: tuple[SpeedRow, ...]
    gain: tuple[EstimatedGain, ...]


def measures(arch: str = "") -> tuple[SpeedRow, ...]:
    """All measures, or those of one architecture. The first one decides which images are chosen."""
    return tuple(row for row in facts.load("gains", GainTable).measure if arch in ("", row.arch))


def measured(measure: SpeedRow) -> tuple[str, ...]:
    """The instruction sets that were timed, as --cpu takes them."""
    return tuple(row.cpu for row in facts.load("gains", GainTable).gain if row.measure == measure.name)


@cache
def _ratios(measure: str, arch: str) -> tuple[tuple[frozenset[str], float], ...]:
    rows = (row for row in facts.load("gains", GainTable).gain if row.measure == measure)
    return tuple((frozenset(isa.resolve(row.cpu, arch=arch).features), median(row.ratios)) for row in rows)


def speed(features: frozenset[str], measure: SpeedRow) -> float | None:
    """Estimated speed relative to -mavx: that of the fastest measured set within `features`.

    None if there is none, or if `features` contain a larger set that only other measures timed: what it gains is not
    known then.
    """
    within = [row for row in _ratios(measure.name, measure.arch) if row[0] <= features]
    timed = (held for row in measures(measure.arch) for held, _ in _ratios(row.name, row.arch) if held <= features)
    if any(not any(held <= own for own, _ in within) for held in timed):
        return None
    return max((ratio for _, ratio in within), default=None)


def loss(own: frozenset[str], image: frozenset[str], measure: SpeedRow) -> float | None:
    """The share of speed that a CPU with the features `own` gives up with an image compiled for `image`.

    None if either has no estimate.
    """
    best, actual = speed(own, measure), speed(image, measure)
    return None if best is None or actual is None else round(1 - actual / best, 4)
