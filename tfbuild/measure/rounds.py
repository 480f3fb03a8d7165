"""Interleaved rounds, in random order and in a limited time, of one case or of several that take turns.

The result is a record with verdicts, or with the reason why there are none.
"""

import math
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from statistics import median

from tfbuild.in_container.bench.records import WorkerSample
from tfbuild.measure import intervals, records, workers
from tfbuild.measure.case_runner import CaseRunner, Machine, Side, line_up
from tfbuild.measure.evaluate import AGAIN, FEWEST, MOST_FOREIGN, Verdict, cpu, evaluate, wall
from tfbuild.measure.experiments import Case, Experiment
from tfbuild.measure.records import ArmResult, CaseResult, Round, Sample
from tfbuild.measure.workers import Key, Pool

# How often a disturbed round is repeated.
MOST_REPEATS = 2


@dataclass(frozen=True, kw_only=True)
class RoundLimits:
    """At most `rounds`, until `end` (monotonic); the rounds that an interval needs may take until `latest`."""

    rounds: int
    end: float
    latest: float


@dataclass
class CaseRun:
    """A case that is being measured. It keeps its rounds if an exception ends it.

    `strict`: as in CaseRunner.
    """

    row: Experiment
    case: Case
    machine: Machine
    pool: Pool
    tell: Callable[[str], None]
    strict: bool = False
    rounds: list[Round] = field(default_factory=list)
    truncated: bool = False
    runner: CaseRunner = field(init=False)

    def __post_init__(self) -> None:
        self.runner = CaseRunner(
            name=f"{self.row.name}/{self.case.name}",
            sides=line_up(self.row, self.case, self.machine),
            pool=self.pool,
            tell=lambda text: self.tell(f"{self.case.name}: {text}"),
            strict=self.strict,
        )

    def goes_on(self) -> bool:
        """Whether it only lacks time: no side still has to be prepared for the first time."""
        waiting = any(side.status == records.TRUNCATED for side in self.runner.sides)
        return not waiting and bool(self.rounds or not self.runner.comparable())

    def resume(self, tell: Callable[[str], None]) -> None:
        """Go on with the rounds so far. All live sides are built again, as their workers may have ended meanwhile."""
        self.tell, self.truncated = tell, False
        for side in self.runner.sides:
            side.home = 0

    def quiet_round(self, shuffled: random.Random, end: float) -> None:
        """Add an undisturbed round, or the least disturbed of a few; none if a side was lost."""
        best = self._round(shuffled)
        for _ in range(MOST_REPEATS):
            if best is None or best.foreign <= MOST_FOREIGN or time.monotonic() > end:
                break
            repeat = self._round(shuffled)
            best = min(best, repeat, key=lambda row: row.foreign) if repeat else None
        if best:
            self.rounds.append(best)

    def _round(self, shuffled: random.Random) -> Round | None:
        samples: dict[str, tuple[int, WorkerSample]] = {}
        live = self.runner.live
        for side in shuffled.sample(live, len(live)):

            def take(side: Side = side) -> None:
                sample = self.runner.sample(side)
                samples[side.name] = side.inner, sample

            if side.live:
                self.runner.guarded(side, take)
            self.runner.lost_with(side)
        if len(samples) < len(live):
            return None
        return Round(
            samples={name: _raw(inner, sample) for name, (inner, sample) in samples.items()},
            foreign=workers.foreign([sample for _, sample in samples.values()]),
        )

    def result(self, *, interrupted: bool = False) -> CaseResult:
        """Judge what was measured."""
        outcome = CaseOutcome(
            row=self.row,
            case=self.case,
            sides=self.runner.sides,
            rounds=self.rounds,
            truncated=self.truncated,
            interrupted=interrupted,
        )
        return result(outcome)


def prepare(runs: Sequence[CaseRun], end: float) -> None:
    """Prepare the sides of all cases until `end` (monotonic); a failure becomes the side's status.

    Several cases are built in all workers at the same time, which is faster but makes their build times meaningless.
    """
    for run in runs:
        if reason := run.machine.lacks(run.row, run.case):
            for side in run.runner.sides:
                side.give_up(records.SKIPPED, reason)
        else:
            run.runner.start()
    if len(runs) > 1:
        _build_at_once(runs)
    for run in runs:
        run.runner.make_ready(end)


def _build_at_once(runs: Sequence[CaseRun]) -> None:
    keys = list(dict.fromkeys(side.key for run in runs for side in run.runner.live))
    if not keys:
        return
    threads = ThreadPoolExecutor(max_workers=len(keys))
    try:
        list(threads.map(partial(_build_all, runs), keys))
    finally:
        # Do not wait: if a worker dies or the user interrupts, closing the containers ends the other threads.
        threads.shutdown(wait=False, cancel_futures=True)


def _build_all(runs: Sequence[CaseRun], key: Key) -> None:
    """Build all that runs in one worker; if the worker is lost, the rest is built later in a new one."""
    for run in runs:
        for side in [side for side in run.runner.live if side.key == key]:
            if key in run.pool.running():
                run.runner.guarded(side, partial(run.runner.build, side))


def run(runs: Sequence[CaseRun], limits: RoundLimits, shuffled: random.Random) -> None:
    """Measure the rounds that are missing. Each round has its share of the time to repeat what was disturbed."""
    begin = time.monotonic()
    first = min((len(run.rounds) for run in runs if run.runner.comparable()), default=0)
    for index in range(first, limits.rounds):
        comparable = [run for run in runs if run.runner.comparable()]
        if comparable and _over(comparable, limits):
            for run in comparable:
                run.truncated = True
            return
        end = begin + max(0.0, limits.end - begin) * (index + 1 - first) / (limits.rounds - first)
        for run in shuffled.sample(comparable, len(comparable)):
            run.tell(f"{run.case.name}: round {index + 1} of {limits.rounds}")
            run.quiet_round(shuffled, end)


def _over(runs: Sequence[CaseRun], limits: RoundLimits) -> bool:
    enough = min(len(run.rounds) for run in runs) >= intervals.FEWEST
    return time.monotonic() > (limits.end if enough else limits.latest)


def _raw(inner: int, sample: WorkerSample) -> Sample:
    return Sample(
        inner=inner, wall=sample.wall, cpu=sample.cpu, faults=sample.faults, rss=sample.rss, throttled=sample.throttled
    )


# --- results ---------------------------------------------------------------------------------------------------------

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
        """Say why there are fewer rounds than planned, or none."""
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
