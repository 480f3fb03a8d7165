"""Turn rounds into ratios, their intervals and verdicts, for one case or for cases that took turns. Pure."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from statistics import fmean, geometric_mean, median

from tfbuild.measure import records
from tfbuild.measure.records import NO_DIFFERENCE, ArmResult, CaseResult, Finding, Interval, Round, Sample

CONFIDENCE = 0.95
# With fewer than six samples, no two of them enclose the median with 95 % confidence.
FEWEST = 6
# Fewer give no interval at all, not even one of low confidence.
FEWEST_RANGE = 2


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
    """Return the verdict on a ratio. A difference must exceed the baseline's from itself, at full confidence."""
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
        return Verdict(cpu=arm.cpu, wall=arm.wall, effect=arm.effect or NO_DIFFERENCE)
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


@dataclass(frozen=True, kw_only=True)
class Mean:
    """An arm's ratios to the baseline over all cases (above 1: faster). `clean` of the `rounds` were undisturbed.

    `foreign`: the mean share of the machine's time that others used.
    """

    cpu: Interval
    wall: Interval
    band: Interval
    effect: str
    rounds: int
    clean: int
    foreign: float


def mean(cases: Sequence[CaseResult], arm: str) -> Mean | None:
    """Return the mean of the clean rounds, or of all rounds if too few are clean.

    None if a case lacks the arm, if the cases differ in their rounds, or if there are too few rounds.
    """
    lengths = {len(case.rounds) for case in cases}
    if len(lengths) != 1 or not all(arm in row.samples for case in cases for row in case.rounds):
        return None
    turns = list(zip(*(case.rounds for case in cases), strict=True))
    clean = [turn for turn in turns if all(row.foreign <= MOST_FOREIGN for row in turn)]
    used = clean if len(clean) >= FEWEST_CLEAN else turns

    def combined(name: str, time: Time) -> list[float]:
        return [geometric_mean(_turn_ratios(cases, turn, name, time)) for turn in used]

    metric = cases[0].metric
    band = interval(combined(BASE_AGAIN, TIMES[metric]))
    verdict = _verdict(partial(combined, arm), metric, band)
    if verdict.cpu is None or verdict.wall is None or band is None:
        return None
    return Mean(
        cpu=verdict.cpu,
        wall=verdict.wall,
        band=band,
        effect=verdict.effect,
        rounds=len(turns),
        clean=len(clean),
        foreign=fmean(row.foreign for turn in turns for row in turn),
    )


def _turn_ratios(cases: Sequence[CaseResult], turn: Sequence[Round], name: str, time: Time) -> Iterator[float]:
    for case, row in zip(cases, turn, strict=True):
        items = {arm.name: arm.items for arm in case.arms}
        yield from ratios([row], {BASE_AGAIN: items[case.baseline], **items}, name, case.baseline, time)


def findings(cases: Sequence[CaseResult]) -> tuple[Finding, ...]:
    """Return a sentence for each arm that has a mean."""
    names = [arm.name for arm in cases[0].arms if arm.name != cases[0].baseline] if cases else []
    means = {name: mean(cases, name) for name in names}
    return tuple(_finding(cases, name, pooled) for name, pooled in means.items() if pooled is not None)


def _finding(cases: Sequence[CaseResult], arm: str, pooled: Mean) -> Finding:
    ratio = pooled.cpu if cases[0].metric == "cpu" else pooled.wall
    text = (
        f"all {len(cases)} together (geometric mean): {arm}: {pooled.effect}, {interval_text(ratio)} of the "
        f"speed of {cases[0].baseline}"
    )
    if pooled.clean < min(pooled.rounds, FEWEST_CLEAN):
        text += f" (noisy: {pooled.clean} of {pooled.rounds} rounds undisturbed)"
    return Finding(text=text, values={"cpu": pooled.cpu.median, "wall": pooled.wall.median})
