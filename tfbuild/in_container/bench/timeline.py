"""Turn the events of a trace into the seconds in which a script waited for input, computed, or did neither. Pure.

The event names are those that TensorFlow's own profiler uses (xla/tsl/profiler/utils/xplane_schema.cc).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterable, List, NamedTuple, Sequence, Set, Tuple

Span = Tuple[float, float]

# A step asks its iterator for the next batch, and waits for the input until it gets one.
ASKS = ("IteratorGetNextOp::DoCompute", "IteratorGetNextAsOptionalOp::DoCompute")
# tf.data's own work, which runs in parallel with the steps.
INPUT = ("Iterator::", "InstantiatedCapturedFunction::", "ParallelMapProduce", "PrefetchProduce", "MapAndBatchProduce")
CAPTURED = "InstantiatedCapturedFunction::"
# The operations of a function run inside GRAPH; outside of functions, an operation runs inside EAGER.
GRAPH = "ExecutorState::Process"
EAGER = "EagerKernelExecute"
FUNCTION = "FunctionRun"


class TraceEvent(NamedTuple):
    """`begin` and `end`: seconds since some fixed time; `step`: the run of a function to which it belongs, or 0."""

    name: str
    begin: float
    end: float
    step: int = 0


@dataclass(frozen=True)
class Shares:
    """Seconds of the whole `span`, of `waiting` for input and of `compute`; `asked`: batches asked for."""

    span: float = 0.0
    waiting: float = 0.0
    compute: float = 0.0
    asked: int = 0


def matters(name: str) -> bool:
    """Whether shares() uses events of this name; it ignores most of a trace."""
    return name in (*ASKS, GRAPH, FUNCTION) or name.startswith((EAGER, *INPUT))


def shares(threads: Sequence[Tuple[bool, List[TraceEvent]]]) -> Shares:
    """Sum up the time from the first step to the last. All events on a device's stream (True) belong to steps."""
    captured = {event.step for _, events in threads for event in events if event.name.startswith(CAPTURED)} - {0}
    waits: List[Span] = []
    runs: List[Span] = []
    steps: List[Span] = []
    for device, events in threads:
        if device:
            runs += [(event.begin, event.end) for event in events]
            continue
        own_waits, own_runs, calls = _thread(sorted(events, key=lambda event: (event.begin, -event.end)), captured)
        waits += own_waits
        # An operation computes nothing while it waits on its own thread.
        runs += without(union(own_runs), union(own_waits))
        steps += calls
    # While other operations still run, the script does not wait.
    waiting = without(union(waits), union(runs))
    covered = union([*runs, *steps, *waiting])
    if not covered:
        return Shares()
    return Shares(
        span=covered[-1][1] - covered[0][0],
        waiting=length(waiting),
        compute=length(without(covered, waiting)),
        asked=len(waits),
    )


def _thread(events: Sequence[TraceEvent], captured: Set[int]) -> Tuple[List[Span], List[Span], List[Span]]:
    """Return a thread's waits for input, the operations of its steps, and its calls of functions, whose operations run
    on other threads. `events` are in the order of their begin."""
    waits: List[Span] = []
    runs: List[Span] = []
    calls: List[Span] = []
    outer: List[TraceEvent] = []
    for index, event in enumerate(events):
        while outer and outer[-1].end <= event.begin:
            outer.pop()
        background = event.step in captured or any(around.name.startswith(INPUT) for around in outer)
        outer.append(event)
        if background:
            continue
        if event.name in ASKS:
            waits.append((event.begin, event.end))
        elif event.name.startswith(EAGER) and _calls_function(events, index):
            calls.append((event.begin, event.end))
        elif event.name == GRAPH or event.name.startswith(EAGER):
            runs.append((event.begin, event.end))
    return waits, runs, calls


def _calls_function(events: Sequence[TraceEvent], index: int) -> bool:
    """Whether the event at `index` calls a function."""
    inner = index + 1
    # A slice would copy the rest of the list for each event.
    while inner < len(events) and events[inner].begin < events[index].end:
        if events[inner].name == FUNCTION:
            return True
        inner += 1
    return False


def total(windows: Sequence[Shares]) -> Shares:
    return Shares(
        span=sum(window.span for window in windows),
        waiting=sum(window.waiting for window in windows),
        compute=sum(window.compute for window in windows),
        asked=sum(window.asked for window in windows),
    )


def union(spans: Iterable[Span]) -> List[Span]:
    """Merge spans that overlap or touch; return them in order."""
    joined: List[Span] = []
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        elif end > begin:
            joined.append((begin, end))
    return joined


def without(spans: Sequence[Span], others: Sequence[Span]) -> List[Span]:
    """Return the parts of `spans` that none of `others` covers; both are as union() returns them."""
    rest: List[Span] = []
    index = 0
    for begin, end in spans:
        while index and others[index - 1][1] > begin:
            index -= 1
        while index < len(others) and others[index][0] < end:
            if others[index][1] > begin:
                if others[index][0] > begin:
                    rest.append((begin, others[index][0]))
                begin = max(begin, others[index][1])
            index += 1
        if begin < end:
            rest.append((begin, end))
    return rest


def length(spans: Iterable[Span]) -> float:
    return sum(end - begin for begin, end in spans)
