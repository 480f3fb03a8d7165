"""What a long piece of work shows on stderr: a live line a step on a terminal, plain lines elsewhere."""

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    import rich.live
    from rich.console import RenderableType

HEARTBEAT_SECONDS = 60.0
BAR_WIDTH = 20
GOOD = ("done", "cached", "pass", "skip")


class Step:
    """A named piece of work that takes time; `detail` says what it is at just now, `share` (0 to 1) how far it is.

    `outcome` and `failed` are the words for how a block around it ends, the latter where it raises.
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self.detail = ""
        self.share: float | None = None
        self.outcome = "done"
        self.failed = "failed"
        self.started = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since it started."""
        return time.monotonic() - self.started


class Display(Protocol):
    def began(self, step: Step) -> None: ...
    def ended(self, step: Step, outcome: str, took: str) -> None: ...
    def note(self, line: str) -> None: ...


class Progress:
    """Reports steps and notes. A note is a call: ``progress("base: no registry answers, using Debian's packages")``."""

    def __init__(self, stream: TextIO | None = None, *, heartbeat: float = HEARTBEAT_SECONDS) -> None:
        stream = stream or sys.stderr
        on_terminal = stream.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
        self._display: Display = Live(stream) if on_terminal else Plain(stream, heartbeat)

    def __call__(self, line: str) -> None:
        self._display.note(line)

    def start(self, title: str) -> Step:
        """Begins a step; finish() ends it."""
        step = Step(title)
        self._display.began(step)
        return step

    def finish(self, step: Step, outcome: str = "done", seconds: float | None = None) -> None:
        """Ends a step; `outcome` is a word for the reader: done, cached, failed, canceled; "" where a note says it.

        `seconds`: how long it took, where somebody knows better than the time since start().
        """
        self._display.ended(step, outcome, duration(step.seconds if seconds is None else seconds))

    @contextmanager
    def step(self, title: str) -> Iterator[Step]:
        """A step around a block; it has failed where the block raises."""
        step = self.start(title)
        try:
            yield step
        except BaseException as error:
            self.finish(step, "interrupted" if isinstance(error, KeyboardInterrupt) else step.failed)
            raise
        self.finish(step, step.outcome)


def duration(seconds: float) -> str:
    """ "3.4 s", "2 min 05 s", "1 h 02 min"."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


class Plain:
    """For logs: a line at each step's start and end, and one a minute so that nobody takes a long step for a hang."""

    def __init__(self, stream: TextIO, heartbeat: float) -> None:
        self._stream = stream
        self._heartbeat = heartbeat
        self._running: dict[Step, tuple[threading.Event, threading.Thread]] = {}

    def note(self, line: str) -> None:
        self._stream.write(f"{line}\n")
        self._stream.flush()

    def began(self, step: Step) -> None:
        self.note(f"{step.title} ...")
        over = threading.Event()
        beats = threading.Thread(target=self._beat, args=(step, over), daemon=True)
        self._running[step] = over, beats
        beats.start()

    def ended(self, step: Step, outcome: str, took: str) -> None:
        over, beats = self._running.pop(step)
        over.set()
        # Else a sign of life could come behind the step's end.
        beats.join()
        if outcome:
            self.note(f"{step.title}: {outcome} ({took})")

    def _beat(self, step: Step, over: threading.Event) -> None:
        while not over.wait(self._heartbeat):
            self.note(f"{step.title}: {duration(step.seconds)} so far" + (f", at {step.detail}" if step.detail else ""))


class Live:
    """For terminals: a spinner line for each step that runs; finished ones stay above. Rich honours NO_COLOR."""

    def __init__(self, stream: TextIO) -> None:
        # Rich takes a twentieth of a second to import, which commands that show no progress need not pay.
        from rich.console import Console
        from rich.spinner import Spinner

        self._console = Console(file=stream)
        self._spinner = Spinner("dots")
        self._live: rich.live.Live | None = None
        self._running: list[Step] = []

    def note(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def began(self, step: Step) -> None:
        from rich.live import Live as RichLive

        self._running = [*self._running, step]
        if self._live is None:
            # Streams are not redirected: stdout carries data.
            self._live = RichLive(
                console=self._console,
                get_renderable=self._render,
                transient=True,
                refresh_per_second=8,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()

    def ended(self, step: Step, outcome: str, took: str) -> None:
        from rich.text import Text

        self._running = [other for other in self._running if other is not step]
        if not self._running and self._live is not None:
            self._live.stop()
            self._live = None
        if not outcome:
            return
        good = outcome in GOOD
        mark = Text("✓ " if good else "✗ ", style="green" if good else "red")
        how = Text(f"  {took}" + ("" if outcome == "done" else f" ({outcome})"), style="dim")
        self._console.print(Text.assemble(mark, step.title, how))

    def _render(self) -> "RenderableType":
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 1), expand=True)
        for ratio in (None, None, None, None, 1):
            table.add_column(no_wrap=True, overflow="ellipsis", ratio=ratio)
        for step in self._running:
            took = Text(duration(step.seconds), style="cyan")
            bar = "" if step.share is None else ProgressBar(total=1.0, completed=step.share, width=BAR_WIDTH)
            table.add_row(self._spinner, Text(step.title), took, bar, Text(step.detail, style="dim"))
        return table
