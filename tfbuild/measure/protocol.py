"""Questions to persistent workers, what their samples say of the machine, and the method's limits."""

import json
from collections.abc import Sequence
from typing import TypeVar

from tfbuild.engine import Worker
from tfbuild.in_container.bench.records import Taken
from tfbuild.measure import probe

T = TypeVar("T")

SECONDS = 60.0
SHORTEST_SAMPLE = 0.1
MOST_INNER = 100_000
MOST_FOREIGN = 0.12
# Clean rounds that are enough to leave the others out.
FEWEST_CLEAN = 7
MOST_REPEATS = 2
# NumPy's own threads would spin beside TensorFlow's.
QUIET = {"OPENBLAS_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}


class MeasurementError(Exception):
    """A worker broke the protocol or the method: no number of this run may be used."""


def ask(worker: Worker, kind: type[T], timeout: float = SECONDS, **question: object) -> T:
    try:
        return probe.record(worker.ask(json.dumps(question), timeout), kind)
    except probe.UntrustedError as error:
        raise MeasurementError(f"a worker's answer cannot be trusted: {error}") from error


def alone(worker: Worker, kind: type[T], timeout: float = SECONDS, **question: object) -> T:
    """Asks a worker that is stopped, and stops it again."""
    worker.resume()
    answer = ask(worker, kind, timeout, **question)
    worker.pause()
    return answer


def bounded(inner: float) -> int:
    """Inner calls of a sample as a whole number, rounded up."""
    if not 1 <= inner <= MOST_INNER:
        raise MeasurementError(f"a sample would need {inner:.0f} calls")
    return round(inner + 0.5)


def checked(name: str, sample: Taken) -> Taken:
    """The sample, where it holds to the method; MeasurementError where TensorFlow traced, or no time passed."""
    if sample.traces != 1:
        raise MeasurementError(f"{name} was traced {sample.traces} times: what was timed is TensorFlow's tracing")
    if not (sample.wall > 0 and sample.cpu > 0 and sample.cpus > 0):
        raise MeasurementError(f"{name} took no time at all")
    return sample


def foreign(samples: Sequence[Taken]) -> float:
    """Share of the machine's time in which others ran: all that was busy, less what the samples used themselves."""
    others = sum(sample.busy - sample.cpu for sample in samples)
    return max(0.0, others / sum(sample.wall * sample.cpus for sample in samples))
