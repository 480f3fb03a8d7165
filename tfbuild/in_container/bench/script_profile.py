"""Run a command under the recorder, then read the traces of TensorFlow's profiler.

`python .../in_container/bench --profile SECONDS FOLDER COMMAND...` answers with one record (records.py: Profiled).
"""

from __future__ import annotations

import glob
import importlib.util
import os
import signal
import subprocess
import tempfile
import threading
import time
from typing import Any, Dict, Iterator, List, Optional, Tuple

from ..smoke import channel as channels
from . import recorder, timeline
from .records import Profiled, printable
from .timeline import Shares, TraceEvent, matters

SITE = "/tfbuild-bench/site"
TAIL_BYTES = 8192
TAIL_LINES = 12
# The import takes two seconds on an idle machine; a minute was seen on one with ten other users.
IMPORT_SECONDS = 300.0
POLL_SECONDS = 0.2
# Where releases of TensorFlow have the format of traces.
FORMATS = ("tsl/profiler/protobuf/xplane_pb2.py", "core/profiler/protobuf/xplane_pb2.py")


def main(arguments: List[str]) -> int:
    seconds, folder, command = float(arguments[0]), arguments[1], arguments[2:]
    channel = channels.open_channel()
    traces = tempfile.mkdtemp(prefix="tfbuild-profile-")
    begin = time.monotonic()
    try:
        code, tail = run(command, folder, traces, seconds)
    except OSError as error:
        code, tail = 127, [str(error)]
    took = time.monotonic() - begin
    windows = [] if code else read(traces)
    waits = tuple(window.waiting / window.span for window in windows)
    total = vars(timeline.total(windows))
    lines = tuple(printable(line) for line in tail)
    profile = Profiled(exit_code=code, tail=lines, seconds=took, windows=len(windows), waits=waits, **total)
    channels.send(channel, profile)
    return 0


def run(command: List[str], folder: str, traces: str, seconds: float) -> Tuple[Optional[int], List[str]]:
    """Run the command to its end, or for `seconds` after TensorFlow's import.

    Return its exit code (None if it was stopped) and its last lines.
    """
    paths = [SITE, *filter(None, [os.environ.get("PYTHONPATH")])]
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(paths), PYTHONUNBUFFERED="1", **{recorder.VARIABLE: traces})
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    tail = bytearray()
    reader = threading.Thread(target=keep, args=(process.stdout, tail), daemon=True)
    reader.start()
    code = wait(process, os.path.join(traces, recorder.BEGUN), seconds)
    if code is None:
        # It need not end cleanly: the traces of whole windows are written already.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    reader.join(timeout=5)
    if not reader.is_alive() and process.stdout:
        process.stdout.close()
    lines = [line for line in bytes(tail).decode(errors="replace").splitlines() if line.strip()]
    return code, lines[-TAIL_LINES:]


def wait(process: Any, begun: str, seconds: float) -> Optional[int]:
    """Return the exit code, or None if the process still runs `seconds` after the file `begun` appeared."""
    end = time.monotonic() + max(seconds, IMPORT_SECONDS)
    while time.monotonic() < end:
        try:
            return int(process.wait(timeout=POLL_SECONDS))
        except subprocess.TimeoutExpired:
            if begun and os.path.exists(begun):
                begun, end = "", time.monotonic() + seconds
    return None


def keep(stream: Any, tail: bytearray) -> None:
    """Read a stream to its end, and keep its last bytes in `tail`."""
    for chunk in iter(lambda: stream.read1(1 << 16), b""):
        tail += chunk
        del tail[:-TAIL_BYTES]


def read(traces: str) -> List[Shares]:
    """Return the shares of the process that computed most, window by window.

    The first window is left out if there are others, because functions are traced and compiled in it.
    """
    processes: Dict[str, List[Shares]] = {}
    for whole in sorted(glob.glob(os.path.join(traces, "*", "whole"))):
        window = os.path.dirname(whole)
        shares = [timeline.shares(list(threads(path))) for path in planes(window)]
        processes.setdefault(os.path.basename(window).partition("-")[0], []).extend(shares)
    largest: List[Shares] = max(
        processes.values(), key=lambda windows: sum(window.compute for window in windows), default=[]
    )
    busy = [window for window in largest if window.compute or window.waiting]
    return busy[1:] if len(busy) > 1 else busy


def planes(window: str) -> List[str]:
    return glob.glob(os.path.join(window, "**", "*.xplane.pb"), recursive=True)


def threads(path: str) -> Iterator[Tuple[bool, List[TraceEvent]]]:
    """Yield the events of each thread of the host (False) and of each stream of a device (True)."""
    space = _xspace()
    with open(path, "rb") as file:
        space.ParseFromString(file.read())
    for plane in space.planes:
        device = plane.name.startswith("/device:")
        if not device and not plane.name.startswith("/host:CPU"):
            continue
        names = {key: kind.name for key, kind in plane.event_metadata.items() if device or matters(kind.name)}
        ids = [key for key, kind in plane.stat_metadata.items() if kind.name in ("id", "step_id")]
        for line in plane.lines:
            base = line.timestamp_ns * 1e-9
            yield device, [_event(event, base, names, ids) for event in line.events if event.metadata_id in names]


def _event(event: Any, base: float, names: Dict[int, str], ids: List[int]) -> TraceEvent:
    begin = base + event.offset_ps * 1e-12
    step = next((stat.int64_value or stat.uint64_value for stat in event.stats if stat.metadata_id in ids), 0)
    return TraceEvent(names[event.metadata_id], begin, begin + event.duration_ps * 1e-12, step)


def _xspace() -> Any:
    """Return an empty trace in the profiler's format, from TensorFlow's files but without importing TensorFlow."""
    package = importlib.util.find_spec("tensorflow")
    for root in (package.submodule_search_locations or []) if package else []:
        for part in FORMATS:
            path = os.path.join(root, part)
            if os.path.exists(path):
                spec = importlib.util.spec_from_file_location("xplane_pb2", path)
                if spec is not None and spec.loader is not None:
                    module = importlib.util.module_from_spec(spec)
                    spec.loader.exec_module(module)
                    return module.XSpace()
    raise ImportError("this TensorFlow has no xplane_pb2")
