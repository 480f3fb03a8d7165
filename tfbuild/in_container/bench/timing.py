"""Take one sample of a workload, and find out how many calls a sample needs."""

from __future__ import annotations

import os
import resource
import time
from typing import Any

from . import validity
from .records import WorkerSample

SECONDS = 0.12


def calibrate(workload: Any) -> int:
    """Return the number of calls that take about SECONDS."""
    inner = 1
    while True:
        wall = max(workload.sample(inner)[0], 1e-6)
        if wall >= SECONDS / 2:
            return max(1, int(inner * SECONDS / wall + 0.999))
        inner = max(inner + 1, int(inner * min(10.0, SECONDS / wall)))


def sample(workload: Any, inner: int) -> WorkerSample:
    throttled, before, faulted = validity.throttled(), busy(), faults()
    begin = time.perf_counter(), time.process_time()
    wall, cpu = workload.sample(inner)
    whole = time.perf_counter() - begin[0], time.process_time() - begin[1]
    return WorkerSample(
        wall=wall,
        cpu=cpu,
        busy=validity.beside(busy() - before, whole, (wall, cpu)),
        cpus=os.cpu_count() or 1,
        traces=workload.traces(),
        faults=faults() - faulted,
        throttled=validity.throttled() - throttled,
        rss=validity.rss(),
    )


def faults() -> int:
    """Return this process's page faults so far that needed no disk access."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def busy() -> float:
    """Return the machine's busy CPU seconds since boot, by /proc/stat (in a container: the host's)."""
    with open("/proc/stat") as file:
        ticks = [int(field) for field in file.readline().split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")
