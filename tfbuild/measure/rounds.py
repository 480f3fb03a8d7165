"""Interleaved rounds, in random order and within their time: of one case alone, or of several that take turns."""

import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from tfbuild.in_container.bench.records import Taken
from tfbuild.measure import case_result, intervals, protocol, records
from tfbuild.measure.arms import Machine, Side, line_up
from tfbuild.measure.case_runner import CaseRunner
from tfbuild.measure.experiments import Case, Experiment
from tfbuild.measure.protocol import MOST_FOREIGN, MOST_REPEATS
from tfbuild.measure.records import CaseResult, Round, Sample
from tfbuild.measure.workers import Key, Pool


@dataclass(frozen=True, kw_only=True)
class RoundLimits:
    """`rounds` at most, until `end` (monotonic); those that an interval needs may take until `latest`."""

    rounds: int
    end: float
    latest: float


@dataclass
class CaseRun:
    """A case that is being measured; what was measured stays here when an exception ends it.

    `strict`: as its runner's.
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
        """Whether time is all that it lacks: none of its sides still has to be made ready for the first time."""
        waiting = any(side.status == records.TRUNCATED for side in self.runner.sides)
        return not waiting and bool(self.rounds or not self.runner.comparable())

    def resume(self, tell: Callable[[str], None]) -> None:
        """Its workers may have forgotten or ended meanwhile: all that still lives is built again, its rounds stay."""
        self.tell, self.truncated = tell, False
        for side in self.runner.sides:
            side.home = 0

    def quiet_round(self, shuffled: random.Random, end: float) -> None:
        """Adds a round that nobody disturbed, or the least disturbed of a few; none where a side was lost in it."""
        best = self._round(shuffled)
        for _ in range(MOST_REPEATS):
            if best is None or best.foreign <= MOST_FOREIGN or time.monotonic() > end:
                break
            again = self._round(shuffled)
            best = min(best, again, key=lambda row: row.foreign) if again else None
        if best:
            self.rounds.append(best)

    def _round(self, shuffled: random.Random) -> Round | None:
        taken: dict[str, tuple[int, Taken]] = {}
        live = self.runner.live
        for side in shuffled.sample(live, len(live)):

            def once(side: Side = side) -> None:
                sample = self.runner.sample(side)
                taken[side.name] = side.inner, sample

            if side.live:
                self.runner.guarded(side, once)
            self.runner.lost_with(side)
        if len(taken) < len(live):
            return None
        return Round(
            samples={name: _raw(inner, sample) for name, (inner, sample) in taken.items()},
            foreign=protocol.foreign([sample for _, sample in taken.values()]),
        )

    def result(self, *, interrupted: bool = False) -> CaseResult:
        """What was measured, judged."""
        found = case_result.CaseOutcome(
            row=self.row,
            case=self.case,
            sides=self.runner.sides,
            rounds=self.rounds,
            truncated=self.truncated,
            interrupted=interrupted,
        )
        return case_result.result(found)


def prepare(made: Sequence[CaseRun], end: float) -> None:
    """Makes the sides of all cases ready until `end` (monotonic); what cannot be becomes their status.

    Several cases are built in all workers at the same time: that is sooner, and tells nothing of how long each takes.
    """
    for one in made:
        if reason := one.machine.lacks(one.row, one.case):
            for side in one.runner.sides:
                side.give_up(records.SKIPPED, reason)
        else:
            one.runner.start()
    if len(made) > 1:
        _build_at_once(made)
    for one in made:
        one.runner.make_ready(end)


def _build_at_once(made: Sequence[CaseRun]) -> None:
    keys = list(dict.fromkeys(side.key for one in made for side in one.runner.live))
    if not keys:
        return
    threads = ThreadPoolExecutor(max_workers=len(keys))
    try:
        list(threads.map(partial(_build_all, made), keys))
    finally:
        # Not waited for: where one worker dies, or the user gives up, closing the containers ends the others' waiting.
        threads.shutdown(wait=False, cancel_futures=True)


def _build_all(made: Sequence[CaseRun], key: Key) -> None:
    """What runs in one worker; where that is lost, the rest is built later, in a new one."""
    for one in made:
        for side in [side for side in one.runner.live if side.key == key]:
            if key in one.pool.running():
                one.runner.guarded(side, partial(one.runner.build, side))


def run(made: Sequence[CaseRun], limits: RoundLimits, shuffled: random.Random) -> None:
    """Each round may repeat what was disturbed until its share of the time is over; the next one has its own.

    Where rounds were made before, those that are missing follow.
    """
    begin = time.monotonic()
    first = min((len(one.rounds) for one in made if one.runner.comparable()), default=0)
    for index in range(first, limits.rounds):
        going = [one for one in made if one.runner.comparable()]
        if going and _over(going, limits):
            for one in going:
                one.truncated = True
            return
        end = begin + max(0.0, limits.end - begin) * (index + 1 - first) / (limits.rounds - first)
        for one in shuffled.sample(going, len(going)):
            one.tell(f"{one.case.name}: round {index + 1} of {limits.rounds}")
            one.quiet_round(shuffled, end)


def _over(going: Sequence[CaseRun], limits: RoundLimits) -> bool:
    enough = min(len(one.rounds) for one in going) >= intervals.FEWEST
    return time.monotonic() > (limits.end if enough else limits.latest)


def _raw(inner: int, taken: Taken) -> Sample:
    return Sample(
        inner=inner, wall=taken.wall, cpu=taken.cpu, faults=taken.faults, rss=taken.rss, throttled=taken.throttled
    )
