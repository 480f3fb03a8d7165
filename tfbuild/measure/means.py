"""One ratio out of many rows', and how sure it is. Pure.

Rows depend on each other: arms of a case share its rounds, and what a machine does to one it does to its neighbours in
time. So that each experiment's geometric mean counts once, and the interval is Student's over those means, as for
clustered observations (Cameron and Miller, A Practitioner's Guide to Cluster-Robust Inference, Journal of Human
Resources 50, 2015; for benchmarks Georges, Buytaert and Eeckhout, Statistically Rigorous Java Performance Evaluation,
OOPSLA 2007). Where they all agree it is narrow, where drift or a real effect sets them apart it is wide. Ratios are
averaged as logarithms (Fleming and Wallace, How not to lie with statistics, CACM 29, 1986).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, median, stdev

from tfbuild.measure import intervals
from tfbuild.measure.records import Interval

# With fewer parts their spread says too little of itself: the rows' own intervals are averaged, as if all erred alike.
FEWEST = 6
# Of the changes of a size, how many are found where it is called the smallest that shows.
POWER = 0.8

# A normal distribution's standard deviation, over the median distance from its middle.
NORMAL_OF_MEDIAN = 1.4826


@dataclass(frozen=True, kw_only=True)
class CaseRatio:
    """A row's ratio and where it was measured."""

    experiment: str
    case: str
    ratio: Interval


def quotient(above: Interval, below: Interval) -> Interval:
    """The ratio of two medians out of different runs, by their own intervals' ends (above 0).

    Distances of the ends add up as independent errors do (Zou and Donner, Construction of confidence limits about
    effect measures, Statistics in Medicine 27, 2008); both at their worst at once would be too wide.
    """
    up = math.hypot(math.log(above.high / above.median), math.log(below.median / below.low))
    down = math.hypot(math.log(above.median / above.low), math.log(below.high / below.median))
    ratio = above.median / below.median
    return Interval(
        median=ratio,
        low=ratio * math.exp(-down),
        high=ratio * math.exp(up),
        coverage=min(above.coverage, below.coverage),
    )


def total(parts: Sequence[CaseRatio]) -> Interval | None:
    """The mean over experiments, or over cases where there are few experiments; None of nothing."""
    groups = _grouped(parts)
    if not groups:
        return None
    if len(groups) < FEWEST:
        return Interval(
            median=_mean(groups, "median"),
            low=_mean(groups, "low"),
            high=_mean(groups, "high"),
            coverage=min(part.ratio.coverage for part in parts),
        )
    logs = [_log(group, "median") for group in groups]
    middle, half = fmean(logs), students(len(logs) - 1) * stdev(logs) / math.sqrt(len(logs))
    return Interval(
        median=math.exp(middle),
        low=math.exp(middle - half),
        high=math.exp(middle + half),
        coverage=intervals.CONFIDENCE,
    )


def widened(ratio: Interval, others: Sequence[Interval]) -> Interval:
    """An experiment's mean, as unsure as the others differ among themselves: what drifts in them drifts in it.

    Their median distance from their middle, as a standard deviation: a few that really changed do not count for drift.
    """
    if len(others) < FEWEST:
        return ratio
    logs = [math.log(other.median) for other in others]
    spread = NORMAL_OF_MEDIAN * median(abs(log - median(logs)) for log in logs)
    drift = students(len(logs) - 1) * spread
    up, down = math.log(ratio.high / ratio.median), math.log(ratio.median / ratio.low)
    return Interval(
        median=ratio.median,
        low=ratio.median * math.exp(-math.hypot(down, drift)),
        high=ratio.median * math.exp(math.hypot(up, drift)),
        coverage=ratio.coverage,
    )


def _grouped(parts: Sequence[CaseRatio]) -> list[list[CaseRatio]]:
    by_experiment: dict[str, list[CaseRatio]] = {}
    by_case: dict[tuple[str, str], list[CaseRatio]] = {}
    for part in parts:
        by_experiment.setdefault(part.experiment, []).append(part)
        by_case.setdefault((part.experiment, part.case), []).append(part)
    return list(by_experiment.values()) if len(by_experiment) >= FEWEST else list(by_case.values())


def _mean(groups: Sequence[Sequence[CaseRatio]], end: str) -> float:
    return math.exp(fmean(_log(group, end) for group in groups))


def _log(group: Sequence[CaseRatio], end: str) -> float:
    return fmean(math.log(getattr(part.ratio, end)) for part in group)


def students(freedom: int, chance: float = intervals.CONFIDENCE) -> float:
    """What Student's t stays within, on both sides, with this chance (Abramowitz and Stegun 26.7.5).

    Right to 0.2 % from five degrees of freedom on.
    """
    z = NormalDist().inv_cdf((1 + chance) / 2)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / float(freedom) ** power for power, term in enumerate(terms, 1))


def smallest(ratio: Interval) -> float:
    """The true ratio below 1 that an interval as wide as this one lies below 1 with, in POWER of all cases."""
    normal = NormalDist()
    more = 1 + normal.inv_cdf(POWER) / normal.inv_cdf((1 + intervals.CONFIDENCE) / 2)
    return math.pow(ratio.median / ratio.high, more)
