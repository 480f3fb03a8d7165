"""Against the mistakes that each faked a result once: folded constants, a cold start, work that goes on in idleness.

Retracing is counted with each sample (records.py: Taken.traces); the host refuses more than one.
"""

from __future__ import annotations

import os
import statistics
import time
from typing import Any

FEWEST_CALLS = 6
MOST_CALLS = 60
MOST_SECONDS = 10.0
# Three calls no more than this much faster than the three before: it does not get faster any more.
STEADY = 0.8
IDLE_SECONDS = 0.15
# OpenMP's threads spin for 200 ms after their work (KMP_BLOCKTIME's default), which is none of a workload's fault.
SPIN_SECONDS = 0.5
MOST_IDLE = 0.2
# What is worth timing; where all its inputs are constants, the optimiser computes it once, before the first sample.
COSTLY = (
    *("MatMul", "BatchMatMulV2", "Conv2D", "DepthwiseConv2dNative", "Exp", "Tanh", "Sum", "Mean", "Einsum"),
    *("Erf", "Log", "Max", "Softmax", "Cumsum", "ArgMax", "FusedBatchNormV3", "BlockLSTM", "ResizeBilinear"),
)
# Numbers that a costly operation gets at the least.
FEW = 1024


class Unfit(Exception):
    """A workload cannot run here, for a reason that the reader gets."""


def warm_up(workload: Any) -> int:
    """Calls it until its times are steady; how many that took."""
    times: list[float] = []
    begin = time.perf_counter()
    while len(times) < MOST_CALLS and time.perf_counter() - begin < MOST_SECONDS:
        start = time.perf_counter()
        workload.call()
        times.append(time.perf_counter() - start)
        if len(times) >= FEWEST_CALLS and steady(times):
            break
    return len(times)


def steady(times: list[float]) -> bool:
    return statistics.median(times[-3:]) >= STEADY * statistics.median(times[-6:-3])


def folded(workload: Any) -> str:
    """What of a traced workload depends on no input, so that the optimiser would compute it but once; or nothing."""
    graph = workload.graph()
    if graph is None:
        return ""
    fed = _fed(graph)
    idle = sorted({op.type for op in graph.get_operations() if costly(op) and op.name not in fed})
    return "constant folding: {} with no input in it".format(", ".join(idle)) if idle else ""


def costly(op: Any) -> bool:
    """Keras' LSTM takes the largest of a few constants: nobody's time is saved by folding that."""
    if op.type not in COSTLY:
        return False
    counts = [tensor.shape.num_elements() for tensor in op.inputs]
    return any(count is None or count >= FEW for count in counts)


def _fed(graph: Any) -> set[str]:
    """Names of the operations that an argument or a variable reaches; what has a state counts as one."""
    fed: set[str] = set()
    for op in graph.get_operations():  # inputs come first
        if op.type in ("Placeholder", "ReadVariableOp") or any(tensor.op.name in fed for tensor in op.inputs):
            fed.add(op.name)
    return fed


def idle_share() -> float:
    """CPUs in use while nothing is asked for; measured again where threads may only have been spinning down."""
    time.sleep(0.05)
    share = _share()
    if share > MOST_IDLE:
        time.sleep(SPIN_SECONDS)
        share = _share()
    return share


def _share() -> float:
    begin = time.perf_counter(), time.process_time()
    time.sleep(IDLE_SECONDS)
    return (time.process_time() - begin[1]) / (time.perf_counter() - begin[0])


def beside(busy: float, whole: tuple[float, float], timed: tuple[float, float]) -> float:
    """CPU seconds that the machine was busy in the timed part of a sample, out of those in the `whole` of it.

    Both as (wall, CPU) seconds: what a workload does itself before its time begins (a pipeline's first batches, files
    that are forgotten) is nobody else's load, and that of others lies evenly over all of it.
    """
    others = max(0.0, busy - whole[1])
    return timed[1] + others * min(1.0, timed[0] / whole[0])


def peak() -> float:
    """MiB that this process had in memory at most."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM:")) / 1024


def memory() -> float:
    """MiB that this container may use: the machine's, or the cgroup's limit (version 2, then 1) where that is less."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**20
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(path) as file:
                limit = file.read().strip()
        except OSError:
            continue
        return min(whole, int(limit) / 2**20) if limit.isdigit() else whole
    return whole


def rss() -> float:
    """MiB of this process in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def throttled() -> int:
    """Periods so far in which the cgroup's quota stopped this container (version 2, then 1); 0 where nobody counts."""
    for path in ("/sys/fs/cgroup/cpu.stat", "/sys/fs/cgroup/cpu/cpu.stat"):
        try:
            with open(path) as file:
                return next((int(line.split()[1]) for line in file if line.startswith("nr_throttled ")), 0)
        except OSError:
            continue
    return 0
