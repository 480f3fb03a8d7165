"""Turn rounds into ratios, their intervals and verdicts. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from tfbuild.measure import intervals
from tfbuild.measure.protocol import FEWEST_CLEAN, MOST_FOREIGN
from tfbuild.measure.records import NO_DIFFERENCE, ArmResult, CaseResult, Interval, Round, Sample

# The name of the baseline's second run in each round: a difference from the first is due to the machine.
AGAIN = "again"
# Fewer ratios give no interval at all, not even one of low confidence.
FEWEST = 2


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """An arm's ratios to the baseline (above 1: faster); None if there are too few rounds."""

    cpu: Interval | None
    wall: Interval | None
    effect: str


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """`used`: the rounds that count, which are the clean ones, or all (`noisy`) if too few are clean."""

    used: tuple[Round, ...]
    clean: int
    noisy: bool
    foreign: float
    throttled: int
    band: Interval | None
    arms: dict[str, Verdict]


def evaluate(rounds: Sequence[Round], baseline: str, items: Mapping[str, int], metric: str) -> Evaluation:
    """Judge the arms. `items`: of each arm in a call, as ratios are of time per item; `metric`: "cpu" or "wall"."""
    clean = undisturbed(rounds)
    used = counted(rounds)

    def ratio(arm: str, time: Callable[[Sample], float]) -> Interval | None:
        units = items[baseline if arm == AGAIN else arm] / items[baseline]
        return interval([units * time(row.samples[baseline]) / time(row.samples[arm]) for row in used])

    band = ratio(AGAIN, TIMES[metric]) if any(AGAIN in row.samples for row in used) else None
    verdicts = {}
    for arm in items:
        if arm not in (baseline, AGAIN):
            ratios = {name: ratio(arm, time) for name, time in TIMES.items()}
            verdicts[arm] = Verdict(cpu=ratios["cpu"], wall=ratios["wall"], effect=effect(ratios[metric], band))
    return Evaluation(
        used=used,
        clean=len(clean),
        noisy=len(used) > len(clean),
        foreign=sum(row.foreign for row in rounds) / max(1, len(rounds)),
        throttled=sum(sample.throttled for row in rounds for sample in row.samples.values()),
        band=band,
        arms=verdicts,
    )


def against(case: CaseResult, arm: ArmResult, other: ArmResult) -> Verdict:
    """Judge an arm against any other one, in the rounds that have both.

    If the other is not the baseline, the band counts in both directions: which of two equals is slower is chance.
    """
    if other.name == case.arms[0].name:
        return Verdict(cpu=arm.cpu, wall=arm.wall, effect=arm.effect or NO_DIFFERENCE)
    rounds = [row.samples for row in counted(case.rounds) if {arm.name, other.name} <= row.samples.keys()]
    units = arm.items / other.items
    ratios = {
        name: interval([units * time(samples[other.name]) / time(samples[arm.name]) for samples in rounds])
        for name, time in TIMES.items()
    }
    return Verdict(cpu=ratios["cpu"], wall=ratios["wall"], effect=effect(ratios[case.metric], _both_ways(case.band)))


def _both_ways(band: Interval | None) -> Interval | None:
    if band is None:
        return None
    low, high = min(band.low, 1 / band.high), max(band.high, 1 / band.low)
    return Interval(median=band.median, low=low, high=high, coverage=band.coverage)


def undisturbed(rounds: Sequence[Round]) -> tuple[Round, ...]:
    return tuple(row for row in rounds if row.foreign <= MOST_FOREIGN)


def counted(rounds: Sequence[Round]) -> tuple[Round, ...]:
    """Return the clean rounds, or all rounds if too few are clean."""
    clean = undisturbed(rounds)
    return clean if len(clean) >= FEWEST_CLEAN else tuple(rounds)


def cpu(sample: Sample) -> float:
    """Return seconds of CPU time for each call."""
    return sample.cpu / sample.inner


def wall(sample: Sample) -> float:
    """Return seconds by the clock for each call."""
    return sample.wall / sample.inner


TIMES: dict[str, Callable[[Sample], float]] = {"cpu": cpu, "wall": wall}


def seconds_per_item(case: CaseResult, arm: ArmResult) -> Interval | None:
    """Return the median of seconds per item with its interval, in the case's metric, over the rounds that count."""
    time = TIMES[case.metric]
    rounds = [row.samples for row in counted(case.rounds) if arm.name in row.samples]
    return interval([time(samples[arm.name]) / arm.items for samples in rounds])


def sure(ratio: Interval | None) -> bool:
    """Whether the ratio has enough rounds for a verdict."""
    return ratio is not None and ratio.coverage >= intervals.CONFIDENCE


def interval(ratios: Sequence[float]) -> Interval | None:
    """Return intervals.interval; for two to five ratios their whole range, which has less confidence."""
    if len(ratios) < FEWEST:
        return None
    if len(ratios) >= intervals.FEWEST:
        return intervals.interval(ratios)
    coverage = 1 - 2 / 2 ** len(ratios)
    return Interval(median=median(ratios), low=min(ratios), high=max(ratios), coverage=coverage)


def effect(ratio: Interval | None, band: Interval | None) -> str:
    """Return the verdict. A difference must lie beyond 1 and beyond the baseline against itself, at full confidence."""
    if ratio is None or band is None or not (sure(ratio) and sure(band)):
        return NO_DIFFERENCE
    return intervals.effect(ratio, band)
