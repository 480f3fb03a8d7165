"""Turn rounds into ratios, their intervals and verdicts, for one case or for cases that took turns. Pure."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from statistics import fmean, geometric_mean, median

from tfbuild.measure import records
from tfbuild.measure.records import ArmResult, CaseResult, Finding, Interval, Round, Sample

CONFIDENCE = 0.95
# With fewer than six samples, no two of them enclose the median with 95 % confidence.
FEWEST = 6


def interval(ratios: Sequence[float]) -> Interval | None:
    """Return the median and the order statistics around it, which assumes nothing about the distribution.

    None for fewer than six ratios.
    """
    ordered, count = sorted(ratios), len(ratios)
    if count < FEWEST:
        return None
    cut, coverage = 0, _coverage(count, 0)
    while (next_coverage := _coverage(count, cut + 1)) >= CONFIDENCE:
        cut, coverage = cut + 1, next_coverage
    return Interval(median=median(ordered), low=ordered[cut], high=ordered[count - 1 - cut], coverage=coverage)


@cache
def _coverage(count: int, cut: int) -> float:
    """Return the chance that the median lies within the samples that remain if `cut` are dropped at each end."""
    return float(sum(math.comb(count, index) for index in range(cut + 1, count - cut)) / 2**count)


def effect(ratio: Interval | None, band: Interval | None) -> str:
    """Return the verdict on a ratio, "" without one. A difference must exceed the baseline's from itself."""
    if ratio is None or band is None:
        return ""
    if ratio.low > max(1.0, band.high):
        return records.FASTER
    if ratio.high < min(1.0, band.low):
        return records.SLOWER
    return records.NO_DIFFERENCE


def inverse(ratio: Interval | None) -> Interval:
    """Invert a ratio, so that it says how fast the other side is. Raises ValueError where too few rounds gave none."""
    if ratio is None:
        raise ValueError("too few rounds for a ratio")
    return Interval(median=1 / ratio.median, low=1 / ratio.high, high=1 / ratio.low, coverage=ratio.coverage)


def interval_text(interval: Interval | None) -> str:
    """Format as "x1.39 [1.36, 1.41]", with a third digit where two would round an end that is not 1 to it."""
    if interval is None:
        return ""
    excludes = not interval.low <= 1 <= interval.high
    digits = 3 if excludes and round(interval.low, 2) <= 1 <= round(interval.high, 2) else 2
    return f"x{interval.median:.{digits}f} [{interval.low:.{digits}f}, {interval.high:.{digits}f}]"


# --- rounds ----------------------------------------------------------------------------------------------------------

Time = Callable[[Sample], float]

# The name of the baseline's second run in each round: a difference from the first is due to the machine.
BASE_AGAIN = "again"
# A round is undisturbed if others used no larger share of the machine's time.
MOST_FOREIGN = 0.12
# With this many clean rounds, the others are left out.
FEWEST_CLEAN = 7


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """An arm's ratios to the baseline (above 1: faster); None if there are too few rounds."""

    cpu: Interval | None
    wall: Interval | None
    effect: str


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """`used`: the rounds that count: the clean ones, or all of them (`noisy`) if too few are clean."""

    used: tuple[Round, ...]
    clean: int
    noisy: bool
    foreign: float
    throttled: int
    band: Interval | None
    arms: dict[str, Verdict]


def evaluate(rounds: Sequence[Round], baseline: str, items: Mapping[str, int], metric: str) -> Evaluation:
    """Judge the arms. `items`: of each arm in a call, as ratios are of time per item; `metric`: "cpu" or "wall"."""
    clean, used = undisturbed_rounds(rounds), used_rounds(rounds)
    units = {**items, BASE_AGAIN: items[baseline]}
    band = interval(ratios(used, units, BASE_AGAIN, baseline, TIMES[metric]))
    return Evaluation(
        used=used,
        clean=len(clean),
        noisy=len(used) > len(clean),
        foreign=fmean(row.foreign for row in rounds),
        throttled=sum(sample.throttled for row in rounds for sample in row.samples.values()),
        band=band,
        arms={
            arm: _verdict(partial(ratios, used, units, arm, baseline), metric, band)
            for arm in items
            if arm not in (baseline, BASE_AGAIN)
        },
    )


def ratios(rounds: Sequence[Round], items: Mapping[str, int], arm: str, other: str, time: Time) -> list[float]:
    """Return, for each round that has both, how many times as fast as `other` the arm was per item."""
    units, both = items[arm] / items[other], [row.samples for row in rounds if {arm, other} <= row.samples.keys()]
    return [units * time(samples[other]) / time(samples[arm]) for samples in both]


def _verdict(ratios_by: Callable[[Time], Sequence[float]], metric: str, band: Interval | None) -> Verdict:
    by_time = {name: interval(ratios_by(time)) for name, time in TIMES.items()}
    return Verdict(cpu=by_time["cpu"], wall=by_time["wall"], effect=effect(by_time[metric], band))


def compare_arms(case: CaseResult, arm: ArmResult, other: ArmResult) -> Verdict:
    """Judge an arm against any other one, in the rounds that have both.

    If the other is not the baseline, the band counts in both directions: which of two equals is slower is chance.
    """
    if other.name == case.arms[0].name:
        return Verdict(cpu=arm.cpu, wall=arm.wall, effect=arm.effect)
    items = {arm.name: arm.items, other.name: other.items}
    both, band = partial(ratios, used_rounds(case.rounds), items, arm.name, other.name), case.band
    if band is not None:
        band = replace(band, low=min(band.low, 1 / band.high), high=max(band.high, 1 / band.low))
    return _verdict(both, case.metric, band)


def undisturbed_rounds(rounds: Sequence[Round]) -> tuple[Round, ...]:
    """Return the rounds in which others used little of the machine's time."""
    return tuple(row for row in rounds if row.foreign <= MOST_FOREIGN)


def used_rounds(rounds: Sequence[Round]) -> tuple[Round, ...]:
    """Return the clean rounds, or all rounds if too few are clean."""
    clean = undisturbed_rounds(rounds)
    return clean if len(clean) >= FEWEST_CLEAN else tuple(rounds)


def cpu(sample: Sample) -> float:
    """Return seconds of CPU time for each call."""
    return sample.cpu / sample.inner


def wall(sample: Sample) -> float:
    """Return seconds by the clock for each call."""
    return sample.wall / sample.inner


TIMES: dict[str, Time] = {"cpu": cpu, "wall": wall}


def seconds_per_item(case: CaseResult, arm: ArmResult) -> Interval | None:
    """Return the median of seconds per item with its interval, in the case's metric, over the rounds that count."""
    time = TIMES[case.metric]
    rounds = [row.samples for row in used_rounds(case.rounds) if arm.name in row.samples]
    return interval([time(samples[arm.name]) / arm.items for samples in rounds])


# --- cases that took turns: the geometric mean of each round ---------------------------------------------------------


def together(cases: Sequence[CaseResult]) -> Evaluation | None:
    """Judge the arms of all cases by the geometric means of each turn; None if the cases differ in their rounds.

    A turn is undisturbed if all of its rounds are. An arm that a round lacks is left out.
    """
    if len({len(case.rounds) for case in cases}) != 1 or not cases[0].rounds:
        return None
    turns = list(zip(*(case.rounds for case in cases), strict=True))
    names = set.intersection(*(set(row.samples) for turn in turns for row in turn))
    rounds = [
        Round(samples={name: _mean(cases, turn, name) for name in names}, foreign=max(row.foreign for row in turn))
        for turn in turns
    ]
    return evaluate(rounds, cases[0].baseline, dict.fromkeys(names - {BASE_AGAIN}, 1), cases[0].metric)


def _mean(cases: Sequence[CaseResult], turn: Sequence[Round], name: str) -> Sample:
    """Return the means of an arm's seconds per item."""
    names = [case.baseline if name == BASE_AGAIN else name for case in cases]
    items = [arm.items for case, own in zip(cases, names, strict=True) for arm in case.arms if arm.name == own]
    samples = [(row.samples[name], number) for row, number in zip(turn, items, strict=True)]
    means = {metric: geometric_mean(time(one) / number for one, number in samples) for metric, time in TIMES.items()}
    return Sample(inner=1, wall=means["wall"], cpu=means["cpu"], faults=0, rss=0.0, throttled=0)


def findings(cases: Sequence[CaseResult]) -> tuple[Finding, ...]:
    """Return a sentence for each arm that has a mean, and computes what the baseline does in all cases."""
    pooled = together(cases)
    if pooled is None or pooled.band is None:
        return ()
    wrong = {arm.name for case in cases for arm in case.arms if arm.same is False}
    return tuple(_finding(cases, arm.name, pooled) for arm in cases[0].arms if arm.name in pooled.arms.keys() - wrong)


def _finding(cases: Sequence[CaseResult], arm: str, pooled: Evaluation) -> Finding:
    verdict = pooled.arms[arm]
    assert verdict.cpu is not None  # from as many rounds as the band
    assert verdict.wall is not None
    ratio = verdict.cpu if cases[0].metric == "cpu" else verdict.wall
    text = (
        f"all {len(cases)} together (geometric mean): {arm}: {verdict.effect}, {interval_text(ratio)} of the "
        f"speed of {cases[0].baseline}"
    )
    if pooled.noisy:
        text += f" (noisy: {pooled.clean} of {len(pooled.used)} rounds undisturbed)"
    return Finding(text=text, values={"cpu": verdict.cpu.median, "wall": verdict.wall.median})
