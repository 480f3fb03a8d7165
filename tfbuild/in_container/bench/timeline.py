"""Events of a trace -> the seconds in which a script waited for input, computed, or did neither. Pure.

The names are those that TensorFlow's own profiler goes by (xla/tsl/profiler/utils/xplane_schema.cc).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterable, List, NamedTuple, Sequence, Set, Tuple

Span = Tuple[float, float]

# A step asks its iterator for the next batch; what it then waits is the input's doing.
ASKS = ("IteratorGetNextOp::DoCompute", "IteratorGetNextAsOptionalOp::DoCompute")
# tf.data's own work, which goes on beside the steps.
INPUT = ("Iterator::", "InstantiatedCapturedFunction::", "ParallelMapProduce", "PrefetchProduce", "MapAndBatchProduce")
CAPTURED = "InstantiatedCapturedFunction::"
# A function's operations run inside this one; outside of functions an operation runs inside the other.
GRAPH = "ExecutorState::Process"
EAGER = "EagerKernelExecute"
FUNCTION = "FunctionRun"


class Event(NamedTuple):
    """Seconds since some beginning; `step`: the run of a function to which it belongs, or 0."""

    name: str
    begin: float
    end: float
    step: int = 0


@dataclass(frozen=True)
class Shares:
    """Seconds: `span` in all, in which steps were `waiting` for input or `compute` ran; `asked`: batches."""

    span: float = 0.0
    waiting: float = 0.0
    compute: float = 0.0
    asked: int = 0


def matters(name: str) -> bool:
    """True for the events that shares() looks at; most of a trace is others."""
    return name in (*ASKS, GRAPH, FUNCTION) or name.startswith((EAGER, *INPUT))


def shares(threads: Sequence[Tuple[bool, List[Event]]]) -> Shares:
    """What was done with the time from the first step to the last one; a device's streams are all of them steps."""
    captured = {event.step for _, events in threads for event in events if event.name.startswith(CAPTURED)} - {0}
    waits: List[Span] = []
    runs: List[Span] = []
    steps: List[Span] = []
    for device, events in threads:
        if device:
            runs += [(event.begin, event.end) for event in events]
            continue
        mine, running, around = _thread(sorted(events, key=lambda event: (event.begin, -event.end)), captured)
        waits += mine
        # An operation that waits on its own thread computes nothing meanwhile.
        runs += without(union(running), union(mine))
        steps += around
    # Where other operations run on, nobody waits.
    waiting = without(union(waits), union(runs))
    both = union([*runs, *steps, *waiting])
    if not both:
        return Shares()
    return Shares(
        span=both[-1][1] - both[0][0],
        waiting=length(waiting),
        compute=length(without(both, waiting)),
        asked=len(waits),
    )


def _thread(events: Sequence[Event], captured: Set[int]) -> Tuple[List[Span], List[Span], List[Span]]:
    """One thread's waits for input, its steps' operations, and the calls that only wait for a function's operations on
    other threads; out of events in the order of their begin."""
    waits: List[Span] = []
    runs: List[Span] = []
    calls: List[Span] = []
    outer: List[Event] = []
    for place, event in enumerate(events):
        while outer and outer[-1].end <= event.begin:
            outer.pop()
        background = event.step in captured or any(around.name.startswith(INPUT) for around in outer)
        outer.append(event)
        if background:
            continue
        if event.name in ASKS:
            waits.append((event.begin, event.end))
        elif event.name.startswith(EAGER) and _function(events, place):
            calls.append((event.begin, event.end))
        elif event.name == GRAPH or event.name.startswith(EAGER):
            runs.append((event.begin, event.end))
    return waits, runs, calls


def _function(events: Sequence[Event], place: int) -> bool:
    """True where the event at `place` runs a function."""
    inner = place + 1
    # A slice would copy all that follows, for each event once more.
    while inner < len(events) and events[inner].begin < events[place].end:
        if events[inner].name == FUNCTION:
            return True
        inner += 1
    return False


def total(found: Iterable[Shares]) -> Shares:
    listed = list(found)
    return Shares(
        span=sum(each.span for each in listed),
        waiting=sum(each.waiting for each in listed),
        compute=sum(each.compute for each in listed),
        asked=sum(each.asked for each in listed),
    )


def union(spans: Iterable[Span]) -> List[Span]:
    """The same time in spans that do not touch, in order."""
    joined: List[Span] = []
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        elif end > begin:
            joined.append((begin, end))
    return joined


def without(spans: Sequence[Span], others: Sequence[Span]) -> List[Span]:
    """What of `spans` is in none of `others`; both as union() gives them."""
    left: List[Span] = []
    place = 0
    for begin, end in spans:
        while place and others[place - 1][1] > begin:
            place -= 1
        while place < len(others) and others[place][0] < end:
            if others[place][1] > begin:
                if others[place][0] > begin:
                    left.append((begin, others[place][0]))
                begin = max(begin, others[place][1])
            place += 1
        if begin < end:
            left.append((begin, end))
    return left


def length(spans: Iterable[Span]) -> float:
    return sum(end - begin for begin, end in spans)
