"""What an instruction set is worth, from the measured rows of facts/gains.toml: estimates, and none for aarch64."""

from functools import cache
from statistics import median

from tfbuild import facts
from tfbuild.cpu import isa
from tfbuild.facts import Facts


class SpeedRow(Facts, frozen=True):
    """What was timed; `by`: the compiler or setting of each ratio."""

    name: str
    arch: str
    what: str
    machine: str
    by: tuple[str, ...]
    source: str


class Gain(Facts, frozen=True):
    """The speed of code compiled for `cpu`, over that compiled with -mavx."""

    measure: str
    cpu: str
    ratios: tuple[float, ...]


class GainTable(Facts, frozen=True):
    measure: tuple[SpeedRow, ...]
    gain: tuple[Gain, ...]


def measures(arch: str = "") -> tuple[SpeedRow, ...]:
    """All measures, or those of one architecture, the one that decides first."""
    return tuple(row for row in facts.load("gains", GainTable).measure if arch in ("", row.arch))


def measured(measure: SpeedRow) -> tuple[str, ...]:
    """The instruction sets that were timed, as --cpu takes them."""
    return tuple(row.cpu for row in facts.load("gains", GainTable).gain if row.measure == measure.name)


@cache
def _steps(measure: str, arch: str) -> tuple[tuple[frozenset[str], float], ...]:
    rows = (row for row in facts.load("gains", GainTable).gain if row.measure == measure)
    return tuple((frozenset(isa.resolve(row.cpu, arch=arch).features), median(row.ratios)) for row in rows)


def speed(features: frozenset[str], measure: SpeedRow) -> float | None:
    """Estimated speed over -mavx: that of the best measured set within; None where there is none."""
    return max((ratio for held, ratio in _steps(measure.name, measure.arch) if held <= features), default=None)


def loss(own: frozenset[str], image: frozenset[str], measure: SpeedRow) -> float | None:
    """The share of the speed that a CPU with the features `own` gives up by running what is compiled for `image`.

    None where no row says anything of one of the two.
    """
    most, got = speed(own, measure), speed(image, measure)
    return None if most is None or got is None else round(1 - got / most, 4)
