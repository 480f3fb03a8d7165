"""The median of paired rounds' ratios and its interval. Pure."""

import math
from collections.abc import Sequence
from functools import cache
from statistics import median

from tfbuild.measure import records
from tfbuild.measure.records import Interval

CONFIDENCE = 0.95
# With fewer than six samples, no two of them enclose the median with 95 % confidence.
FEWEST = 6
# Fewer give no interval at all, not even one of low confidence.
FEWEST_RANGE = 2
SLOWER = 0.95


def interval(ratios: Sequence[float]) -> Interval | None:
    """Return the median and the order statistics around it, which assumes nothing about the distribution.

    For two to five ratios that is their whole range, which has less confidence; None for fewer.
    """
    ordered, count = sorted(ratios), len(ratios)
    if count < FEWEST_RANGE:
        return None
    cut, coverage = 0, _coverage(count, 0)
    while (next_coverage := _coverage(count, cut + 1)) >= CONFIDENCE:
        cut, coverage = cut + 1, next_coverage
    return Interval(median=median(ordered), low=ordered[cut], high=ordered[count - 1 - cut], coverage=coverage)


@cache
def _coverage(count: int, cut: int) -> float:
    """Return the chance that the median lies within the samples that remain if `cut` are dropped at each end."""
    return float(sum(math.comb(count, index) for index in range(cut + 1, count - cut)) / 2**count)


def sure(ratio: Interval | None) -> bool:
    """Whether the ratio has enough rounds for a verdict."""
    return ratio is not None and ratio.coverage >= CONFIDENCE


def effect(ratio: Interval | None, band: Interval | None) -> str:
    """Return the verdict. A difference must lie beyond 1 and beyond the baseline against itself, at full confidence."""
    if ratio is None or band is None or not (sure(ratio) and sure(band)):
        return records.NO_DIFFERENCE
    if ratio.low > max(1.0, band.high):
        return records.FASTER
    if ratio.high < min(1.0, band.low):
        return records.SLOWER
    return records.NO_DIFFERENCE


def inverse(ratio: Interval) -> Interval:
    """Invert a ratio, so that it says how fast the other side is."""
    return Interval(median=1 / ratio.median, low=1 / ratio.high, high=1 / ratio.low, coverage=ratio.coverage)


def interval_text(interval: Interval | None) -> str:
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
