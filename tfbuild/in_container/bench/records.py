"""What a worker answers. Each record is one line of JSON; the host checks it against these types first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Tuple


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
class Calibrated:
    """So many calls of a workload take about a tenth of a second."""

    inner: int


@dataclass(frozen=True)
class Taken:
    """A sample: seconds by the clock and of this process's CPU time for `inner` calls.

    `busy`: CPU seconds that the whole machine was busy meanwhile, `cpus`: its CPUs; `traces`: times that TensorFlow has
    traced the function so far (more than one: what was timed is partly Python); page `faults`; `throttled`: periods in
    which the cgroup's quota stopped it; `rss`: MiB after it.
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
class Busy:
    """Percent of the time in which GPUs ran kernels (gpus.py), or the `reason` why nobody can tell."""

    percent: float = 0.0
    reason: str = ""


@dataclass(frozen=True)
class Dropped:
    """So many workloads are forgotten."""

    count: int


@dataclass(frozen=True)
class Profiled:
    """A command that was watched (profiled.py) for `seconds`: its `exit_code` (None: it was stopped), its last lines.

    `span` seconds of it, out of so many `windows`, are known: the part in which steps were `waiting` for input, and in
    which their operations `compute`d; `asked`: how often an iterator was asked for a batch; `waits`: what part of each
    window was waiting.
    """

    exit_code: Optional[int]
    tail: Tuple[str, ...]
    seconds: float
    windows: int
    span: float
    waiting: float
    compute: float
    asked: int
    waits: Tuple[float, ...] = ()


def printable(text: str) -> str:
    """One line that the host accepts."""
    return "".join(letter if letter.isprintable() else " " for letter in text)[:300]
