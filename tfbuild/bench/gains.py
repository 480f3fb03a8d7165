"""What a change gains or costs in one case, and how certain that is. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from tfbuild.bench import wording
from tfbuild.measure.evaluate import FEWEST_CLEAN, Verdict
from tfbuild.measure.intervals import interval_text
from tfbuild.measure.records import ArmResult, CaseResult, ExperimentResult, Interval


@dataclass(frozen=True, kw_only=True)
class ArmComparison:
    """`arm` compared with `other` in one case; they differ only in what is judged."""

    row: ExperimentResult
    case: CaseResult
    arm: ArmResult
    other: ArmResult
    verdict: Verdict

    @property
    def ratio(self) -> Interval | None:
        """Return the ratio in the case's metric."""
        return wording.judged_ratio(self.verdict, self.case)

    @property
    def median(self) -> float:
        """Return that ratio's median; 0 if there is none."""
        return self.ratio.median if self.ratio else 0.0


@dataclass(frozen=True, kw_only=True)
class Gain:
    """How many times as fast `arm` is as `over` (below 1: slower) with the `model` of an `experiment`.

    `metric`: "cpu" or "wall" time; `wall`: the ratio of wall time where that shows no gain, else None; `clean` of the
    `rounds` were undisturbed; `caveat`: what makes the ratio less reliable than it seems, else empty.
    """

    experiment: str
    model: str
    arm: str
    over: str
    metric: str
    ratio: Interval
    wall: Interval | None
    clean: int
    rounds: int
    caveat: str

    @property
    def time(self) -> str:
        """Return the metric in words."""
        return wording.METRICS[self.metric]

    @property
    def certainty(self) -> str:
        """Return the interval's confidence and the rounds that it is made of: "97%, 6 rounds"."""
        used = self.clean if self.clean >= FEWEST_CLEAN else self.rounds
        return f"{self.ratio.coverage:.0%}, {used} rounds"

    @property
    def doubt(self) -> str:
        """Return the reasons to doubt the gain; "" if there are none."""
        return wording.join(f"in wall time {interval_text(self.wall)}" if self.wall else "", self.caveat)

    @property
    def text(self) -> str:
        """Return "arm x1.39 [1.36, 1.41] over baseline in CPU time: model (how certain)"."""
        sure = wording.join(self.certainty, self.doubt)
        return f"{self.arm} {interval_text(self.ratio)} over {self.over} in {self.time}: {self.model} ({sure})"


def gains(comparisons: Iterable[ArmComparison]) -> tuple[Gain, ...]:
    """Return what the comparisons show, the largest gain first."""
    shown = (_gain(one, one.ratio) for one in comparisons if one.ratio)
    return tuple(sorted(shown, key=lambda gain: -gain.ratio.median))


def _gain(one: ArmComparison, ratio: Interval) -> Gain:
    case, wall = one.case, one.verdict.wall
    unseen = case.metric == "cpu" and wall is not None and wall.low <= 1 <= wall.high
    different = "computes something else" if False in (one.arm.same, one.other.same) else ""
    return Gain(
        experiment=one.row.name,
        model=case.name,
        arm=one.arm.name,
        over=one.other.name,
        metric=case.metric,
        ratio=ratio,
        wall=wall if unseen else None,
        clean=case.clean,
        rounds=len(case.rounds),
        caveat=wording.join(different, wording.caveat(case)),
    )


@dataclass(frozen=True, kw_only=True)
class Advice:
    """A change: `env`, variables to set ("": to empty), or `code`, a line of code.

    `gains`, `losses`: where it was faster and slower; `notes`: what else was seen; `in_place`: why there is nothing to
    change, else empty.
    """

    experiment: str
    env: dict[str, str]
    code: str
    gains: tuple[Gain, ...]
    losses: tuple[Gain, ...] = ()
    notes: tuple[str, ...] = ()
    in_place: str = ""

    @property
    def best(self) -> float:
        return max((gain.ratio.median for gain in self.gains), default=0.0)

    @property
    def shared(self) -> str:
        """Return "CPU time, over baseline" if that holds for all gains and losses, else ""."""
        compared = {f"{gain.time}, over {gain.over}" for gain in (*self.gains, *self.losses)}
        return compared.pop() if len(compared) == 1 else ""

    @property
    def line(self) -> str:
        """Return the one line to type, without its remark."""
        if self.env:
            return " ".join(f"{name}={value}" for name, value in sorted(self.env.items()))
        return _split_remark(self.code)[0]

    @property
    def remark(self) -> str:
        """Return what else to know about the line; of a variable, the line of code that does the same."""
        code, remark = _split_remark(self.code)
        if not self.env:
            return remark
        return code if self.code.startswith("#") or not code else f"or in Python, {remark}: {code}"


def _split_remark(code: str) -> tuple[str, str]:
    """Part a line of code from its comment; a line that is all comment is what to type."""
    if code.startswith("# "):
        return code.removeprefix("# "), ""
    line, _, remark = code.partition("  # ")
    return line, remark
