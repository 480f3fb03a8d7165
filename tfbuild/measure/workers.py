"""What runs where: persistent workers in containers, and the sides of a comparison that are timed in them.

All workers are paused but the one that is asked. A side is an arm on this machine, with its image, environment and
parameters.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TypeVar

from msgspec import structs

from tfbuild.engine import Sandbox, Worker
from tfbuild.errors import TfbuildError
from tfbuild.in_container.bench.worker import Dropped, Hello, Ready, WorkerSample
from tfbuild.measure import probe, records
from tfbuild.measure.evaluate import BASE_AGAIN
from tfbuild.measure.experiments import Arm, Case, Experiment, Place

T = TypeVar("T")

SECONDS = 60.0
SHORTEST_SAMPLE = 0.1
MOST_INNER = 100_000
# A sample that used less of a CPU than this was not measured: even waiting uses more.
LEAST_SHARE = 1e-6
# NumPy's own threads would compete with TensorFlow's.
WORKER_ENV = {"OPENBLAS_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}


class MeasurementError(Exception):
    """A worker violated the protocol or the method, so its numbers must not be used."""


def program(place: str = "", *unset: str) -> list[str]:
    """Return the words that start a worker: its arm's place, and the variables that it unsets."""
    return ["python", f"{probe.FOLDER}/bench", place, *unset]


def ask(worker: Worker, kind: type[T], timeout: float, **question: object) -> T:
    """Ask a worker, and check its answer; raise MeasurementError if it cannot be trusted."""
    try:
        return probe.parse_record(worker.ask(json.dumps(question), timeout), kind)
    except ValueError as error:
        raise MeasurementError(f"a worker's answer cannot be trusted: {error}") from error


def whole_calls(inner: float) -> int:
    """Round the calls of a sample to a whole number; raise MeasurementError if they are too many."""
    if not 1 <= inner <= MOST_INNER:
        raise MeasurementError(f"a sample would need {inner:.0f} calls, and at most {MOST_INNER} are allowed")
    return math.ceil(inner)


def check_sample(name: str, sample: WorkerSample) -> None:
    """Raise MeasurementError if TensorFlow traced the function again, or if no time passed."""
    if sample.traces != 1:
        raise MeasurementError(f"{name} was traced {sample.traces} times: the time is that of TensorFlow's tracing")
    if not (sample.wall > 0 and sample.cpu > LEAST_SHARE * sample.wall and sample.cpus > 0):
        raise MeasurementError(f"{name} took no time at all")


def foreign_share(samples: Sequence[WorkerSample]) -> float:
    """Return the share of the CPUs' time that others used: their busy time, less what the samples used."""
    others = sum(sample.busy - sample.cpu for sample in samples)
    return max(0.0, others / sum(sample.wall * sample.cpus for sample in samples))


# Importing TensorFlow takes this long on a busy machine.
START_SECONDS = 120.0
# An engine whose default runtime is NVIDIA's gives its GPUs even to containers that ask for none.
NO_GPU = {"CUDA_VISIBLE_DEVICES": "-1"}
# By default, the first process that uses a GPU takes nearly all of its memory, and those of the other sides get none.
SHARED_GPU = {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}


@dataclass(frozen=True, kw_only=True)
class Key:
    """What a worker is started with. `process` only separates processes; `gpus`: all that the engine offers."""

    image: str
    env: tuple[tuple[str, str], ...] = ()
    process: str = ""
    place: Place = ""
    gpus: bool = False


@dataclass
class Pool:
    """The running workers. `more`: further files for the containers, by path.

    `require_image`: raises if the image or the engine is gone, so that no worker is to blame for its end.
    `sandbox`: confines the workers of images that are not trusted, and has `probe_files()`.
    """

    engine: probe.Runner
    more: Mapping[str, bytes] = field(default_factory=dict)
    sandbox: Sandbox | None = None
    require_image: Callable[[], None] = lambda: None
    _running: dict[Key, tuple[Worker, Hello]] = field(default_factory=dict)
    _turns: dict[Key, int] = field(default_factory=dict)

    def start(self, keys: list[Key]) -> dict[Key, Hello]:
        """Start the workers of `keys` that do not run yet; they import TensorFlow at the same time.

        Raises WorkerDied or TimeoutError.
        """
        new: dict[Key, Worker] = {}
        try:
            for key in dict.fromkeys(keys):
                if key not in self._running:
                    new[key] = self._open(key)
            for key, worker in new.items():
                hello = ask(worker, Hello, START_SECONDS, ask="hello")
                worker.pause()
                self._running[key] = worker, hello
                self._turns[key] = self._turns.get(key, 0) + 1
        except BaseException:
            for key in new:
                self._running.pop(key, None)
            _close(new.values())
            raise
        return {key: self._running[key][1] for key in keys}

    def _open(self, key: Key) -> Worker:
        command = program(key.place, *(name for name, value in key.env if not value))
        env = {**WORKER_ENV, **(SHARED_GPU if key.gpus else NO_GPU), **dict(key.env)}
        copied = {} if self.sandbox else {**probe.probe_files(), **self.more}
        huge = key.place == "huge"
        return self.engine.worker(
            key.image, command, env=env, files=copied, gpus=key.gpus, huge=huge, sandbox=self.sandbox
        )

    def turn(self, key: Key) -> int:
        """Return which start of this worker runs now, counted from 1; 0 if none does."""
        return self._turns[key] if key in self._running else 0

    def ask(self, key: Key, kind: type[T], timeout: float = SECONDS, /, **question: object) -> T:
        """Ask a running worker, which is paused before and after; close it after an error."""
        worker = self._running[key][0]
        try:
            worker.resume()
            answer = ask(worker, kind, timeout, **question)
            worker.pause()
            return answer
        except BaseException:
            self.close(key)
            raise

    def forget(self) -> None:
        """Drop all workloads; close a worker that fails to."""
        for key in self.running():
            with suppress(TfbuildError, TimeoutError, MeasurementError):
                self.ask(key, Dropped, ask="drop")

    def close(self, *keys: Key) -> None:
        """Close these workers if they run."""
        _close([self._running.pop(key)[0] for key in dict.fromkeys(keys) if key in self._running])

    def running(self) -> tuple[Key, ...]:
        """Return the keys of the workers that run."""
        return tuple(self._running)


def _close(workers: Iterable[Worker]) -> None:
    """Close each of them, even if the engine ended and closing the first one raises EngineMissing."""
    with ExitStack() as stack:
        for worker in workers:
            stack.callback(worker.close)


@contextmanager
def pool(engine: probe.Runner, more: Mapping[str, bytes], sandbox: Sandbox | None = None) -> Iterator[Pool]:
    """Open a pool whose workers are closed at the end of the block."""
    with ExitStack() as stack:
        workers = Pool(engine, more, sandbox)
        stack.callback(lambda: workers.close(*workers.running()))
        yield workers


# --- sides -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Where arms run: the image, the one `against` which it is compared, and this machine's CPUs, NUMA nodes and GPUs.

    `sets`: variables that the image sets and an arm may unset; `no_gpu`: why there is no GPU; `model`: what rows say of
    the user's own model.
    """

    image: str
    against: str
    cpus: int
    gpus: int
    nodes: int = 1
    sets: frozenset[str] = frozenset()
    no_gpu: str = ""
    model: Mapping[str, object] = field(default_factory=dict)

    def fill(self, text: str) -> str:
        """Fill in the number of this machine's CPUs, half of it, four times as many, or what is known of a model."""
        return text.format(cpus=self.cpus, fourfold=4 * self.cpus, half=max(1, self.cpus // 2), **self.model)

    def settle(self, case: Case) -> Case:
        """Return the case with its name and its parameters filled in."""
        return structs.replace(case, name=self.fill(case.name), params=self.params(case, Arm(name="")))

    def params(self, case: Case, arm: Arm) -> dict[str, records.Value]:
        """Return the parameters of the arm's workload, with texts like "{cpus}" replaced by their numbers."""
        params = {**case.params, **arm.params}
        filled = {name: self.fill(str(value)) for name, value in params.items() if _varies(value)}
        return params | {name: int(text) if text.isdigit() else text for name, text in filled.items()}

    def arms(self, row: Experiment, case: Case) -> tuple[Arm, ...]:
        """Return the case's arms, without those that equal another arm on this machine or need more NUMA nodes."""
        seen: set[Key] = set()
        kept = []
        for arm in row.arms(case):
            key = self.key(case, arm)
            fits = arm.place != "node" or self.nodes > 1
            if fits and (key not in seen or not any(map(_varies, arm.env.values()))):
                kept.append(arm)
            seen.add(key)
        return tuple(kept)

    def key(self, case: Case, arm: Arm) -> Key:
        """Return what the arm's worker is started with."""
        env = {name: self.fill(value) for name, value in {**case.env, **arm.env}.items()}
        image = self.against if arm.image == "against" else self.image
        # TensorFlow uses a GPU for whatever it can, so only cases that need one get one: the others measure CPUs.
        own = tuple(sorted(env.items()))
        return Key(image=image, env=own, process=arm.process, place=arm.place, gpus=case.needs == "gpu")

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
    return [*sides, replace(first, name=BASE_AGAIN, key=key)]


def wrong_memory(arm: Arm, hello: Hello) -> str:
    """Say why the process lacks the allocator or the pages that the arm is about; "" if it has them."""
    if arm.malloc and arm.malloc not in hello.malloc.rpartition("/")[2]:
        return f"{arm.malloc} is not in use: malloc comes from {hello.malloc or 'an unknown library'}"
    if arm.place == "huge" and not hello.huge:
        return "no huge pages are reserved (sysctl vm.nr_hugepages=1024), or /dev/hugepages is not writable"
    return ""
