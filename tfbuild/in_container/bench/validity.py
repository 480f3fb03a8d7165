"""Check for mistakes that have falsified results before: folded constants, a cold start, background work while idle.

The rest reads what memory this process uses, and how often its quota stopped it.

Retracing is counted with each sample (records.py: WorkerSample.traces); the host refuses more than one trace.
"""

from __future__ import annotations

import os
import statistics
import time
from typing import Any

FEWEST_CALLS = 6
MOST_CALLS = 60
MOST_SECONDS = 10.0
# Times are steady once the median of three calls is at least this share of the median of the three before.
STEADY = 0.8
IDLE_SECONDS = 0.15
# OpenMP's threads spin for 200 ms after their work (KMP_BLOCKTIME's default), which is not the workload's fault.
SPIN_SECONDS = 0.5
MOST_IDLE = 0.2
# Operations worth timing. If all inputs of one are constants, the optimiser computes it once, before the first sample.
COSTLY = (
    *("MatMul", "BatchMatMulV2", "Conv2D", "DepthwiseConv2dNative", "Exp", "Tanh", "Sum", "Mean", "Einsum"),
    *("Erf", "Log", "Max", "Softmax", "Cumsum", "ArgMax", "FusedBatchNormV3", "BlockLSTM", "ResizeBilinear"),
)
# An operation on fewer numbers is not costly.
FEW = 1024


class Unfit(Exception):
    """A workload cannot run here; the message is the reason that the report shows."""


def warm_up(workload: Any) -> int:
    """Call the workload until its times are steady; return the number of calls."""
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
    """Name the costly operations that depend on no input, which the optimiser would compute only once; "" if none."""
    graph = workload.graph()
    if graph is None:
        return ""
    fed = _fed(graph)
    constant = sorted({op.type for op in graph.get_operations() if costly(op) and op.name not in fed})
    return "constant folding: {} (depending on no input)".format(", ".join(constant)) if constant else ""


def costly(op: Any) -> bool:
    """Whether folding the operation would save time. The maximum of a few constants, as in Keras' LSTM, is cheap."""
    if op.type not in COSTLY:
        return False
    counts = [tensor.shape.num_elements() for tensor in op.inputs]
    return any(count is None or count >= FEW for count in counts)


def _fed(graph: Any) -> set[str]:
    """Return the names of the operations that depend on an argument or a variable."""
    fed: set[str] = set()
    for op in graph.get_operations():  # inputs come first
        if op.type in ("Placeholder", "ReadVariableOp") or any(tensor.op.name in fed for tensor in op.inputs):
            fed.add(op.name)
    return fed


def idle_share() -> float:
    """Return the CPUs in use while the process should be idle; measure again if threads may still be spinning."""
    share = _share()
    if share > MOST_IDLE:
        time.sleep(SPIN_SECONDS)
        share = _share()
    return share


def _share() -> float:
    begin = time.perf_counter(), time.process_time()
    time.sleep(IDLE_SECONDS)
    return (time.process_time() - begin[1]) / (time.perf_counter() - begin[0])


def busy_while_timed(busy: float, whole: tuple[float, float], timed: tuple[float, float]) -> float:
    """Return the CPU seconds that the machine was busy in the `timed` part of a sample, out of `busy` in the `whole`.

    Both parts are (wall, CPU) seconds. What a workload does before its timed part (a pipeline's first batches, dropping
    files from the cache) is not foreign load; the load of others is taken as even over the whole sample.
    """
    others = max(0.0, busy - whole[1])
    return timed[1] + others * min(1.0, timed[0] / whole[0])


def peak() -> float:
    """Return this process's largest resident memory so far, in MiB."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM:")) / 1024


def memory() -> float:
    """Return the MiB that this container may use: the machine's memory, or a lower cgroup limit."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**20
    limit = _of_cgroup("memory.max", "memory/memory.limit_in_bytes").strip()
    return min(whole, int(limit) / 2**20) if limit.isdigit() else whole


def rss() -> float:
    """Return this process's resident memory in MiB."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def busy_seconds(stat: str = "/proc/stat") -> float:
    """Return the machine's busy CPU seconds since boot, by `stat` (in a container: the host's)."""
    with open(stat) as file:
        ticks = [int(field) for field in file.readline().split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


def throttled() -> int:
    """Return the periods in which the cgroup's quota has stopped this container; 0 if unknown."""
    lines = _of_cgroup("cpu.stat", "cpu/cpu.stat").splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("nr_throttled ")), 0)


def _of_cgroup(*names: str) -> str:
    """Return the text of the first of the cgroup's files (version 2, then 1) that can be read; "" if none can."""
    for name in names:
        try:
            with open("/sys/fs/cgroup/" + name) as file:
                return file.read()
        except OSError:
            continue
    return ""
