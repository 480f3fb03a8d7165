"""Interleaved rounds, in random order and in a limited time, of one case or of several that take turns.

The result is a record with verdicts, or with the reason why there are none.
"""

import math
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import TypeVar

from tfbuild.errors import TfbuildError, reason_of
from tfbuild.in_container.bench.worker import MOST_IDLE, Calibrated, Idle, Ready, WorkerSample
from tfbuild.in_container.smoke.references import MOST_VALUE
from tfbuild.measure import records, workers
from tfbuild.measure.evaluate import BASE_AGAIN, FEWEST, MOST_FOREIGN, Verdict, cpu, evaluate, wall
from tfbuild.measure.experiments import Case, Experiment
from tfbuild.measure.records import ArmResult, CaseResult, Round, Sample
from tfbuild.measure.workers import (
    SHORTEST_SAMPLE,
    Key,
    Machine,
    MeasurementError,
    Pool,
    Side,
    line_up,
    wrong_memory,
)

T = TypeVar("T")

# How often a disturbed round is repeated.
MOST_REPEATS = 2
# The first step of a ResNet-50 took 52 s on a machine with twenty other users.
PREPARE_SECONDS = 240.0
MOST_TRIES = 4
# If a sample takes this many times the shortest with another side's number of calls, this side needs fewer calls.
LONG = 3.0
# Two ways to compute the same number differ by rounding, mostly because of the order of additions.
SAME = 2e-3


@dataclass(frozen=True, kw_only=True)
class RoundLimits:
    """At most `rounds`, until `end` (monotonic); the rounds that an interval needs may take until `latest`."""

    rounds: int
    end: float
    latest: float


@dataclass
class CaseRun:
    """A case that is being measured. It keeps its rounds if an exception ends it.

    `sides`: the baseline first, the baseline again last; `strict`: raise the first error, which otherwise becomes the
    side's status while the other sides go on.
    """

    row: Experiment
    case: Case
    machine: Machine
    pool: Pool
    tell: Callable[[str], None]
    strict: bool = False
    rounds: list[Round] = field(default_factory=list)
    truncated: bool = False
    sides: list[Side] = field(init=False)

    def __post_init__(self) -> None:
        self.sides = line_up(self.row, self.case, self.machine)

    @property
    def baseline(self) -> Side:
        return self.sides[0]

    @property
    def live(self) -> list[Side]:
        return [side for side in self.sides if side.live]

    def comparable(self) -> bool:
        """Whether an arm, the baseline and the baseline again still run; without all three, nothing can be judged."""
        again = self.sides[-1]
        if not again.live and self.baseline.live:
            self.baseline.give_up(again.status, again.reason)
        return self.baseline.live and len(self.live) > 2

    # --- workers -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start all workers at once; if one of them dies, start them one by one."""
        self._tell("starting workers")
        try:
            self.pool.start([side.key for side in self.sides])
        except (TfbuildError, OSError, MeasurementError):
            if self.strict:
                raise
            for side in self.sides:
                self.guarded(side, partial(self.pool.start, [side.key]))
        hellos = self.pool.start([side.key for side in self.live])
        for side in self.live:
            if reason := wrong_memory(side.arm, hellos[side.key]):
                side.give_up(records.SKIPPED, reason)

    def guarded(self, side: Side, work: Callable[[], object]) -> None:
        """Run `work`; unless strict, an error in it becomes the side's status if the image and the engine are there."""
        if self.strict:
            work()
            return
        try:
            work()
        except MeasurementError as error:
            side.give_up(records.FAILED, str(error))
        except (TfbuildError, OSError) as error:  # TimeoutError is one; a machine without memory cannot fork
            self.pool.require_image()
            side.give_up(records.FAILED, f"its process was lost: {_last_line(reason_of(error))}")

    def _ask(self, side: Side, kind: type[T], **question: object) -> T:
        key = f"{self.row.name}/{self.case.name}/{side.name}"
        return self.pool.ask(side.key, kind, PREPARE_SECONDS, key=key, **question)

    def _tell(self, text: str) -> None:
        self.tell(f"{self.case.name}: {text}")

    # --- preparing ---------------------------------------------------------------------------------------------------

    def make_ready(self, end: float) -> None:
        """Prepare the sides until `end`, the baseline and the baseline again first: the others need both."""
        waiting = sorted(self.sides, key=lambda side: side.name != BASE_AGAIN and side is not self.baseline)
        while waiting:
            side = waiting.pop(0)
            if not side.live:
                continue
            if time.monotonic() > end:
                side.give_up(records.TRUNCATED, "the time budget ended before it was ready")
                continue
            self._tell(f"preparing {side.name}")
            self.guarded(side, partial(self._make_ready, side))
            if side.key not in self.pool.running():
                # Its process is gone: build the sides that shared it again, in a new one.
                shared = [other for other in self.live if other.key == side.key]
                waiting = [*shared, *(other for other in waiting if other not in shared)]

    def _make_ready(self, side: Side) -> None:
        if side.key not in self.pool.running():
            self.pool.start([side.key])
        if not self._at_home(side):
            self.build(side)
        if side.live:
            self._rehearse(side)

    def _at_home(self, side: Side) -> bool:
        return side.home != 0 and side.home == self.pool.turn(side.key)

    def build(self, side: Side) -> None:
        """Build and warm up its workload; raise MeasurementError if it works in the background while idle."""
        side.ready = self._ask(side, Ready, ask="prepare", workload=side.workload, params=side.params)
        if side.ready.reason and self.strict:
            raise MeasurementError(side.ready.reason)
        if side.ready.reason:
            side.give_up(records.SKIPPED, side.ready.reason)
            return
        if side.ready.guard:
            raise MeasurementError(side.ready.guard)
        idle = self._ask(side, Idle, ask="idle").share
        if idle > MOST_IDLE:
            # Its background work would be timed with the other sides.
            self.pool.close(side.key)
            raise MeasurementError(f"it used {idle:.0%} of a CPU while idle: it works in the background")
        side.home = self.pool.turn(side.key)

    def _rehearse(self, side: Side) -> None:
        """Choose the calls for a sample: those of a side with the same work, if they take about as long here."""
        built = [other.ready.items for other in self.live if other.home and other.same_work(side)]
        if {*built} != {max(1, side.ready.items)}:
            raise MeasurementError(
                f"its calls have {built} items: the same work must have the same number in each process"
            )
        alike = [other for other in self.live if other.inner > 1 and other is not side and other.same_work(side)]
        if alike:
            side.inner = alike[0].inner
            if self.sample(side).wall <= LONG * SHORTEST_SAMPLE:
                return
        side.inner = self._ask(side, Calibrated, ask="calibrate").inner
        self.sample(side)

    # --- rounds ------------------------------------------------------------------------------------------------------

    def sample(self, side: Side) -> WorkerSample:
        """Take a sample of a tenth of a second or more; if it is shorter, try again with more calls."""
        if not self._at_home(side):
            raise MeasurementError("another case that shared its process was lost")
        for _ in range(MOST_TRIES):
            taken = self._ask(side, WorkerSample, ask="sample", inner=side.inner)
            workers.check_sample(side.name, taken)
            if taken.wall >= SHORTEST_SAMPLE:
                return taken
            side.inner = workers.whole_calls(side.inner * 1.2 * SHORTEST_SAMPLE / taken.wall)
        raise MeasurementError(f"{MOST_TRIES} samples took less than a tenth of a second")

    def quiet_round(self, shuffled: random.Random, end: float) -> None:
        """Add an undisturbed round, or the least disturbed of a few; none if a side was lost in the first."""
        best = self._round(shuffled)
        for _ in range(MOST_REPEATS):
            if best is None or best.foreign <= MOST_FOREIGN or time.monotonic() > end:
                break
            best = min(filter(None, (best, self._round(shuffled))), key=lambda row: row.foreign)
        if best:
            self.rounds.append(best)

    def _round(self, shuffled: random.Random) -> Round | None:
        samples: dict[str, tuple[int, WorkerSample]] = {}
        live = self.live
        for side in shuffled.sample(live, len(live)):

            def take(side: Side = side) -> None:
                sample = self.sample(side)
                samples[side.name] = side.inner, sample

            if side.live:
                self.guarded(side, take)
            self._lose_with(side)
        if len(samples) < len(live):
            return None
        return Round(
            samples={name: _raw(inner, sample) for name, (inner, sample) in samples.items()},
            foreign=workers.foreign_share([sample for _, sample in samples.values()]),
        )

    def _lose_with(self, side: Side) -> None:
        """Give up the sides that shared a lost side's process."""
        if side.live or side.key in self.pool.running():
            return
        for other in self.live:
            if other.key == side.key:
                other.give_up(records.FAILED, f"it shared the process of {side.name}, which was lost")

    # --- the result --------------------------------------------------------------------------------------------------

    def result(self, *, interrupted: bool = False) -> CaseResult:
        """Judge the rounds in which every side took part that was not given up."""
        arms = [side for side in self.sides if side.name != BASE_AGAIN]
        live = {side.name: side.ready.items for side in arms if side.live}
        rounds = tuple(row for row in self.rounds if live.keys() | {BASE_AGAIN} <= row.samples.keys())
        measured = bool(rounds) and self.baseline.name in live
        status, reason = self._outcome(measured=measured, interrupted=interrupted)
        result = CaseResult(
            name=self.case.name,
            metric=self.case.metric or self.row.metric,
            status=status,
            reason=reason,
            baseline=self.baseline.name,
            arms=tuple(_arm(side, (), None, None, status) for side in arms),
        )
        if not measured:
            return result
        evaluation = evaluate(rounds, result.baseline, live, result.metric)
        verdicts = evaluation.arms
        return replace(
            result,
            arms=tuple(
                _arm(side, evaluation.used, verdicts.get(side.name), self._agrees(side), records.TRUNCATED)
                for side in arms
            ),
            rounds=rounds,
            band=evaluation.band,
            clean=evaluation.clean,
            noisy=evaluation.noisy,
            foreign=evaluation.foreign,
            throttled=evaluation.throttled,
        )

    def _outcome(self, *, measured: bool, interrupted: bool) -> tuple[str, str]:
        """Return the status, and why there are fewer rounds than planned, or none."""
        if interrupted:
            return records.INTERRUPTED, f"interrupted after {len(self.rounds)} rounds"
        if self.truncated:
            return records.TRUNCATED, f"stopped by the time budget after {len(self.rounds)} rounds"
        if measured and len(self.rounds) < FEWEST:
            return records.TRUNCATED, f"only {len(self.rounds)} rounds were completed"
        if measured:
            return records.MEASURED, ""
        lost = next((side.status for side in self.sides if not side.live), records.FAILED)
        return lost, next((side.reason for side in self.sides if side.reason), "no round was completed")

    def _agrees(self, side: Side) -> bool | None:
        """Whether the side computes what the baseline does; None if no one claims so, or if it cannot be compared."""
        value, reference = side.ready.value, self.baseline.ready.value
        if not self.row.same or value is None or side is self.baseline or reference in (None, MOST_VALUE):
            return None
        return math.isclose(value, reference, rel_tol=SAME, abs_tol=SAME * 1e-6)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " ... ".join(dict.fromkeys((lines[0], lines[-1])))[:300] if lines else ""


def _raw(inner: int, sample: WorkerSample) -> Sample:
    return Sample(
        inner=inner, wall=sample.wall, cpu=sample.cpu, faults=sample.faults, rss=sample.rss, throttled=sample.throttled
    )


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


# --- cases that are measured together --------------------------------------------------------------------------------


def prepare(runs: Sequence[CaseRun], end: float) -> None:
    """Prepare the sides of all cases until `end` (monotonic); a failure becomes the side's status.

    Several cases are built in all workers at the same time, which is faster but makes their build times meaningless.
    """
    for run in runs:
        if reason := run.machine.lacks(run.row, run.case):
            for side in run.sides:
                side.give_up(records.SKIPPED, reason)
        else:
            run.start()
    if len(runs) > 1:
        _build_at_once(runs)
    for run in runs:
        run.make_ready(end)


def _build_at_once(runs: Sequence[CaseRun]) -> None:
    keys = list(dict.fromkeys(side.key for run in runs for side in run.live))
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
        for side in [side for side in run.live if side.key == key]:
            if key in run.pool.running():
                run.guarded(side, partial(run.build, side))


def run(runs: Sequence[CaseRun], limits: RoundLimits, shuffled: random.Random) -> None:
    """Measure the rounds. Each has its share of the time to repeat what was disturbed."""
    begin = time.monotonic()
    for index in range(limits.rounds):
        comparable = [run for run in runs if run.comparable()]
        enough = min((len(run.rounds) for run in comparable), default=0) >= FEWEST
        if comparable and time.monotonic() > (limits.end if enough else limits.latest):
            for run in comparable:
                run.truncated = True
            return
        end = begin + max(0.0, limits.end - begin) * (index + 1) / limits.rounds
        for run in shuffled.sample(comparable, len(comparable)):
            run.tell(f"{run.case.name}: round {index + 1} of {limits.rounds}")
            run.quiet_round(shuffled, end)
