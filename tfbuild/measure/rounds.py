"""Interleaved rounds, in random order and in a limited time, of one case or of several that take turns."""

import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from tfbuild.in_container.bench.records import WorkerSample
from tfbuild.measure import case_result, intervals, protocol, records
from tfbuild.measure.arms import Machine, Side, line_up
from tfbuild.measure.case_runner import CaseRunner
from tfbuild.measure.experiments import Case, Experiment
from tfbuild.measure.protocol import MOST_FOREIGN, MOST_REPEATS
from tfbuild.measure.records import CaseResult, Round, Sample
from tfbuild.measure.workers import Key, Pool


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
            foreign=protocol.foreign([sample for _, sample in samples.values()]),
        )

    def result(self, *, interrupted: bool = False) -> CaseResult:
        """Judge what was measured."""
        outcome = case_result.CaseOutcome(
            row=self.row,
            case=self.case,
            sides=self.runner.sides,
            rounds=self.rounds,
            truncated=self.truncated,
            interrupted=interrupted,
        )
        return case_result.result(outcome)


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
