"""Answers the host's questions, one line of JSON for each: {"ask": "warm", "calibrate" or "sample", ...}."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from typing import Any, Dict, List

from . import channel as channels
from .found import Prepared, Sample

WARM_UP = 6
SECONDS = 0.12


def main(arguments: List[str]) -> int:
    """`arguments`: environment variables that are to be as if never set, since an engine can only empty them."""
    for name in arguments:
        os.environ.pop(name, None)
    channel = channels.open_channel()
    from .workloads import WORKLOADS

    warm: Dict[str, Any] = {}
    for line in sys.stdin:
        question = json.loads(line)
        name = question["workload"]
        if question["ask"] == "warm":
            warm[name] = WORKLOADS[name]()
            channels.send(channel, Prepared(inner=1, first=warm_up(warm[name])))
        elif question["ask"] == "calibrate":
            channels.send(channel, Prepared(inner=calibrate(warm[name]), first=0.0))
        else:
            channels.send(channel, sample(warm[name], question["inner"]))
    return 0


def warm_up(workload: Any) -> float:
    """Seconds of the first call, which traces and compiles; times are steady after about five."""
    begin = time.perf_counter()
    workload.call()
    first = time.perf_counter() - begin
    for _ in range(WARM_UP):
        workload.call()
    return first


def calibrate(workload: Any) -> int:
    """Calls that take about SECONDS."""
    inner = 1
    while True:
        wall = max(workload.sample(inner)[0], 1e-6)
        if wall >= SECONDS / 2:
            return max(1, int(inner * SECONDS / wall + 0.999))
        inner = max(inner + 1, int(inner * min(10.0, SECONDS / wall)))


def sample(workload: Any, inner: int) -> Sample:
    before, faults = busy(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    wall, cpu = workload.sample(inner)
    return Sample(
        wall=wall,
        cpu=cpu,
        busy=busy() - before,
        cpus=os.cpu_count() or 1,
        traces=workload.traces(),
        faults=resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults,
    )


def busy() -> float:
    """CPU seconds since boot that the machine was not idle, by /proc/stat (a container sees its host's)."""
    with open("/proc/stat") as file:
        ticks = [int(field) for field in file.readline().split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")
