"""A worker's answers. Each record is one line of JSON, which the host checks against these types."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Hello:
    """The worker has imported TensorFlow. `malloc`: the file that holds malloc."""

    malloc: str


@dataclass(frozen=True)
class Ready:
    """A workload is built and warm; or `reason` says why it cannot run here, or `guard` what would fake its result.

    `build`: seconds until it could be called; `first`: seconds of its first call, which traces and compiles; `calls`:
    calls until its times were steady; `items`: units of work in a call; `value`: its result, to compare with the other
    arms'; `error`: relative error against a reference; `nodes`: of its graph; `note`: what else the reader must know.
    """

    reason: str = ""
    guard: str = ""
    build: float = 0.0
    first: float = 0.0
    calls: int = 0
    items: int = 1
    value: float | None = None
    error: float | None = None
    nodes: int = 0
    note: str = ""


@dataclass(frozen=True)
class Calibrated:
    """`inner` calls of the workload take about a tenth of a second."""

    inner: int


@dataclass(frozen=True)
class WorkerSample:
    """A sample: `wall` seconds by the clock and `cpu` seconds of this process's CPU time for `inner` calls.

    `busy`: CPU seconds that the whole machine was busy meanwhile; `cpus`: the machine's CPUs; `traces`: how often
    TensorFlow has traced the function so far (more than once: part of the time was Python's); `faults`: page faults;
    `throttled`: periods in which the cgroup's quota stopped the container; `rss`: MiB afterwards.
    """

    wall: float
    cpu: float
    busy: float
    cpus: int
    traces: int
    faults: int
    throttled: int
    rss: float


@dataclass(frozen=True)
class Peak:
    """A workload ran twice. `items` a call; `peak`: the process's largest memory so far in MiB; `limit`: MiB available.

    `reason`: why it did not run.
    """

    items: int
    peak: float
    limit: float
    reason: str = ""


@dataclass(frozen=True)
class Idle:
    """`share`: CPUs that the process used while it should have been idle."""

    share: float


@dataclass(frozen=True)
class Dropped:
    """`count` workloads were dropped."""

    count: int


def printable(text: str) -> str:
    """Return the text as one line that the host accepts."""
    return "".join(letter if letter.isprintable() else " " for letter in text)[:300]
