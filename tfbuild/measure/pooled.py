"""One ratio for cases that took turns in each round: the geometric mean of each round, judged over all rounds. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tfbuild.measure import intervals
from tfbuild.measure.evaluate import AGAIN, cpu, effect, interval, wall
from tfbuild.measure.protocol import FEWEST_CLEAN, MOST_FOREIGN
from tfbuild.measure.records import CaseResult, Finding, Interval, Round, Sample

Time = Callable[[Sample], float]


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

    def combined(name: str, time: Time) -> Interval | None:
        return interval([intervals.geometric_mean(_ratios(cases, turn, name, time)) for turn in used])

    by_cpu, by_wall = combined(arm, cpu), combined(arm, wall)
    judged, time = (by_cpu, cpu) if cases[0].metric == "cpu" else (by_wall, wall)
    band = combined(AGAIN, time)
    if by_cpu is None or by_wall is None or band is None:
        return None
    shares = [row.foreign for turn in turns for row in turn]
    return Mean(
        cpu=by_cpu,
        wall=by_wall,
        band=band,
        effect=effect(judged, band),
        rounds=len(turns),
        clean=len(clean),
        foreign=sum(shares) / len(shares),
    )


def _ratios(cases: Sequence[CaseResult], turn: Sequence[Round], name: str, time: Time) -> list[float]:
    ratios = []
    for case, row in zip(cases, turn, strict=True):
        items = {arm.name: arm.items for arm in case.arms}
        units = items.get(name, items[case.baseline]) / items[case.baseline]
        ratios.append(units * time(row.samples[case.baseline]) / time(row.samples[name]))
    return ratios


def findings(cases: Sequence[CaseResult]) -> tuple[Finding, ...]:
    """Return a sentence for each arm that has a mean."""
    names = [arm.name for arm in cases[0].arms if arm.name != cases[0].baseline] if cases else []
    means = {name: mean(cases, name) for name in names}
    return tuple(_finding(cases, name, pooled) for name, pooled in means.items() if pooled is not None)


def _finding(cases: Sequence[CaseResult], arm: str, pooled: Mean) -> Finding:
    ratio = pooled.cpu if cases[0].metric == "cpu" else pooled.wall
    text = (
        f"all {len(cases)} together (geometric mean): {arm}: {pooled.effect}, {intervals.spelled(ratio)} of the speed "
        f"of {cases[0].baseline}"
    )
    if pooled.clean < min(pooled.rounds, FEWEST_CLEAN):
        text += f" (noisy: {pooled.clean} of {pooled.rounds} rounds undisturbed)"
    return Finding(text=text, values={"cpu": pooled.cpu.median, "wall": pooled.wall.median})
