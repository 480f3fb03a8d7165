"""Persistent workers in containers, looked up by what sets them apart; all are paused but the one that is asked."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import TypeVar

from tfbuild.engine import Engine, Worker
from tfbuild.errors import TfbuildError
from tfbuild.in_container.bench.records import Dropped, Hello
from tfbuild.measure import protocol

T = TypeVar("T")

FOLDER = "/tfbuild-bench/in_container"
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


@cache
def files() -> dict[str, bytes]:
    """Return the files of the benchmark's inner part and of the smoke benchmark, by their paths in a container."""
    contents = {}
    for package in ("smoke", "bench", "bench/workloads"):
        for file in resources.files("tfbuild.in_container").joinpath(package).iterdir():
            if file.name.endswith(".py"):
                contents[f"{FOLDER}/{package}/{file.name}"] = file.read_bytes()
    return contents


@dataclass
class Pool:
    """The running workers. `more`: further files for the containers, by path."""

    engine: Engine
    more: Mapping[str, bytes] = field(default_factory=dict)
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
                hello = protocol.ask(worker, Hello, START_SECONDS, ask="hello")
                worker.pause()
                self._running[key] = worker, hello
                self._turns[key] = self._turns.get(key, 0) + 1
        except BaseException:
            for key, worker in new.items():
                self._running.pop(key, None)
                worker.close()
            raise
        return {key: self._running[key][1] for key in keys}

    def _open(self, key: Key) -> Worker:
        unset = [name for name, value in key.env if not value]
        command = ["python", f"{FOLDER}/bench", *unset]
        env = {**protocol.QUIET, **({} if key.gpus else NO_GPU), **dict(key.env)}
        return self.engine.worker(key.image, command, env=env, files={**files(), **self.more}, gpus=key.gpus)

    def turn(self, key: Key) -> int:
        """Return which start of this worker runs now, counted from 1; 0 if none does."""
        return self._turns[key] if key in self._running else 0

    def ask(self, key: Key, kind: type[T], timeout: float = protocol.SECONDS, /, **question: object) -> T:
        """Ask a running worker while the others are paused; close it after an error."""
        worker = self._running[key][0]
        try:
            return protocol.alone(worker, kind, timeout, **question)
        except BaseException:
            self.close(key)
            raise

    def forget(self) -> None:
        """Drop all workloads; close a worker that fails to."""
        for key in self.running():
            with suppress(TfbuildError, TimeoutError, protocol.MeasurementError):
                self.ask(key, Dropped, ask="drop")

    def close(self, *keys: Key) -> None:
        """Close these workers if they run."""
        for key in keys:
            if running := self._running.pop(key, None):
                running[0].close()

    def running(self) -> tuple[Key, ...]:
        return tuple(self._running)


@contextmanager
def pool(engine: Engine, more: Mapping[str, bytes]) -> Iterator[Pool]:
    with ExitStack() as stack:
        workers = Pool(engine, more)
        stack.callback(lambda: workers.close(*workers.running()))
        yield workers
