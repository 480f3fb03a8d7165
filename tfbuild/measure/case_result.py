"""Turn a case's sides and rounds into a record with verdicts, or with the reason why there are none. Pure."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from tfbuild.measure import records
from tfbuild.measure.arms import Side
from tfbuild.measure.evaluate import AGAIN, FEWEST, Verdict, cpu, evaluate, wall
from tfbuild.measure.experiments import Case, Experiment
from tfbuild.measure.records import ArmResult, CaseResult, Round, Sample

# Two ways to compute the same number differ by rounding, mostly because of the order of additions.
SAME = 2e-3


@dataclass(frozen=True, kw_only=True)
class CaseOutcome:
    """All that is known of a case when measuring ends, however it ends."""

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
            return f"stopped by the time budget after {len(self.rounds)} rounds"
        if not self.rounds:
            return next((side.reason for side in self.sides if side.reason), "no round was completed")
        return ""


def result(outcome: CaseOutcome) -> CaseResult:
    """Judge the rounds in which all sides that still run took part."""
    metric = outcome.case.metric or outcome.row.metric
    live = {side.name: side.ready.items for side in outcome.arms if side.live}
    rounds = tuple(row for row in outcome.rounds if live.keys() | {AGAIN} <= row.samples.keys())
    if not rounds or outcome.baseline.name not in live:
        status = outcome.status(measured=False)
        return CaseResult(
            name=outcome.case.name,
            metric=metric,
            status=status,
            reason=outcome.why(),
            baseline=outcome.baseline.name,
            arms=tuple(_arm(side, (), None, None, status) for side in outcome.arms),
        )
    evaluation = evaluate(rounds, outcome.baseline.name, live, metric)
    return CaseResult(
        name=outcome.case.name,
        metric=metric,
        status=outcome.status(measured=True),
        reason=outcome.why(),
        baseline=outcome.baseline.name,
        arms=tuple(
            _arm(side, evaluation.used, evaluation.arms.get(side.name), _agrees(outcome, side), records.TRUNCATED)
            for side in outcome.arms
        ),
        rounds=rounds,
        band=evaluation.band,
        clean=evaluation.clean,
        noisy=evaluation.noisy,
        foreign=evaluation.foreign,
        throttled=evaluation.throttled,
    )


def _agrees(outcome: CaseOutcome, side: Side) -> bool | None:
    value, reference = side.ready.value, outcome.baseline.ready.value
    if not outcome.row.same or value is None or reference is None or side is outcome.baseline:
        return None
    return math.isclose(value, reference, rel_tol=SAME, abs_tol=SAME * 1e-6)


def _arm(side: Side, used: Sequence[Round], verdict: Verdict | None, same: bool | None, unmeasured: str) -> ArmResult:
    """`unmeasured`: the status of an arm without a number although nothing is wrong with it."""
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
