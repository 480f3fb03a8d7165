"""Profile a user's script: `python .../in_container/bench --profile SECONDS FOLDER COMMAND...` answers with Profiled.

Names of events are those of TensorFlow's own profiler (xla/tsl/profiler/utils/xplane_schema.cc).
"""

from __future__ import annotations

import glob
import os
import subprocess
import tempfile
import time
from typing import Any, Iterator, List, Optional, Sequence, Set, Tuple

from ..smoke.records import open_channel, send
from .records import Profiled, Window, printable
from .site.sitecustomize import COMPLETE, VARIABLE

Event = Tuple[str, float, float, int]  # name, begin, end, and the run of a function to which it belongs, or 0
Thread = Tuple[bool, List[Event]]  # whether it is a stream of a device
SITE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "site")
TAIL_BYTES, TAIL_LINES = 8192, 12
# A step asks its iterator for a batch, and waits for the input until it gets one.
ASKS = ("IteratorGetNextOp::DoCompute", "IteratorGetNextAsOptionalOp::DoCompute")
# tf.data's own work, which runs in parallel with the steps; functions that it calls run on any thread.
CAPTURED = "InstantiatedCapturedFunction::"
INPUT = (CAPTURED, "Iterator::", "ParallelMapProduce", "PrefetchProduce", "MapAndBatchProduce")
# Operations of a function run inside GRAPH on any thread. EAGER is another operation, or the call of a function.
GRAPH, EAGER = "ExecutorState::Process", "EagerKernelExecute"


def main(arguments: List[str]) -> int:
    channel, traces, begin = open_channel(), tempfile.mkdtemp(prefix="tfbuild-profile-"), time.monotonic()
    code, tail = run(arguments[2:], arguments[1], traces, float(arguments[0]))
    seconds = time.monotonic() - begin
    send(channel, Profiled(code, tuple(map(printable, tail)), seconds, () if code else tuple(read_windows(traces))))
    return 0


def run(command: List[str], folder: str, traces: str, seconds: float) -> Tuple[Optional[int], List[str]]:
    """Run the command to its end, or for so many seconds; return its exit code (None: stopped) and last lines."""
    paths = os.pathsep.join([SITE, *filter(None, [os.environ.get("PYTHONPATH")])])
    own = {"PYTHONPATH": paths, "PYTHONUNBUFFERED": "1", VARIABLE: traces}
    with tempfile.TemporaryFile() as output:
        pipes: Any = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
        code: Optional[int] = None
        try:
            code = subprocess.run(command, cwd=folder, env={**os.environ, **own}, timeout=seconds, **pipes).returncode
        except subprocess.TimeoutExpired:
            pass
        except OSError as error:
            return 127, [str(error)]
        output.seek(max(0, os.fstat(output.fileno()).st_size - TAIL_BYTES))
        lines = [line for line in output.read().decode(errors="replace").splitlines() if line.strip()]
    return code, lines[-TAIL_LINES:]


def read_windows(traces: str) -> List[Window]:
    """Return the complete windows in which steps ran; a process's first one, which traces and compiles, if no other."""
    marks = sorted(glob.glob(os.path.join(traces, "*", "*", COMPLETE)))
    windows = {os.path.dirname(mark): divide(list(threads(os.path.dirname(mark)))) for mark in marks}
    busy = {folder: window for folder, window in windows.items() if window.compute or window.waiting}
    return [window for folder, window in busy.items() if os.path.basename(folder) != "0"] or list(busy.values())


def threads(folder: str) -> Iterator[Thread]:
    """Yield the events of each thread of the host and of each stream of a device, from the trace in a folder."""
    try:
        from tensorflow.tsl.profiler.protobuf.xplane_pb2 import XSpace
    except ImportError:  # before 2.12
        from tensorflow.core.profiler.protobuf.xplane_pb2 import XSpace
    for path in glob.glob(os.path.join(folder, "**", "*.xplane.pb"), recursive=True):
        with open(path, "rb") as file:
            planes = XSpace.FromString(file.read()).planes
        for plane in planes:
            device = plane.name.startswith("/device:")
            known = "" if device else (*ASKS, *INPUT, GRAPH, EAGER) if plane.name.startswith("/host:CPU") else ()
            names = {key: kind.name for key, kind in plane.event_metadata.items() if kind.name.startswith(known)}
            ids = {key for key, kind in plane.stat_metadata.items() if kind.name in ("id", "step_id")}
            for line in plane.lines:
                yield device, [_event(event, line, names, ids) for event in line.events if event.metadata_id in names]


def _event(event: Any, line: Any, names: Any, ids: Set[int]) -> Event:
    begin = line.timestamp_ns * 1e-9 + event.offset_ps * 1e-12
    step = next((stat.int64_value or stat.uint64_value for stat in event.stats if stat.metadata_id in ids), 0)
    return names[event.metadata_id], begin, begin + event.duration_ps * 1e-12, step


def divide(threads: Sequence[Thread]) -> Window:
    """Divide the time from the first step to the last. All events on a device's stream belong to steps."""
    captured = {step for _, events in threads for name, _, _, step in events if name.startswith(CAPTURED)} - {0}
    changes: List[Tuple[float, str, int]] = []
    for device, events in threads:
        own = (("gpu", 1, begin, end) for _, begin, end, _ in events) if device else _host(events, captured)
        for kind, by, begin, end in own:
            changes += [(begin, kind, by), (end, kind, -by)]
    changes.sort()
    now = dict.fromkeys(("gpu", "operation", "wait", "call"), 0)
    spent = dict.fromkeys(("gpu", "compute", "waiting"), 0.0)
    before = 0.0
    for at, kind, by in changes:
        # While other operations still run, the script does not wait.
        computes = now["gpu"] or now["operation"] or (now["call"] and not now["wait"])
        spent["gpu"] += (at - before) * bool(now["gpu"])
        spent["compute"] += (at - before) * bool(computes)
        spent["waiting"] += (at - before) * bool(now["wait"] and not computes)
        now[kind] += by
        before = at
    asked = sum(kind == "wait" and by > 0 for _, kind, by in changes)
    return Window(span=changes[-1][0] - changes[0][0] if changes else 0.0, asked=asked, **spent)


def _host(events: List[Event], captured: Set[int]) -> Iterator[Tuple[str, int, float, float]]:
    """Yield what a thread does for steps, as (kind, 1, begin, end); -1 takes back an operation, because it waits."""
    input_end = operation_end = float("-inf")
    for name, begin, end, step in sorted(events, key=lambda event: (event[1], -event[2])):
        if begin < input_end or step in captured:
            continue
        if name.startswith(INPUT):
            input_end = end
        elif name.startswith(ASKS):
            yield "wait", 1, begin, end
            if begin < operation_end:
                yield "operation", -1, begin, end
        elif not name.startswith(GRAPH):
            yield "call", 1, begin, end
        elif begin >= operation_end:
            operation_end = end
            yield "operation", 1, begin, end
