"""Questions to persistent workers, checks of their samples, and the method's limits."""

import json
from collections.abc import Sequence
from typing import TypeVar

from tfbuild.engine import Worker
from tfbuild.in_container.bench.records import WorkerSample
from tfbuild.measure import probe

T = TypeVar("T")

SECONDS = 60.0
SHORTEST_SAMPLE = 0.1
MOST_INNER = 100_000
MOST_FOREIGN = 0.12
# With this many clean rounds, the others are left out.
FEWEST_CLEAN = 7
MOST_REPEATS = 2
# NumPy's own threads would compete with TensorFlow's.
QUIET = {"OPENBLAS_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}


class MeasurementError(Exception):
    """A worker broke the protocol or the method, so that its numbers must not be used."""


def ask(worker: Worker, kind: type[T], timeout: float = SECONDS, **question: object) -> T:
    try:
        return probe.record(worker.ask(json.dumps(question), timeout), kind)
    except probe.UntrustedError as error:
        raise MeasurementError(f"a worker's answer cannot be trusted: {error}") from error


def alone(worker: Worker, kind: type[T], timeout: float = SECONDS, **question: object) -> T:
    """Resume a paused worker, ask it, and pause it again."""
    worker.resume()
    answer = ask(worker, kind, timeout, **question)
    worker.pause()
    return answer


def bounded(inner: float) -> int:
    """Round the calls of a sample to a whole number; raise MeasurementError if they are too many."""
    if not 1 <= inner <= MOST_INNER:
        raise MeasurementError(f"a sample would need {inner:.0f} calls, and at most {MOST_INNER} are allowed")
    return round(inner + 0.5)


def check(name: str, sample: WorkerSample) -> None:
    """Raise MeasurementError if TensorFlow traced the function again, or if no time passed."""
    if sample.traces != 1:
        raise MeasurementError(f"{name} was traced {sample.traces} times: the time is that of TensorFlow's tracing")
    if not (sample.wall > 0 and sample.cpu > 0 and sample.cpus > 0):
        raise MeasurementError(f"{name} took no time at all")


def foreign(samples: Sequence[WorkerSample]) -> float:
    """Return the share of the machine's time that others used: its busy time, less what the samples used."""
    others = sum(sample.busy - sample.cpu for sample in samples)
    return max(0.0, others / sum(sample.wall * sample.cpus for sample in samples))
