"""The median of paired rounds' ratios, the mean of many such medians, and their intervals. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist, fmean, median, stdev

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


# --- means of many ratios --------------------------------------------------------------------------------------------
#
# Rows depend on each other: the arms of a case share its rounds, and a disturbance hits all rows of that time. So each
# experiment's geometric mean counts once, and the interval is Student's over these means, as for clustered observations
# (Cameron and Miller, A Practitioner's Guide to Cluster-Robust Inference, Journal of Human Resources 50, 2015; for
# benchmarks Georges, Buytaert and Eeckhout, Statistically Rigorous Java Performance Evaluation, OOPSLA 2007). It is
# narrow if all experiments agree, and wide if drift or a real effect sets them apart. Ratios are averaged as logarithms
# (Fleming and Wallace, How not to lie with statistics, CACM 29, 1986).

# The spread of fewer parts is too uncertain: the rows' own intervals are averaged then, as if all erred alike.
FEWEST_PARTS = 6
# The share of changes that must be found, for the smallest size that counts as detectable.
POWER = 0.8
# A normal distribution's standard deviation over its median absolute deviation.
NORMAL_OF_MEDIAN = 1.4826


@dataclass(frozen=True, kw_only=True)
class CaseRatio:
    """A row's ratio, and the experiment and case that it is from."""

    experiment: str
    case: str
    ratio: Interval


def quotient(above: Interval, below: Interval) -> Interval:
    """Return the ratio of two medians from different runs, with an interval from the ends of theirs (above 0).

    The distances of the ends add up like independent errors (Zou and Donner, Construction of confidence limits about
    effect measures, Statistics in Medicine 27, 2008); taking the worst of both would be too wide.
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
    """Return the mean over experiments, or over cases if there are few experiments; None if there are no parts."""
    groups = _grouped(parts)
    if not groups:
        return None
    if len(groups) < FEWEST_PARTS:
        return Interval(
            median=_mean(groups, "median"),
            low=_mean(groups, "low"),
            high=_mean(groups, "high"),
            coverage=min(part.ratio.coverage for part in parts),
        )
    logs = [_log(group, "median") for group in groups]
    middle, half = fmean(logs), students_t(len(logs) - 1) * stdev(logs) / math.sqrt(len(logs))
    return Interval(
        median=math.exp(middle),
        low=math.exp(middle - half),
        high=math.exp(middle + half),
        coverage=CONFIDENCE,
    )


def widen_by_drift(ratio: Interval, others: Sequence[Interval]) -> Interval:
    """Widen an experiment's interval by the spread of the others, because it drifts as they do.

    The spread is their median absolute deviation, scaled to a standard deviation, so that a few real changes among them
    do not count as drift.
    """
    if len(others) < FEWEST_PARTS:
        return ratio
    logs = [math.log(other.median) for other in others]
    spread = NORMAL_OF_MEDIAN * median(abs(log - median(logs)) for log in logs)
    drift = students_t(len(logs) - 1) * spread
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
    return list(by_experiment.values()) if len(by_experiment) >= FEWEST_PARTS else list(by_case.values())


def _mean(groups: Sequence[Sequence[CaseRatio]], end: str) -> float:
    return math.exp(fmean(_log(group, end) for group in groups))


def _log(group: Sequence[CaseRatio], end: str) -> float:
    return fmean(math.log(getattr(part.ratio, end)) for part in group)


def students_t(freedom: int) -> float:
    """Return the two-sided limit of Student's t with CONFIDENCE (Abramowitz and Stegun 26.7.5).

    It is right to 0.2 % for five degrees of freedom or more.
    """
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / float(freedom) ** power for power, term in enumerate(terms, 1))


def detectable_slowdown(ratio: Interval) -> float:
    """Return the ratio below 1 of the smallest slowdown that an interval of this width shows in POWER of all cases."""
    normal = NormalDist()
    widths = 1 + normal.inv_cdf(POWER) / normal.inv_cdf((1 + CONFIDENCE) / 2)
    return math.pow(ratio.median / ratio.high, widths)
