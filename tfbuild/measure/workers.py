"""Persistent workers in containers, looked up by what they are started with, and the questions that they answer.

All are paused but the one that is asked.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import TypeVar

from tfbuild.engine import Engine, Sandbox, Worker
from tfbuild.errors import TfbuildError
from tfbuild.in_container.bench.worker import Dropped, Hello, WorkerSample
from tfbuild.measure import probe

T = TypeVar("T")

SECONDS = 60.0
SHORTEST_SAMPLE = 0.1
MOST_INNER = 100_000
# A sample that used less of a CPU than this was not measured: even waiting uses more.
LEAST_SHARE = 1e-6
# NumPy's own threads would compete with TensorFlow's.
QUIET = {"OPENBLAS_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}


class MeasurementError(Exception):
    """A worker violated the protocol or the method, so its numbers must not be used."""


def ask(worker: Worker, kind: type[T], timeout: float, **question: object) -> T:
    """Ask a worker, and check its answer; raise MeasurementError if it cannot be trusted."""
    try:
        return probe.record(worker.ask(json.dumps(question), timeout), kind)
    except probe.UntrustedError as error:
        raise MeasurementError(f"a worker's answer cannot be trusted: {error}") from error


def whole_calls(inner: float) -> int:
    """Round the calls of a sample to a whole number; raise MeasurementError if they are too many."""
    if not 1 <= inner <= MOST_INNER:
        raise MeasurementError(f"a sample would need {inner:.0f} calls, and at most {MOST_INNER} are allowed")
    return round(inner + 0.5)


def check_sample(name: str, sample: WorkerSample) -> None:
    """Raise MeasurementError if TensorFlow traced the function again, or if no time passed."""
    if sample.traces != 1:
        raise MeasurementError(f"{name} was traced {sample.traces} times: the time is that of TensorFlow's tracing")
    if not (sample.wall > 0 and sample.cpu > LEAST_SHARE * sample.wall and sample.cpus > 0):
        raise MeasurementError(f"{name} took no time at all")


def foreign_share(samples: Sequence[WorkerSample]) -> float:
    """Return the share of the machine's time that others used: its busy time, less what the samples used."""
    others = sum(sample.busy - sample.cpu for sample in samples)
    return max(0.0, others / sum(sample.wall * sample.cpus for sample in samples))


# Importing TensorFlow takes this long on a busy machine.
START_SECONDS = 120.0
# An engine whose default runtime is NVIDIA's gives its GPUs even to containers that ask for none.
NO_GPU = {"CUDA_VISIBLE_DEVICES": "-1"}


@dataclass(frozen=True, kw_only=True)
class Key:
    """What a worker is started with. `process` only separates processes; `gpus`: all that the engine offers."""

    image: str
    env: tuple[tuple[str, str], ...] = ()
    process: str = ""
    gpus: bool = False


@dataclass
class Pool:
    """The running workers. `more`: further files for the containers, by path.

    `require_image`: raises if the image or the engine is gone, so that no worker is to blame for its end.
    `sandbox`: confines the workers of images that are not trusted, and has probe.files().
    """

    engine: Engine
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
        unset = [name for name, value in key.env if not value]
        command = ["python", f"{probe.FOLDER}/bench", *unset]
        env = {**QUIET, **({} if key.gpus else NO_GPU), **dict(key.env)}
        copied = {} if self.sandbox else {**probe.files(), **self.more}
        return self.engine.worker(key.image, command, env=env, files=copied, gpus=key.gpus, sandbox=self.sandbox)

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
def pool(engine: Engine, more: Mapping[str, bytes], sandbox: Sandbox | None = None) -> Iterator[Pool]:
    """Open a pool whose workers are closed at the end of the block."""
    with ExitStack() as stack:
        workers = Pool(engine, more, sandbox)
        stack.callback(lambda: workers.close(*workers.running()))
        yield workers
