"""Answer the host's questions, each one line of JSON: {"ask": "prepare", ...}, "calibrate", "sample", "idle" ...

Beside the answers, this has checks for mistakes that have falsified results before (folded constants, a cold start,
background work while idle), and readings of what this process uses. Retracing is counted with each sample
(WorkerSample.traces); the host refuses more than one trace.
"""

import ctypes
import gc
import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from ..smoke.probes import Unfit, allocator, memory, numa_nodes, of_cgroup, open_channel, send, used
from ..smoke.references import MOST_VALUE, usable

SAMPLE_SECONDS = 0.12
FEWEST_CALLS = 6
PR_SET_PDEATHSIG = 1
MOST_CALLS = 60
MOST_SECONDS = 10.0
# Times are steady once the median of three calls is at least this share of the median of the three before.
STEADY_RATIO = 0.8
IDLE_SECONDS = 0.15
# OpenMP's threads spin for 200 ms after their work (KMP_BLOCKTIME's default), which is not the workload's fault.
SPIN_SECONDS = 0.5
# The largest share of a CPU that a workload may use while idle, here and for the host.
MOST_IDLE = 0.2
# Operations worth timing. If all inputs of one are constants, the optimiser computes it once, before the first sample.
COSTLY_OPS = (
    *("MatMul", "BatchMatMulV2", "Conv2D", "DepthwiseConv2dNative", "Exp", "Tanh", "Sum", "Mean", "Einsum"),
    *("Erf", "Log", "Max", "Softmax", "Cumsum", "ArgMax", "FusedBatchNormV3", "BlockLSTM", "ResizeBilinear"),
)
# An operation on fewer numbers is not costly.
FEW = 1024


# --- answers: one line of JSON each, which the host checks against these types ----------------------------------------


@dataclass(frozen=True)
class Hello:
    """The worker has imported TensorFlow. `malloc`: the file that holds malloc; `huge`: MiB of reserved huge pages."""

    malloc: str
    huge: float


@dataclass(frozen=True)
class Ready:
    """A workload is built and warm; or `reason` says why it cannot run here, or `guard` what would fake its result.

    `build`: seconds until it could be called; `first`: seconds of its first call, which traces and compiles; `items`:
    units of work in a call; `value`: its result, to compare with the other arms'; `error`: relative error against a
    reference; `nodes`: of its graph; `note`: what else the reader must know.
    """

    reason: str = ""
    guard: str = ""
    build: float = 0.0
    first: float = 0.0
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

    `busy`: seconds that the CPUs which it may use, so many `cpus`, were busy meanwhile; `traces`: how often
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


# --- the loop --------------------------------------------------------------------------------------------------------


def main(arguments: list[str]) -> int:
    """Run the loop. `arguments`: the arm's place, of which "node" means to stay on one NUMA node, whose memory is then
    used; and environment variables to unset, since an engine can only set them to ""."""
    if arguments.pop(0) == "node":
        os.sched_setaffinity(0, numa_nodes()[0])
    for name in arguments:
        os.environ.pop(name, None)
    # End with the parent, since a paused worker would stay for ever: with the thread that started this (Pool.start, in
    # the main one). In a container the parent is an init, or none.
    if os.getppid():
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    channel = open_channel()
    from . import workloads

    handler = QuestionHandler(workloads.registered())
    hello = Hello(malloc=allocator(), huge=used("HugetlbPages"))
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
        begin = time.perf_counter()
        try:
            work = self.known[workload](**params)
            built = time.perf_counter()
            work.call()
            first = time.perf_counter() - built
            if not (guard := folded(work)):
                warm_up(work)
            value = work.value()
            ready = Ready(
                guard=guard,
                build=built - begin,
                first=first,
                items=work.items,
                # JSON has no NaN: the limit stands for it, and differs from any ordinary result.
                value=value if value is None or usable(value) else MOST_VALUE,
                error=work.error if work.error is None or usable(work.error) else MOST_VALUE,
                nodes=work.nodes(),
                note=work.note,
            )
        except Exception as error:  # of TensorFlow, NumPy or Python
            return Ready(reason=cause(error))
        self.warm[key] = work
        return ready

    def calibrate(self, key: str) -> Calibrated:
        return Calibrated(inner=calibrate(self.warm[key]))

    def sample(self, key: str, inner: int) -> WorkerSample:
        """Time `inner` calls, and record what else happened meanwhile."""
        workload = self.warm[key]
        stopped, before = throttled(), busy_seconds()
        begin = time.perf_counter(), time.process_time()
        wall, cpu, faults = workload.sample(inner)
        whole = time.perf_counter() - begin[0], time.process_time() - begin[1]
        return WorkerSample(
            wall=wall,
            cpu=cpu,
            busy=busy_while_timed(busy_seconds() - before, whole, (wall, cpu)),
            cpus=len(os.sched_getaffinity(0)),
            traces=workload.traces(),
            faults=faults,
            throttled=throttled() - stopped,
            rss=used("VmRSS", "HugetlbPages"),
        )

    def idle(self, key: str) -> Idle:
        """Run one sample of `key`, then measure: work that goes on behind it would be timed with the other arms."""
        self.warm[key].sample(1)
        return Idle(share=idle_share())

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
        return Peak(items=items, peak=used("VmHWM"), limit=memory(), reason=reason)

    def drop(self) -> Dropped:
        count = len(self.warm)
        self.warm.clear()
        gc.collect()
        return Dropped(count=count)


def cause(error: Exception) -> str:
    """Return an error as one line. TensorFlow's message stands between its place in the graph and the node."""
    lines = [line.strip() for line in str(error).split("[[")[0].splitlines() if line.strip()]
    text = str(error) if isinstance(error, Unfit) else f"{type(error).__name__}: {lines[-1] if lines else ''}"
    return "".join(letter if letter.isprintable() else " " for letter in text)[:300]


def calibrate(workload: Any) -> int:
    """Return the number of calls that take about SAMPLE_SECONDS."""
    inner = 1
    while True:
        wall: float = max(workload.sample(inner)[0], 1e-6)
        if wall >= SAMPLE_SECONDS / 2:
            return math.ceil(inner * SAMPLE_SECONDS / wall)
        inner = int(inner * min(10.0, SAMPLE_SECONDS / wall))


# --- checks and readings ---------------------------------------------------------------------------------------------


def warm_up(workload: Any) -> None:
    """Call the workload until its times are steady."""
    times: list[float] = []
    begin = time.perf_counter()
    while len(times) < MOST_CALLS and time.perf_counter() - begin < MOST_SECONDS:
        start = time.perf_counter()
        workload.call()
        times.append(time.perf_counter() - start)
        if len(times) >= FEWEST_CALLS and median(times[-3:]) >= STEADY_RATIO * median(times[-6:-3]):
            return


def folded(workload: Any) -> str:
    """Name the costly operations that depend on no input, which the optimiser would compute only once; "" if none."""
    graph = workload.graph()
    if graph is None:
        return ""
    fed: set[str] = set()  # those that depend on an argument or a variable
    constant: set[str] = set()
    for op in graph.get_operations():  # inputs come first
        if op.type in ("Placeholder", "ReadVariableOp") or any(tensor.op.name in fed for tensor in op.inputs):
            fed.add(op.name)
        elif costly(op):
            constant.add(op.type)
    return "constant folding: {} (depending on no input)".format(", ".join(sorted(constant))) if constant else ""


def costly(op: Any) -> bool:
    """Whether folding the operation would save time. The maximum of a few constants, as in Keras' LSTM, is cheap."""
    if op.type not in COSTLY_OPS:
        return False
    counts = [tensor.shape.num_elements() for tensor in op.inputs]
    return any(count is None or count >= FEW for count in counts)


def idle_share() -> float:
    """Return the CPUs in use while the process should be idle; measure again if threads may still be spinning."""
    for pause in (0.0, SPIN_SECONDS):
        time.sleep(pause)
        begin = time.perf_counter(), time.process_time()
        time.sleep(IDLE_SECONDS)
        share = (time.process_time() - begin[1]) / (time.perf_counter() - begin[0])
        if share <= MOST_IDLE:
            break
    return share


def busy_while_timed(busy: float, whole: tuple[float, float], timed: tuple[float, float]) -> float:
    """Return the CPU seconds that the CPUs were busy in the `timed` part of a sample, out of `busy` in the `whole`.

    Both parts are (wall, CPU) seconds. What a workload does before its timed part (a pipeline's first batches, dropping
    files from the cache) is not foreign load; the load of others is taken as even over the whole sample.
    """
    others = max(0.0, busy - whole[1])
    return timed[1] + others * min(1.0, timed[0] / whole[0])


def busy_seconds() -> float:
    """Return the busy CPU seconds since boot of the CPUs that this process may use (of all, where they are not listed).

    A load on others takes nothing from it, and one on its own must not be lost in a large machine's total.
    """
    with open("/proc/stat") as file:
        rows = [line.split() for line in file if line.startswith("cpu")]
    own = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    # All but idle and waiting for disks, the fourth and fifth; guests, at the end, are in the first two already.
    ticks = (sum(map(int, (*row[1:4], *row[6:9]))) for row in [row for row in rows if row[0] in own] or rows[:1])
    return sum(ticks) / os.sysconf("SC_CLK_TCK")


def throttled() -> int:
    """Return the periods in which the cgroup's quota has stopped this process; 0 if unknown."""
    lines = "\n".join(of_cgroup("cpu.stat", "cpu/cpu.stat")).splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("nr_throttled "))
