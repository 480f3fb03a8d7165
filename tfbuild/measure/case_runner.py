"""Run the sides of one case in their workers: start them, prepare them, ask them for samples, and lose them."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from tfbuild.errors import TfbuildError
from tfbuild.in_container.bench.records import Calibrated, Hello, Idle, Ready, WorkerSample
from tfbuild.measure import protocol, records
from tfbuild.measure.arms import Side, wrong_allocator
from tfbuild.measure.evaluate import AGAIN
from tfbuild.measure.protocol import SHORTEST_SAMPLE, MeasurementError
from tfbuild.measure.workers import Key, Pool

T = TypeVar("T")

MOST_IDLE = 0.2
# The first step of a ResNet-50 took 52 s on a machine with twenty other users.
PREPARE_SECONDS = 240.0
MOST_TRIES = 4
# If a sample takes this many times the shortest with another side's number of calls, this side needs fewer calls.
LONG = 3.0


@dataclass
class CaseRunner:
    """`sides`: the baseline first, the baseline again last. `name`: the case's, part of the workers' keys for its work.

    `strict`: raise the first error; otherwise it becomes the side's status, and the other sides go on.
    """

    name: str
    sides: list[Side]
    pool: Pool
    tell: Callable[[str], None]
    strict: bool = False

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

    # --- workers ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start all workers at once; if one of them dies, start them one by one."""
        self.tell("starting workers")
        try:
            hellos = self.pool.start([side.key for side in self.sides])
        except (TfbuildError, TimeoutError, MeasurementError):
            if self.strict:
                raise
            hellos = {}
            for side in self.sides:
                self.guarded(side, partial(self._start_one, side, hellos))
        for side in self.live:
            if reason := wrong_allocator(side.arm, hellos[side.key]):
                side.give_up(records.SKIPPED, reason)

    def _start_one(self, side: Side, hellos: dict[Key, Hello]) -> None:
        hellos |= self.pool.start([side.key])

    def guarded(self, side: Side, work: Callable[[], object]) -> None:
        """Run `work`; unless strict, an error in it becomes the side's status."""
        if self.strict:
            work()
            return
        try:
            work()
        except MeasurementError as error:
            side.give_up(records.FAILED, str(error))
        except (TfbuildError, TimeoutError) as error:
            reason = error.reason if isinstance(error, TfbuildError) else str(error)
            side.give_up(records.FAILED, f"its process was lost: {_last_line(reason)}")

    def lost_with(self, side: Side) -> None:
        """Give up the sides that shared a lost side's process."""
        if side.live or side.key in self.pool.running():
            return
        for other in self.live:
            if other.key == side.key:
                other.give_up(records.FAILED, f"its process was lost with {side.name}'s")

    def _ask(self, side: Side, kind: type[T], **question: object) -> T:
        return self.pool.ask(side.key, kind, PREPARE_SECONDS, key=f"{self.name}/{side.name}", **question)

    # --- work -------------------------------------------------------------------------------------------------------

    def make_ready(self, end: float) -> None:
        """Prepare the sides until `end`, the baseline and the baseline again first: the others need both."""
        waiting = sorted(self.sides, key=lambda side: side.name != AGAIN and side is not self.baseline)
        while waiting:
            side = waiting.pop(0)
            if not side.live:
                continue
            if time.monotonic() > end:
                side.give_up(records.TRUNCATED, "the time budget ended before it was ready")
                continue
            self.tell(f"preparing {side.name}")
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
        alike = [other for other in self.live if other.inner > 1 and other is not side and other.same_work(side)]
        if alike:
            side.inner = alike[0].inner
            if self.sample(side).wall <= LONG * SHORTEST_SAMPLE:
                return
        side.inner = self._ask(side, Calibrated, ask="calibrate").inner
        self.sample(side)

    def sample(self, side: Side) -> WorkerSample:
        """Take a sample of a tenth of a second or more; if it is shorter, try again with more calls."""
        if not self._at_home(side):
            raise MeasurementError("its process was lost with another case's")
        for _ in range(MOST_TRIES):
            taken = self._ask(side, WorkerSample, ask="sample", inner=side.inner)
            protocol.check(side.name, taken)
            if taken.wall >= SHORTEST_SAMPLE:
                return taken
            side.inner = protocol.bounded(side.inner * 1.2 * SHORTEST_SAMPLE / taken.wall)
        raise MeasurementError(f"{MOST_TRIES} samples took less than a tenth of a second")


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " ... ".join(dict.fromkeys((lines[0], lines[-1])))[:300] if lines else ""
