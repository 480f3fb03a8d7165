"""What a worker answers. Each record is one line of JSON; the host checks it against these types first."""

from __future__ import annotations

from dataclasses import dataclass

from ..smoke.found import Sample


@dataclass(frozen=True)
class Hello:
    """The worker has TensorFlow; `malloc`: the file whose mapping holds malloc; `gpus`: that TensorFlow sees."""

    tensorflow: str
    malloc: str
    gpus: int


@dataclass(frozen=True)
class Ready:
    """A workload is built and warm, or `reason` says why it cannot run here, or `guard` what would fake its result.

    `build`: seconds until it could be called; `first`: of its first call, which traces and compiles; `calls`: until its
    times were steady; `items`: units of work in a call; `value`: what it computes, for a comparison with the others;
    `error`: against a reference, relative; `nodes`: of its graph; `note`: what else the reader must know.
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
class Taken(Sample):
    """A sample with `rss` (MiB) after it, and the periods in which the cgroup's quota `throttled` it."""

    throttled: int
    rss: float


@dataclass(frozen=True)
class Peak:
    """A workload ran twice: `items` a call, MiB that the process had at most until now (`peak`) and may have (`limit`).

    `reason`: why it did not run.
    """

    items: int
    peak: float
    limit: float
    reason: str = ""


@dataclass(frozen=True)
class Idle:
    """`share`: CPUs that the process used while it was asked to do nothing."""

    share: float


@dataclass(frozen=True)
class Dropped:
    """So many workloads are forgotten."""

    count: int
