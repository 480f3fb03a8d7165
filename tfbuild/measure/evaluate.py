"""Rounds -> ratios, their intervals and a verdict. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from tfbuild.measure import intervals
from tfbuild.measure.protocol import FEWEST_CLEAN, MOST_FOREIGN
from tfbuild.measure.records import NO_DIFFERENCE, ArmResult, CaseResult, Interval, Round, Sample

# The baseline once more, in each round: what it differs from itself is the machine's doing.
AGAIN = "again"
# Fewer give no interval at all, not even one of little confidence.
FEWEST = 2


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """An arm's ratios to the baseline, above 1: faster; None where there are too few rounds."""

    cpu: Interval | None
    wall: Interval | None
    effect: str


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """`used` of the rounds counted: the clean ones where they are enough, else all (`noisy`)."""

    used: tuple[Round, ...]
    clean: int
    noisy: bool
    foreign: float
    throttled: int
    band: Interval | None
    arms: dict[str, Verdict]


def evaluate(rounds: Sequence[Round], baseline: str, items: Mapping[str, int], metric: str) -> Evaluation:
    """`items` of each arm a call: ratios are of the time per item. `metric`: "cpu" or "wall", which is judged."""
    clean = undisturbed(rounds)
    used = counted(rounds)

    def ratio(arm: str, time: Callable[[Sample], float]) -> Interval | None:
        units = items[baseline if arm == AGAIN else arm] / items[baseline]
        return interval([units * time(row.samples[baseline]) / time(row.samples[arm]) for row in used])

    band = ratio(AGAIN, TIMES[metric]) if any(AGAIN in row.samples for row in used) else None
    found = {}
    for arm in items:
        if arm not in (baseline, AGAIN):
            both = {name: ratio(arm, time) for name, time in TIMES.items()}
            found[arm] = Verdict(cpu=both["cpu"], wall=both["wall"], effect=effect(both[metric], band))
    return Evaluation(
        used=used,
        clean=len(clean),
        noisy=len(used) > len(clean),
        foreign=sum(row.foreign for row in rounds) / max(1, len(rounds)),
        throttled=sum(sample.throttled for row in rounds for sample in row.samples.values()),
        band=band,
        arms=found,
    )


def against(case: CaseResult, arm: ArmResult, other: ArmResult) -> Verdict:
    """An arm against any other one, in the rounds that hold both.

    Where the other is not the baseline, the band counts both ways: which of two equals is the slower one is chance.
    """
    if other.name == case.arms[0].name:
        return Verdict(cpu=arm.cpu, wall=arm.wall, effect=arm.effect or NO_DIFFERENCE)
    both = [row.samples for row in counted(case.rounds) if {arm.name, other.name} <= row.samples.keys()]
    units = arm.items / other.items
    found = {
        name: interval([units * time(taken[other.name]) / time(taken[arm.name]) for taken in both])
        for name, time in TIMES.items()
    }
    return Verdict(cpu=found["cpu"], wall=found["wall"], effect=effect(found[case.metric], _both_ways(case.band)))


def _both_ways(band: Interval | None) -> Interval | None:
    if band is None:
        return None
    low, high = min(band.low, 1 / band.high), max(band.high, 1 / band.low)
    return Interval(median=band.median, low=low, high=high, coverage=band.coverage)


def undisturbed(rounds: Sequence[Round]) -> tuple[Round, ...]:
    return tuple(row for row in rounds if row.foreign <= MOST_FOREIGN)


def counted(rounds: Sequence[Round]) -> tuple[Round, ...]:
    """The clean ones where they are enough, else all."""
    clean = undisturbed(rounds)
    return clean if len(clean) >= FEWEST_CLEAN else tuple(rounds)


def cpu(sample: Sample) -> float:
    """Seconds of CPU time a call."""
    return sample.cpu / sample.inner


def wall(sample: Sample) -> float:
    """Seconds a call."""
    return sample.wall / sample.inner


TIMES: dict[str, Callable[[Sample], float]] = {"cpu": cpu, "wall": wall}


def seconds_per_item(case: CaseResult, arm: ArmResult) -> Interval | None:
    """An interval of the median of seconds per item, in the case's metric, over the rounds that count."""
    time = TIMES[case.metric]
    rounds = [row.samples for row in counted(case.rounds) if arm.name in row.samples]
    return interval([time(samples[arm.name]) / arm.items for samples in rounds])


def sure(ratio: Interval | None) -> bool:
    """Out of enough rounds for a verdict."""
    return ratio is not None and ratio.coverage >= intervals.CONFIDENCE


def interval(ratios: Sequence[float]) -> Interval | None:
    """As intervals.interval; for two to five ratios their whole range, with the little confidence that it has."""
    if len(ratios) < FEWEST:
        return None
    if len(ratios) >= intervals.FEWEST:
        return intervals.interval(ratios)
    coverage = 1 - 2 / 2 ** len(ratios)
    return Interval(median=median(ratios), low=min(ratios), high=max(ratios), coverage=coverage)


def effect(ratio: Interval | None, band: Interval | None) -> str:
    """A difference is claimed with full confidence only: beyond 1, and beyond the baseline against itself."""
    if ratio is None or band is None or not (sure(ratio) and sure(band)):
        return NO_DIFFERENCE
    return intervals.effect(ratio, band)
