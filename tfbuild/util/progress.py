"""Show the progress of long work on stderr: one live line per step on a terminal, plain lines elsewhere."""

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TextIO

from tfbuild.errors import fit

if TYPE_CHECKING:
    from rich.console import RenderableType

GOOD_OUTCOMES = ("done", "cached", "pass", "skip")


class Step:
    """A named piece of work; `detail` is what it does at the moment. `outcome` is shown where its block succeeds."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.detail = ""
        self.outcome = "done"
        self.started = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since it started."""
        return time.monotonic() - self.started


class Progress:
    """Reports steps and notes. A note is a call: ``progress("base: no registry answers, using Debian's packages")``."""

    def __init__(self, stream: TextIO | None = None, *, heartbeat: float = 60.0) -> None:
        stream = stream or sys.stderr
        on_terminal = stream.isatty() and os.environ.get("TERM") not in (None, "dumb", "unknown")
        self._display: Plain | Live = Live(stream) if on_terminal else Plain(stream, heartbeat)

    def __call__(self, line: str) -> None:
        self._display.note(line)

    def draw(self) -> None:
        """Draw the terminal now, and from now on only when this is called: a drawing thread disturbs measurements."""
        if isinstance(self._display, Live):
            self._display.draw()

    def start(self, title: str) -> Step:
        """Begin a step; finish() ends it."""
        step = Step(title)
        self._display.began(step)
        return step

    def finish(self, step: Step, outcome: str) -> None:
        """End a step; `outcome`: done, cached, failed or canceled."""
        self._display.ended(step, outcome, duration(step.seconds))

    @contextmanager
    def step(self, title: str) -> Iterator[Step]:
        """Run a block as a step, which has failed where the block raises."""
        step = self.start(title)
        try:
            yield step
        except BaseException as error:
            with suppress(OSError):  # the terminal was closed
                self.finish(step, "interrupted" if isinstance(error, KeyboardInterrupt) else "failed")
            raise
        self.finish(step, step.outcome)


def duration(seconds: float) -> str:
    """Format a duration as "3.4 s", "2 min 05 s" or "1 h 02 min"."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


class Plain:
    """For logs: a line at the start and end of each step, and one per minute while a long step runs."""

    def __init__(self, stream: TextIO, heartbeat: float) -> None:
        self._stream = stream
        self._heartbeat = heartbeat
        self._running: dict[Step, tuple[threading.Event, threading.Thread]] = {}

    def note(self, line: str) -> None:
        self._stream.write(f"{fit(line)}\n")

    def began(self, step: Step) -> None:
        self.note(f"{step.title} ...")
        finished = threading.Event()
        heartbeat = threading.Thread(target=self._beat, args=(step, finished), daemon=True)
        self._running[step] = finished, heartbeat
        heartbeat.start()

    def ended(self, step: Step, outcome: str, took: str) -> None:
        finished, heartbeat = self._running.pop(step)
        finished.set()
        # Otherwise a heartbeat could follow the end of the step.
        heartbeat.join()
        self.note(f"{step.title}: {outcome} ({took})")

    def _beat(self, step: Step, finished: threading.Event) -> None:
        while not finished.wait(self._heartbeat):
            self.note(f"{step.title}: {duration(step.seconds)} so far" + (f", at {step.detail}" if step.detail else ""))


class Live:
    """For terminals: a line with a spinner for each running step, below the finished ones. Rich honours NO_COLOR."""

    def __init__(self, stream: TextIO) -> None:
        # Importing rich takes a twentieth of a second, which commands without progress save.
        from rich.console import Console
        from rich.live import Live as RichLive
        from rich.spinner import Spinner

        self._console = Console(file=stream, highlight=False, emoji=False)
        self._spinner = Spinner("dots")
        self._running: list[Step] = []
        self._live = RichLive(
            console=self._console,
            get_renderable=self._render,
            transient=True,
            refresh_per_second=8,
            # stdout carries data.
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def note(self, line: str) -> None:
        self._console.print(fit(line), markup=False, soft_wrap=True)

    def began(self, step: Step) -> None:
        self._running.append(step)
        self._live.start(refresh=True)

    def ended(self, step: Step, outcome: str, took: str) -> None:
        from rich.text import Text

        self._running.remove(step)
        if not self._running:
            self._live.stop()
        good = outcome in GOOD_OUTCOMES
        mark = Text("✓ " if good else "✗ ", style="green" if good else "red")
        result = Text(f"  {took}" + ("" if outcome == "done" else f" ({outcome})"), style="dim")
        self._console.print(Text.assemble(mark, fit(step.title), result))

    def draw(self) -> None:
        if self._live.auto_refresh:
            self._live.stop()
            self._live.auto_refresh = False  # which starts no thread
            if self._running:
                self._live.start()
        self._live.refresh()

    def _render(self) -> "RenderableType":
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 1), expand=True)
        for ratio in (None, None, None, 1):
            table.add_column(no_wrap=True, overflow="ellipsis", ratio=ratio)
        for step in self._running:
            took = Text(duration(step.seconds), style="cyan")
            table.add_row(self._spinner, Text(fit(step.title)), took, Text(fit(step.detail), style="dim"))
        return table
