"""One comparison: its arms are made ready, then timed in interleaved rounds in random order, within its time."""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import TypeVar

from tfbuild.bench import results
from tfbuild.bench.evaluate import AGAIN, FEWEST, Verdict, cpu, evaluate, wall
from tfbuild.bench.experiments import Arm, Case, Experiment
from tfbuild.bench.results import ArmResult, CaseResult, Round, Sample
from tfbuild.bench.workers import Key, Pool
from tfbuild.benches.found import Dropped, Hello, Idle, Ready, Taken
from tfbuild.errors import TfbuildError
from tfbuild.smoke.found import Prepared
from tfbuild.verify import asking, paired
from tfbuild.verify.asking import MOST_FOREIGN, MOST_REPEATS, SHORTEST_SAMPLE, MeasurementError

T = TypeVar("T")

MOST_IDLE = 0.2
# Two ways to the same number differ by rounding, in the order of additions mostly.
SAME = 2e-3
# A ResNet-50 took 52 s to its first step on a machine that twenty others were using.
PREPARE_SECONDS = 240.0
# Of a case's time; the rest is for rounds.
PREPARING = 0.6
LEAST_SAMPLES = 4


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where arms run: the image and the one it is compared with, this machine's processors and GPUs."""

    image: str
    against: str
    cpus: int
    gpus: int

    def fill(self, text: str) -> str:
        """A row's text with this machine's processors in it."""
        return text.format(cpus=self.cpus, fourfold=4 * self.cpus)

    def key(self, case: Case, arm: Arm) -> Key:
        env = {name: self.fill(value) for name, value in {**case.env, **arm.env}.items()}
        image = self.against if arm.image == "against" else self.image
        return Key(image=image, env=tuple(sorted(env.items())), process=arm.process)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """`rounds` at most, until `end` (monotonic); those that an interval needs may take until `latest`."""

    rounds: int
    end: float
    latest: float


@dataclass
class Side:
    """An arm as it runs: its worker, and what was found of it so far."""

    name: str
    arm: Arm
    key: Key
    params: dict[str, results.Value]
    workload: str
    inner: int = 1
    ready: Ready = field(default_factory=Ready)
    status: str = results.MEASURED
    reason: str = ""

    @property
    def live(self) -> bool:
        return self.status == results.MEASURED

    def give_up(self, status: str, reason: str) -> None:
        self.status, self.reason = status, reason


@dataclass
class Comparison:
    """A case that is being measured; what was measured stays here when an exception ends it."""

    row: Experiment
    case: Case
    place: Place
    pool: Pool
    tell: Callable[[str], None]
    sides: list[Side] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    truncated: bool = False

    @property
    def metric(self) -> str:
        return self.case.metric or self.row.metric

    @property
    def baseline(self) -> Side:
        return self.sides[0]

    def measure(self, limits: Limits, shuffled: random.Random) -> None:
        """Fills `sides` and `rounds`. KeyboardInterrupt passes through; all else becomes an arm's status."""
        self._line_up()
        if reason := self._cannot():
            for side in self.sides:
                side.give_up(results.SKIPPED, reason)
            return
        self._start()
        self._prepare_all(time.monotonic() + PREPARING * (limits.latest - time.monotonic()))
        for index in range(limits.rounds):
            if not self._comparable():
                return
            if self._over(limits):
                self.truncated = True
                return
            self.tell(f"{self.case.name}: round {index + 1} of {limits.rounds}")
            if row := self._quiet_round(shuffled, limits.end):
                self.rounds.append(row)

    def _over(self, limits: Limits) -> bool:
        enough = len(self.rounds) >= paired.FEWEST
        return time.monotonic() > (limits.end if enough else limits.latest)

    def _line_up(self) -> None:
        for arm in self.row.arms(self.case):
            params = {**self.case.params, **arm.params}
            workload = arm.workload or self.case.workload or self.row.workload
            key = self.place.key(self.case, arm)
            self.sides.append(Side(name=self.place.fill(arm.name), arm=arm, key=key, params=params, workload=workload))
        first = self.sides[0]
        apart = any(side.key != first.key for side in self.sides)
        key = replace(first.key, process=f"{first.key.process} again".strip()) if apart else first.key
        self.sides.append(replace(first, name=AGAIN, key=key))

    def _cannot(self) -> str:
        if self.case.needs == "gpu" and not self.place.gpus:
            return "TensorFlow in this image sees no GPU"
        if self.case.needs == "against" and not self.place.against:
            return "there is no other image to compare with (--against IMAGE)"
        return ""

    def _start(self) -> None:
        """All workers at once where they can; one by one where one of them dies."""
        keys = [side.key for side in self.sides]
        self.tell(f"{self.case.name}: workers start")
        try:
            hellos = self.pool.start(keys)
        except (TfbuildError, TimeoutError, MeasurementError):
            hellos = {}
            for side in self.sides:
                self._guarded(side, partial(self._start_one, side, hellos))
        for side in self.sides:
            if side.live and (reason := _wrong_allocator(side.arm, hellos[side.key])):
                side.give_up(results.SKIPPED, reason)

    def _start_one(self, side: Side, hellos: dict[Key, Hello]) -> None:
        hellos |= self.pool.start([side.key])

    def _guarded(self, side: Side, work: Callable[[], object]) -> None:
        try:
            work()
        except MeasurementError as error:
            side.give_up(results.FAILED, str(error))
        except (TfbuildError, TimeoutError) as error:
            reason = error.reason if isinstance(error, TfbuildError) else str(error)
            side.give_up(results.FAILED, f"its process was lost: {_last_line(reason)}")

    def _ask(self, side: Side, kind: type[T], timeout: float = asking.SECONDS, **question: object) -> T:
        return self.pool.ask(side.key, kind, timeout, key=self._name(side), **question)

    def _name(self, side: Side) -> str:
        return f"{self.row.name}/{self.case.name}/{side.name}"

    def _prepare(self, side: Side) -> None:
        side.ready = self._ask(side, Ready, PREPARE_SECONDS, ask="prepare", workload=side.workload, params=side.params)
        if side.ready.reason:
            side.give_up(results.SKIPPED, side.ready.reason)
            return
        if side.ready.guard:
            raise MeasurementError(side.ready.guard)
        side.inner = self._ask(side, Prepared, ask="calibrate").inner
        self._sample(side)
        idle = self._ask(side, Idle, ask="idle").share
        if idle > MOST_IDLE:
            # Whatever works on would be timed with the others.
            self.pool.close(side.key)
            raise MeasurementError(f"it used {idle:.0%} of a processor while it was idle: work goes on behind it")

    def _sample(self, side: Side) -> Taken:
        """A tenth of a second or more: where the machine became faster, the next sample gets more calls."""
        for _ in range(LEAST_SAMPLES):
            taken = self._ask(side, Taken, PREPARE_SECONDS, ask="sample", inner=side.inner)
            asking.checked(side.name, taken)
            if taken.wall >= SHORTEST_SAMPLE:
                return taken
            side.inner = asking.bounded(side.inner * 1.2 * SHORTEST_SAMPLE / taken.wall)
        raise MeasurementError("no sample of it takes a tenth of a second")

    def _prepare_all(self, end: float) -> None:
        """The baseline and its second self first: without them no other arm is worth the wait."""
        waiting = sorted(self.sides, key=lambda side: side.name != AGAIN and side is not self.baseline)
        while waiting:
            side = waiting.pop(0)
            if not side.live:
                continue
            if time.monotonic() > end:
                side.give_up(results.TRUNCATED, "the time was over before it was ready")
                continue
            self.tell(f"{self.case.name}: {side.name} gets ready")
            self._guarded(side, partial(self._prepare, side))
            if side.key not in self.pool.running():
                # It took its process with it: those that share it start anew, without it.
                again = [other for other in self.sides if other.live and other.key == side.key]
                for other in again:
                    self._guarded(other, partial(self._start_one, other, {}))
                waiting = [*again, *(other for other in waiting if other not in again)]

    def _comparable(self) -> bool:
        """An arm, the baseline, and the baseline again, without which there is nothing to hold an effect against."""
        again = self.sides[-1]
        if not again.live and self.baseline.live:
            self.baseline.give_up(again.status, again.reason)
        return self.baseline.live and sum(side.live for side in self.sides) > 2

    def _quiet_round(self, shuffled: random.Random, end: float) -> Round | None:
        """A round that nobody disturbed, or the least disturbed of a few; None where an arm was lost in it."""
        best = self._round(shuffled)
        for _ in range(MOST_REPEATS):
            if best is None or best.foreign <= MOST_FOREIGN or time.monotonic() > end:
                break
            again = self._round(shuffled)
            best = min(best, again, key=lambda row: row.foreign) if again else None
        return best

    def _round(self, shuffled: random.Random) -> Round | None:
        taken: dict[str, tuple[int, Taken]] = {}
        live = [side for side in self.sides if side.live]
        for side in shuffled.sample(live, len(live)):

            def once(side: Side = side) -> None:
                sample = self._sample(side)
                taken[side.name] = side.inner, sample

            if side.live:
                self._guarded(side, once)
            if not side.live and side.key not in self.pool.running():
                self._lost_with(side)
        if len(taken) < len(live):
            return None
        return Round(
            samples={name: _raw(inner, sample) for name, (inner, sample) in taken.items()},
            foreign=asking.foreign([sample for _, sample in taken.values()]),
        )

    def _lost_with(self, side: Side) -> None:
        for other in self.sides:
            if other.live and other.key == side.key:
                other.give_up(results.FAILED, f"its process was lost with {side.name}'s")

    def forget(self) -> None:
        """The workers' memory of this case; those that were lost have none."""
        for key in {side.key for side in self.sides} & set(self.pool.running()):
            try:
                self.pool.ask(key, Dropped, ask="drop")
            except (TfbuildError, TimeoutError, MeasurementError):
                self.pool.close(key)

    # --- the result -------------------------------------------------------------------------------------------------

    def result(self, *, interrupted: bool = False) -> CaseResult:
        """What was measured, judged."""
        live = {side.name: side.ready.items for side in self.sides if side.live and side.name != AGAIN}
        rounds = tuple(row for row in self.rounds if live.keys() | {AGAIN} <= row.samples.keys())
        arms = tuple(side for side in self.sides if side.name != AGAIN)
        if not rounds or not self.sides or self.baseline.name not in live:
            return CaseResult(
                name=self.case.name,
                metric=self.metric,
                status=self._status(interrupted, measured=False),
                reason=self._why(interrupted),
                baseline=self.place.fill(self.row.arms(self.case)[0].name),
                arms=tuple(_arm(side, (), None, None, self._status(interrupted, measured=False)) for side in arms),
            )
        found = evaluate(rounds, self.baseline.name, live, self.metric)
        return CaseResult(
            name=self.case.name,
            metric=self.metric,
            status=self._status(interrupted, measured=True),
            reason=self._why(interrupted),
            baseline=self.baseline.name,
            arms=tuple(
                _arm(side, found.used, found.arms.get(side.name), self._agrees(side), results.TRUNCATED)
                for side in arms
            ),
            rounds=rounds,
            band=found.band,
            clean=found.clean,
            noisy=found.noisy,
            foreign=found.foreign,
            throttled=found.throttled,
        )

    def _status(self, interrupted: bool, *, measured: bool) -> str:
        if interrupted:
            return results.INTERRUPTED
        if measured:
            return results.TRUNCATED if self.truncated else results.MEASURED
        if self.truncated or not self.sides:
            return results.TRUNCATED
        lost = self.baseline if not self.baseline.live else next((s for s in self.sides[1:] if not s.live), None)
        return lost.status if lost else results.FAILED

    def _why(self, interrupted: bool) -> str:
        if interrupted:
            return f"interrupted after {len(self.rounds)} rounds"
        if self.truncated:
            return f"its time was over after {len(self.rounds)} rounds"
        if not self.rounds:
            return next((side.reason for side in self.sides if side.reason), "no round could be finished")
        return ""

    def _agrees(self, side: Side) -> bool | None:
        mine, first = side.ready.value, self.baseline.ready.value
        if not self.row.same or mine is None or first is None or side is self.baseline:
            return None
        return abs(mine - first) <= SAME * max(abs(first), 1e-6)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " ... ".join(dict.fromkeys((lines[0], lines[-1])))[:300] if lines else ""


def _wrong_allocator(arm: Arm, hello: Hello) -> str:
    if arm.malloc and arm.malloc not in hello.malloc.rpartition("/")[2]:
        return f"the image has no {arm.malloc}: malloc is that of {hello.malloc or 'nobody'}"
    return ""


def _raw(inner: int, taken: Taken) -> Sample:
    return Sample(
        inner=inner, wall=taken.wall, cpu=taken.cpu, faults=taken.faults, rss=taken.rss, throttled=taken.throttled
    )


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
