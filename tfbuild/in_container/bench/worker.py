"""Answer the host's questions, each one line of JSON: {"ask": "prepare", ...}, "calibrate", "sample", "idle" ..."""

from __future__ import annotations

import gc
import json
import math
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

from ..smoke.probes import allocator
from ..smoke.records import open_channel, send
from . import validity
from .records import Calibrated, Dropped, Hello, Idle, Peak, Ready, WorkerSample, printable
from .validity import Unfit

SAMPLE_SECONDS = 0.12


def main(arguments: list[str]) -> int:
    """Run the loop. `arguments`: environment variables to unset, since an engine can only set them to ""."""
    for name in arguments:
        os.environ.pop(name, None)
    channel = open_channel()
    from . import workloads

    handler = QuestionHandler(workloads.registered())
    hello = Hello(malloc=allocator())
    for line in sys.stdin:
        question = json.loads(line)
        ask = question.pop("ask")
        send(channel, hello if ask == "hello" else getattr(handler, ask)(**question))
    return 0


class QuestionHandler:
    """This process's workloads by the host's key. Each public method answers one question."""

    def __init__(self, known: dict[str, Callable[..., Any]]) -> None:
        self.known = known
        self.warm: dict[str, Any] = {}

    def prepare(self, key: str, workload: str, params: dict[str, Any]) -> Ready:
        """Build and warm up a workload. An operation that this release lacks becomes the `reason`."""
        if workload not in self.known:
            return Ready(reason=printable("no workload is called " + workload))
        begin = time.perf_counter()
        try:
            work = self.known[workload](**params)
            build = time.perf_counter() - begin
            ready = self.warm_up(work, build)
        except Exception as error:  # of TensorFlow, NumPy or Python
            return Ready(reason=cause(error))
        self.warm[key] = work
        return ready

    def warm_up(self, work: Any, build: float) -> Ready:
        begin = time.perf_counter()
        work.call()
        first = time.perf_counter() - begin
        guard = validity.folded(work)
        calls = 0 if guard else validity.warm_up(work)
        value = work.value()
        return Ready(
            guard=guard,
            build=build,
            first=first,
            calls=calls,
            items=work.items,
            # NaN cannot be compared, and JSON has none.
            value=value if value is not None and abs(value) < 1e12 else None,
            error=work.error,
            nodes=work.nodes(),
            note=work.note,
        )

    def calibrate(self, key: str) -> Calibrated:
        return Calibrated(inner=calibrate(self.warm[key]))

    def sample(self, key: str, inner: int) -> WorkerSample:
        return sample(self.warm[key], inner)

    def idle(self, key: str) -> Idle:
        """Run one sample of `key`, then measure: work that goes on behind it would be timed with the other arms."""
        self.warm[key].sample(1)
        return Idle(share=validity.idle_share())

    def once(self, workload: str, params: dict[str, Any]) -> Peak:
        """Build a workload and call it twice, untimed, to see its memory or a library's log of what it runs."""
        items, reason = 0, ""
        try:
            work = self.known[workload](**params)
            items = work.items
            work.call()
            work.call()
            del work
        except Exception as error:  # of TensorFlow, NumPy or Python
            reason = cause(error)
        gc.collect()
        return Peak(items=items, peak=validity.peak(), limit=validity.memory(), reason=reason)

    def drop(self) -> Dropped:
        count = len(self.warm)
        self.warm.clear()
        gc.collect()
        return Dropped(count=count)


def cause(error: Exception) -> str:
    """Return an error as one line. TensorFlow's message stands between its place in the graph and the node."""
    if isinstance(error, Unfit):
        return printable(str(error))
    lines = [line.strip() for line in str(error).split("[[")[0].splitlines() if line.strip()]
    return printable("{}: {}".format(type(error).__name__, lines[-1] if lines else ""))


def calibrate(workload: Any) -> int:
    """Return the number of calls that take about SAMPLE_SECONDS."""
    inner = 1
    while True:
        wall: float = max(workload.sample(inner)[0], 1e-6)
        if wall >= SAMPLE_SECONDS / 2:
            return math.ceil(inner * SAMPLE_SECONDS / wall)
        inner = int(inner * min(10.0, SAMPLE_SECONDS / wall))


def sample(workload: Any, inner: int) -> WorkerSample:
    """Time `inner` calls, and record what else happened meanwhile."""
    throttled, before, faulted = validity.throttled(), validity.busy_seconds(), faults()
    begin = time.perf_counter(), time.process_time()
    wall, cpu = workload.sample(inner)
    whole = time.perf_counter() - begin[0], time.process_time() - begin[1]
    return WorkerSample(
        wall=wall,
        cpu=cpu,
        busy=validity.busy_while_timed(validity.busy_seconds() - before, whole, (wall, cpu)),
        cpus=os.cpu_count() or 1,
        traces=workload.traces(),
        faults=faults() - faulted,
        throttled=validity.throttled() - throttled,
        rss=validity.rss(),
    )


def faults() -> int:
    """Return this process's page faults so far that needed no disk access."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
