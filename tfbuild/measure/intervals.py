"""The ratios of paired rounds: their median, an interval from order statistics, and the conclusion. Pure."""

import math
from collections.abc import Sequence
from functools import cache
from statistics import median

from tfbuild.measure.records import Interval

CONFIDENCE = 0.95
# With fewer than six samples, no two of them enclose the median with 95 % confidence.
FEWEST = 6
SLOWER = 0.95


def interval(ratios: Sequence[float]) -> Interval:
    """Return the median and the order statistics around it, which assumes nothing about the distribution.

    Raises ValueError for fewer than six ratios.
    """
    ordered, count = sorted(ratios), len(ratios)
    if count < FEWEST:
        raise ValueError(f"{count} rounds are too few for an interval")
    cut, coverage = 0, _coverage(count, 0)
    while (next_coverage := _coverage(count, cut + 1)) >= CONFIDENCE:
        cut, coverage = cut + 1, next_coverage
    return Interval(median=median(ordered), low=ordered[cut], high=ordered[count - 1 - cut], coverage=coverage)


@cache
def _coverage(count: int, cut: int) -> float:
    """Return the chance that the median lies within the samples that remain if `cut` are dropped at each end."""
    return float(sum(math.comb(count, index) for index in range(cut + 1, count - cut)) / 2**count)


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(sum(math.log(value) for value in values) / len(values))


def effect(ratio: Interval, band: Interval) -> str:
    """Return "faster" or "slower" only beyond 1 and beyond the `band` of the same image against itself in this run."""
    if ratio.low > max(1.0, band.high):
        return "faster"
    if ratio.high < min(1.0, band.low):
        return "slower"
    return "no difference shown"


def spelled(interval: Interval | None) -> str:
    """Format as "x1.39 [1.36, 1.41]", with the confidence if it is less than 95 %."""
    if interval is None:
        return ""
    confidence = "" if interval.coverage >= CONFIDENCE else f" at {interval.coverage:.0%}"
    return f"x{interval.median:.2f} [{interval.low:.2f}, {interval.high:.2f}]{confidence}"


def too_slow(ratio: Interval) -> bool:
    """Whether the whole interval lies below 0.95 of the baseline's speed."""
    return ratio.high < SLOWER


def too_noisy(band: Interval) -> bool:
    """Whether the same image against itself differs by as much as the limit of too_slow()."""
    return band.high < SLOWER or band.low > 1 / SLOWER
