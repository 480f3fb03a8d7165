"""The sides of one case in their workers: started, made ready, asked for samples, and lost."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from tfbuild.errors import TfbuildError
from tfbuild.in_container.bench.records import Calibrated, Hello, Idle, Ready, Taken
from tfbuild.measure import protocol, records
from tfbuild.measure.arms import Side, wrong_allocator
from tfbuild.measure.evaluate import AGAIN
from tfbuild.measure.protocol import SHORTEST_SAMPLE, MeasurementError
from tfbuild.measure.workers import Key, Pool

T = TypeVar("T")

MOST_IDLE = 0.2
# A ResNet-50 took 52 s to its first step on a machine that twenty others were using.
PREPARE_SECONDS = 240.0
LEAST_SAMPLES = 4
# A sample that takes so many times the least with another side's number of calls: this side is slower, and needs fewer.
LONG = 3.0


@dataclass
class CaseRunner:
    """`sides`: the baseline first, the baseline again last. `name`: of the case, by which workers remember its work.

    `strict`: the first trouble is raised; otherwise it becomes a side's status, and the others go on.
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
        """An arm, the baseline, and the baseline again, without which there is nothing to hold an effect against."""
        again = self.sides[-1]
        if not again.live and self.baseline.live:
            self.baseline.give_up(again.status, again.reason)
        return self.baseline.live and len(self.live) > 2

    # --- workers ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """All workers at once where they can; one by one where one of them dies."""
        self.tell("workers start")
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
        """What goes wrong in `work` is the side's, unless it is strict."""
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
        """Where its process is gone, those that shared it have none either."""
        if side.live or side.key in self.pool.running():
            return
        for other in self.live:
            if other.key == side.key:
                other.give_up(records.FAILED, f"its process was lost with {side.name}'s")

    def _ask(self, side: Side, kind: type[T], **question: object) -> T:
        return self.pool.ask(side.key, kind, PREPARE_SECONDS, key=f"{self.name}/{side.name}", **question)

    # --- work -------------------------------------------------------------------------------------------------------

    def make_ready(self, end: float) -> None:
        """The baseline and its second self first: without them no other side is worth the wait until `end`."""
        waiting = sorted(self.sides, key=lambda side: side.name != AGAIN and side is not self.baseline)
        while waiting:
            side = waiting.pop(0)
            if not side.live:
                continue
            if time.monotonic() > end:
                side.give_up(records.TRUNCATED, "the time was over before it was ready")
                continue
            self.tell(f"{side.name} gets ready")
            self.guarded(side, partial(self._make_ready, side))
            if side.key not in self.pool.running():
                # It took its process with it: those that share it are built anew, without it.
                again = [other for other in self.live if other.key == side.key]
                waiting = [*again, *(other for other in waiting if other not in again)]

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
        """Its workload, warm, and nothing that works on while nobody asks."""
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
            # Whatever works on would be timed with the others.
            self.pool.close(side.key)
            raise MeasurementError(f"it used {idle:.0%} of a processor while it was idle: work goes on behind it")
        side.home = self.pool.turn(side.key)

    def _rehearse(self, side: Side) -> None:
        """Calls for a sample: those of a side that does the same work, where they take about as long here."""
        like = [other for other in self.live if other.inner > 1 and other is not side and other.does_what(side)]
        if like:
            side.inner = like[0].inner
            if self.sample(side).wall <= LONG * SHORTEST_SAMPLE:
                return
        side.inner = self._ask(side, Calibrated, ask="calibrate").inner
        self.sample(side)

    def sample(self, side: Side) -> Taken:
        """A tenth of a second or more: where the machine became faster, the next sample gets more calls."""
        if not self._at_home(side):
            raise MeasurementError("its process was lost with another case's")
        for _ in range(LEAST_SAMPLES):
            taken = self._ask(side, Taken, ask="sample", inner=side.inner)
            protocol.checked(side.name, taken)
            if taken.wall >= SHORTEST_SAMPLE:
                return taken
            side.inner = protocol.bounded(side.inner * 1.2 * SHORTEST_SAMPLE / taken.wall)
        raise MeasurementError("no sample of it takes a tenth of a second")


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " ... ".join(dict.fromkeys((lines[0], lines[-1])))[:300] if lines else ""
