"""One ratio for cases that took turns in each round: the geometric mean of a round's, and what the rounds say. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tfbuild.measure import intervals
from tfbuild.measure.evaluate import AGAIN, cpu, effect, interval, wall
from tfbuild.measure.protocol import FEWEST_CLEAN, MOST_FOREIGN
from tfbuild.measure.records import CaseResult, Finding, Interval, Round, Sample

Time = Callable[[Sample], float]


@dataclass(frozen=True, kw_only=True)
class Mean:
    """An arm's ratios to the baseline over all cases, above 1: faster. `clean` of the `rounds` were undisturbed.

    `foreign`: mean share of the machine's time that others used.
    """

    cpu: Interval
    wall: Interval
    band: Interval
    effect: str
    rounds: int
    clean: int
    foreign: float


def mean(cases: Sequence[CaseResult], arm: str) -> Mean | None:
    """Of the clean rounds alone where they are enough; None where some case lacks the arm, or all have too few."""
    lengths = {len(case.rounds) for case in cases}
    if len(lengths) != 1 or not all(arm in row.samples for case in cases for row in case.rounds):
        return None
    rows = list(zip(*(case.rounds for case in cases), strict=True))
    clean = [row for row in rows if all(one.foreign <= MOST_FOREIGN for one in row)]
    used = clean if len(clean) >= FEWEST_CLEAN else rows

    def combined(name: str, time: Time) -> Interval | None:
        return interval([intervals.geometric_mean(_ratios(cases, row, name, time)) for row in used])

    by_cpu, by_wall = combined(arm, cpu), combined(arm, wall)
    judged, time = (by_cpu, cpu) if cases[0].metric == "cpu" else (by_wall, wall)
    band = combined(AGAIN, time)
    if by_cpu is None or by_wall is None or band is None:
        return None
    shares = [one.foreign for row in rows for one in row]
    return Mean(
        cpu=by_cpu,
        wall=by_wall,
        band=band,
        effect=effect(judged, band),
        rounds=len(rows),
        clean=len(clean),
        foreign=sum(shares) / len(shares),
    )


def _ratios(cases: Sequence[CaseResult], row: Sequence[Round], name: str, time: Time) -> list[float]:
    found = []
    for case, one in zip(cases, row, strict=True):
        items = {arm.name: arm.items for arm in case.arms}
        units = items.get(name, items[case.baseline]) / items[case.baseline]
        found.append(units * time(one.samples[case.baseline]) / time(one.samples[name]))
    return found


def findings(cases: Sequence[CaseResult]) -> tuple[Finding, ...]:
    """A sentence for each arm that has a mean."""
    names = [arm.name for arm in cases[0].arms if arm.name != cases[0].baseline] if cases else []
    return tuple(_finding(cases, name, found) for name in names if (found := mean(cases, name)) is not None)


def _finding(cases: Sequence[CaseResult], arm: str, found: Mean) -> Finding:
    ratio = found.cpu if cases[0].metric == "cpu" else found.wall
    text = (
        f"all {len(cases)} together (geometric mean): {arm}: {found.effect}, {intervals.spelled(ratio)} of the speed "
        f"of {cases[0].baseline}"
    )
    if found.clean < min(found.rounds, FEWEST_CLEAN):
        text += f" (noisy: {found.clean} of {found.rounds} rounds undisturbed)"
    return Finding(text=text, values={"cpu": found.cpu.median, "wall": found.wall.median})
