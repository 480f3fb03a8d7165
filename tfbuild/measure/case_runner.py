"""The sides of a comparison, and how their workers run them: start, prepare, sample, lose.

A side is an arm on this machine: its image, environment and parameters.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from msgspec import structs

from tfbuild.errors import TfbuildError
from tfbuild.in_container.bench.records import Calibrated, Hello, Idle, Ready, WorkerSample
from tfbuild.measure import records, workers
from tfbuild.measure.evaluate import AGAIN
from tfbuild.measure.experiments import Arm, Case, Experiment
from tfbuild.measure.workers import SHORTEST_SAMPLE, Key, MeasurementError, Pool


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Where arms run: the image, the image `against` which it is compared, and this machine's CPUs and GPUs.

    `sets`: variables that the image sets and an arm may unset; `no_gpu`: why there is no GPU.
    """

    image: str
    against: str
    cpus: int
    gpus: int
    sets: frozenset[str] = frozenset()
    no_gpu: str = ""

    def fill(self, text: str) -> str:
        """Fill in the number of this machine's CPUs, half of it, or four times as many."""
        return text.format(cpus=self.cpus, fourfold=4 * self.cpus, half=max(1, self.cpus // 2))

    def params(self, case: Case, arm: Arm) -> dict[str, records.Value]:
        """Return the parameters of the arm's workload, with texts like "{cpus}" replaced by their numbers."""
        params = {**case.params, **arm.params}
        return {name: int(self.fill(str(value))) if _varies(value) else value for name, value in params.items()}

    def arms(self, row: Experiment, case: Case) -> tuple[Arm, ...]:
        """Return the case's arms, without those that equal another arm on this machine."""
        seen: set[Key] = set()
        kept = []
        for arm in row.arms(case):
            key = self.key(case, arm)
            if key not in seen or not any(map(_varies, arm.env.values())):
                kept.append(arm)
            seen.add(key)
        return tuple(kept)

    def key(self, case: Case, arm: Arm) -> Key:
        """Return what the arm's worker is started with."""
        env = {name: self.fill(value) for name, value in {**case.env, **arm.env}.items()}
        image = self.against if arm.image == "against" else self.image
        # TensorFlow uses a GPU for whatever it can, so only cases that need one get one: the others measure CPUs.
        return Key(image=image, env=tuple(sorted(env.items())), process=arm.process, gpus=case.needs == "gpu")

    def lacks(self, row: Experiment, case: Case) -> str:
        """Say what the case needs and cannot have here; "" if nothing is missing."""
        if case.needs == "gpu" and not self.gpus:
            return self.no_gpu or "TensorFlow in this image sees no GPU"
        if case.needs == "against" and not self.against:
            return "there is no other image to compare with (--against IMAGE)"
        unset = sorted({name for arm in row.arms(case) for name, value in arm.env.items() if not value})
        if case.needs == "tuning" and not self.sets & set(unset):
            return f"this image sets none of {', '.join(unset)}: there is nothing to unset"
        return ""


def _varies(value: object) -> bool:
    """Whether it is a text of a row, like "{cpus}", that stands for a number of this machine."""
    return isinstance(value, str) and "{" in value


@dataclass
class Side:
    """An arm as it runs: its worker and its state so far.

    `home`: which start of its worker built its workload (0: none yet).
    """

    name: str
    arm: Arm
    key: Key
    params: dict[str, records.Value]
    workload: str
    inner: int = 1
    home: int = 0
    ready: Ready = field(default_factory=Ready)
    status: str = records.MEASURED
    reason: str = ""

    @property
    def live(self) -> bool:
        return self.status == records.MEASURED

    def give_up(self, status: str, reason: str) -> None:
        """Stop measuring this side, for a reason that its record states."""
        self.status, self.reason = status, reason

    def same_work(self, other: "Side") -> bool:
        """Whether it does the same work as the other side, in whichever worker."""
        return (self.workload, self.params) == (other.workload, other.params)


def line_up(row: Experiment, case: Case, machine: Machine) -> list[Side]:
    """Return a side for each arm, the baseline first, and the baseline again at the end."""
    sides = []
    for arm in machine.arms(row, case):
        params, workload = machine.params(case, arm), row.work(case, arm)
        filled = structs.replace(arm, name=machine.fill(arm.name), code=machine.fill(arm.code))
        sides.append(Side(name=filled.name, arm=filled, key=machine.key(case, arm), params=params, workload=workload))
    first = sides[0]
    apart = any(side.key != first.key for side in sides)
    key = replace(first.key, process=f"{first.key.process} again".strip()) if apart else first.key
    return [*sides, replace(first, name=AGAIN, key=key)]


def wrong_allocator(arm: Arm, hello: Hello) -> str:
    """Say why the process has not the allocator that the arm is about; "" if it has."""
    if arm.malloc and arm.malloc not in hello.malloc.rpartition("/")[2]:
        return f"the image has no {arm.malloc}: malloc comes from {hello.malloc or 'an unknown library'}"
    return ""


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
            workers.check(side.name, taken)
            if taken.wall >= SHORTEST_SAMPLE:
                return taken
            side.inner = workers.bounded(side.inner * 1.2 * SHORTEST_SAMPLE / taken.wall)
        raise MeasurementError(f"{MOST_TRIES} samples took less than a tenth of a second")


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " ... ".join(dict.fromkeys((lines[0], lines[-1])))[:300] if lines else ""
