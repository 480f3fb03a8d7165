"""Answers the host's questions, one line of JSON for each: {"ask": "prepare", "calibrate", "sample", "idle" ...}."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from ..smoke import channel as channels
from ..smoke.probes import EAGER, allocator
from ..smoke.probes import gpus as gpus_of
from . import gpu_utilisation, timing, validity
from .records import Busy, Calibrated, Dropped, Hello, Idle, Peak, Ready, Taken, printable
from .validity import Unfit


def main(arguments: list[str]) -> int:
    """`arguments`: environment variables that are to be as if never set, since an engine can only empty them."""
    os.environ.setdefault(*EAGER)
    for name in arguments:
        os.environ.pop(name, None)
    channel = channels.open_channel()
    import tensorflow as tf

    from . import workloads

    desk = Desk(workloads.registered(), workloads.missing())
    hello = Hello(tensorflow=tf.__version__, malloc=allocator(), gpus=len(gpus_of(tf)))
    for line in sys.stdin:
        question = json.loads(line)
        ask = question.pop("ask")
        channels.send(channel, hello if ask == "hello" else getattr(desk, ask)(**question))
    return 0


class Desk:
    """The workloads of this process, by the host's key; a method a question."""

    def __init__(self, known: dict[str, Callable[..., Any]], missing: str) -> None:
        self.known, self.missing = known, missing
        self.warm: dict[str, Any] = {}

    def prepare(self, key: str, workload: str, params: dict[str, Any]) -> Ready:
        """Builds and warms a workload. Operations come and go between releases: what is not there is a reason."""
        if workload not in self.known:
            return Ready(reason=printable("no workload is called " + workload + self.missing))
        begin = time.perf_counter()
        try:
            made = self.known[workload](**params)
            build = time.perf_counter() - begin
            ready = self.warmed(made, build)
        except Exception as error:  # any: of TensorFlow's, NumPy's or Python's own
            return Ready(reason=cause(error))
        self.warm[key] = made
        return ready

    def warmed(self, made: Any, build: float) -> Ready:
        begin = time.perf_counter()
        made.call()
        first = time.perf_counter() - begin
        guard = validity.folded(made)
        calls = 0 if guard else validity.warm_up(made)
        value = made.value()
        return Ready(
            guard=guard,
            build=build,
            first=first,
            calls=calls,
            items=made.items,
            # Not a number is no number to compare, and none that JSON has.
            value=value if value is not None and abs(value) < 1e12 else None,
            error=made.error(),
            nodes=made.nodes(),
            note=made.note,
        )

    def calibrate(self, key: str) -> Calibrated:
        return Calibrated(inner=timing.calibrate(self.warm[key]))

    def sample(self, key: str, inner: int) -> Taken:
        return timing.sample(self.warm[key], inner)

    def idle(self, key: str) -> Idle:
        """After a sample of `key`: whoever still works in the background would be timed with the others."""
        self.warm[key].sample(1)
        return Idle(share=validity.idle_share())

    def busy(self, key: str) -> Busy:
        made = self.warm[key]
        try:
            return Busy(percent=gpu_utilisation.busy(lambda: made.sample(8)))
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            return Busy(reason=cause(error))

    def once(self, workload: str, params: dict[str, Any]) -> Peak:
        """Builds a workload and calls it twice, untimed: for what it needs, or what a library says that it runs."""
        items, reason = 0, ""
        try:
            made = self.known[workload](**params)
            items = made.items
            made.call()
            made.call()
            del made
        except Exception as error:  # any, as in prepare
            reason = cause(error)
        gc.collect()
        return Peak(items=items, peak=validity.peak(), limit=validity.memory(), reason=reason)

    def drop(self) -> Dropped:
        count = len(self.warm)
        self.warm.clear()
        gc.collect()
        return Dropped(count=count)


def cause(error: Exception) -> str:
    """An error in one line. TensorFlow puts the place in the graph before its message, and the node after it."""
    if isinstance(error, Unfit):
        return printable(str(error))
    lines = [line.strip() for line in str(error).split("[[")[0].splitlines() if line.strip()]
    return printable("{}: {}".format(type(error).__name__, lines[-1] if lines else ""))
