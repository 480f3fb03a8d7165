"""What a case's sides and rounds come to: a record with its verdicts, or why there is none. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from tfbuild.measure import records
from tfbuild.measure.arms import Side
from tfbuild.measure.evaluate import AGAIN, FEWEST, Verdict, cpu, evaluate, wall
from tfbuild.measure.experiments import Case, Experiment
from tfbuild.measure.records import ArmResult, CaseResult, Round, Sample

# Two ways to the same number differ by rounding, in the order of additions mostly.
SAME = 2e-3


@dataclass(frozen=True, kw_only=True)
class CaseOutcome:
    """What is there when the measuring ends, however it ends."""

    row: Experiment
    case: Case
    sides: Sequence[Side]
    rounds: Sequence[Round]
    truncated: bool
    interrupted: bool

    @property
    def baseline(self) -> Side:
        return self.sides[0]

    @property
    def arms(self) -> tuple[Side, ...]:
        return tuple(side for side in self.sides if side.name != AGAIN)

    def status(self, *, measured: bool) -> str:
        if self.interrupted:
            return records.INTERRUPTED
        if measured:
            return records.TRUNCATED if self.truncated else records.MEASURED
        if self.truncated:
            return records.TRUNCATED
        lost = self.baseline if not self.baseline.live else next((s for s in self.sides[1:] if not s.live), None)
        return lost.status if lost else records.FAILED

    def why(self) -> str:
        if self.interrupted:
            return f"interrupted after {len(self.rounds)} rounds"
        if self.truncated:
            return f"its time was over after {len(self.rounds)} rounds"
        if not self.rounds:
            return next((side.reason for side in self.sides if side.reason), "no round could be finished")
        return ""


def result(found: CaseOutcome) -> CaseResult:
    """The rounds in which all that still run took part, judged."""
    metric = found.case.metric or found.row.metric
    live = {side.name: side.ready.items for side in found.arms if side.live}
    rounds = tuple(row for row in found.rounds if live.keys() | {AGAIN} <= row.samples.keys())
    if not rounds or found.baseline.name not in live:
        status = found.status(measured=False)
        return CaseResult(
            name=found.case.name,
            metric=metric,
            status=status,
            reason=found.why(),
            baseline=found.baseline.name,
            arms=tuple(_arm(side, (), None, None, status) for side in found.arms),
        )
    judged = evaluate(rounds, found.baseline.name, live, metric)
    return CaseResult(
        name=found.case.name,
        metric=metric,
        status=found.status(measured=True),
        reason=found.why(),
        baseline=found.baseline.name,
        arms=tuple(
            _arm(side, judged.used, judged.arms.get(side.name), _agrees(found, side), records.TRUNCATED)
            for side in found.arms
        ),
        rounds=rounds,
        band=judged.band,
        clean=judged.clean,
        noisy=judged.noisy,
        foreign=judged.foreign,
        throttled=judged.throttled,
    )


def _agrees(found: CaseOutcome, side: Side) -> bool | None:
    mine, first = side.ready.value, found.baseline.ready.value
    if not found.row.same or mine is None or first is None or side is found.baseline:
        return None
    return abs(mine - first) <= SAME * max(abs(first), 1e-6)


def _arm(side: Side, used: Sequence[Round], verdict: Verdict | None, same: bool | None, unmeasured: str) -> ArmResult:
    """`unmeasured`: its status where nothing is wrong with it and there is no number all the same."""
    samples = [row.samples[side.name] for row in used if side.name in row.samples]
    measured = side.live and len(samples) >= FEWEST

    def middle(value: Callable[[Sample], float]) -> float | None:
        return median(value(sample) for sample in samples) if measured else None

    items = side.ready.items
    return ArmResult(
        name=side.name,
        workload=side.workload,
        params=side.params,
        env=dict(side.key.env),
        image=side.key.image,
        status=side.status if measured or not side.live else unmeasured,
        reason=side.reason,
        items=items,
        build=side.ready.build,
        first=side.ready.first,
        nodes=side.ready.nodes,
        seconds=middle(lambda sample: wall(sample) / items),
        cpu_seconds=middle(lambda sample: cpu(sample) / items),
        faults=middle(lambda sample: sample.faults / sample.inner),
        rss=middle(lambda sample: sample.rss),
        error=side.ready.error,
        same=same,
        cpu=verdict.cpu if verdict else None,
        wall=verdict.wall if verdict else None,
        effect=verdict.effect if verdict else "",
        note=side.ready.note,
        code=side.arm.code,
    )
