"""The display on a terminal during a benchmark: the experiment's arms and the time left.

It is drawn only between two samples, when the run asks for it, because a drawing thread would disturb the timing.
"""

import os
import sys
import time
from collections.abc import Iterator, Sequence
from textwrap import shorten
from typing import TYPE_CHECKING, Protocol, TextIO

from tfbuild.bench import wording
from tfbuild.errors import fit
from tfbuild.measure import intervals
from tfbuild.measure.records import CaseResult
from tfbuild.util.progress import GOOD, Display, Progress, Step, duration

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live
    from rich.text import Text

    from tfbuild.measure.arms import Side
    from tfbuild.measure.rounds import CaseRun

BAR_WIDTH = 30
COLUMNS = ("case", "", "ratio", "verdict", "rounds")
# On a narrow terminal the case's name is cut to at least so many letters; reasons are always cut to so many.
LEAST_NAME, LONGEST_REASON = 8, 40
# Lines of the terminal for the heading, the table's head, the time and the step's detail, and for spacing.
OTHER_LINES = 7


class LiveWatch(Protocol):
    """A display that follows a run."""

    def plan(self, experiments: Sequence[str], end: float) -> None:
        """Announce what will be measured, and until when (monotonic)."""

    def cases(self, runs: "Sequence[CaseRun]") -> None:
        """Announce the cases that are measured next: one, or several that take turns."""

    def draw(self) -> None:
        """Draw now, as nothing is being timed."""


class NoWatch:
    """No display, for logs."""

    def plan(self, experiments: Sequence[str], end: float) -> None: ...
    def cases(self, runs: "Sequence[CaseRun]") -> None: ...
    def draw(self) -> None: ...


class DisplayedProgress(Progress):
    """Progress on a display of its own."""

    def __init__(self, display: Display) -> None:
        self._display = display


def watched(stream: TextIO | None = None) -> tuple[Progress, LiveWatch]:
    """Return a live table if `stream` (default: stderr) is a terminal, else plain lines."""
    stream = stream or sys.stderr
    if not stream.isatty() or os.environ.get("TERM", "dumb") in ("dumb", "unknown"):
        return Progress(stream), NoWatch()
    table = LiveTable(stream)
    return DisplayedProgress(table), table


class LiveTable:
    """The table on a terminal; finished steps stay above it as lines."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console

        self._console = Console(file=stream, highlight=False)
        self._live: Live | None = None
        self._step: Step | None = None
        self._cases: list[CaseRun] = []
        self._results: dict[int, tuple[object, CaseResult]] = {}
        self._experiments: tuple[str, ...] = ()
        self._begin = self._end = time.monotonic()
        self._done = 0

    # --- the run ----------------------------------------------------------------------------------------------------

    def plan(self, experiments: Sequence[str], end: float) -> None:
        self._experiments, self._begin, self._end, self._done = tuple(experiments), time.monotonic(), end, 0

    def cases(self, runs: "Sequence[CaseRun]") -> None:
        self._cases += runs
        self.draw()

    def draw(self) -> None:
        if self._live is not None:
            self._live.refresh()

    # --- the display of a step --------------------------------------------------------------------------------------

    def note(self, line: str) -> None:
        self._console.print(fit(line), markup=False, soft_wrap=True)

    def began(self, step: Step) -> None:
        from rich.live import Live

        self._step, self._cases, self._results = step, [], {}
        # stdout is for data, so streams are not redirected. Refresh automatically until the experiments begin.
        self._live = Live(
            get_renderable=self._render,
            console=self._console,
            auto_refresh=not self._experiments,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start(refresh=True)

    def ended(self, step: Step, outcome: str, took: str) -> None:
        from rich.text import Text

        if self._live is not None:
            self._live.stop()
            self._live = None
        self._done += bool(self._experiments)
        good = outcome in GOOD
        mark = Text("✓ " if good else "✗ ", style="green" if good else "red")
        self._console.print(Text.assemble(mark, step.title, Text(f"  {took}{_unusual(outcome)}", style="dim")))

    # --- what is drawn ----------------------------------------------------------------------------------------------

    def _render(self) -> "RenderableType":
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        step = self._step
        took = Text(f"  {duration(step.seconds)}" if step else "", "cyan")
        head = Text.assemble(Text(step.title if step else "", "bold"), took)
        parts: list[RenderableType] = [head]
        if self._cases:
            table = Table(box=None, pad_edge=False)
            for name in COLUMNS:
                table.add_column(name, no_wrap=True, overflow="ellipsis", header_style="dim")
            rows = [row for run in self._cases for row in self._rows(run)]
            rows = rows[-max(3, self._console.height - OTHER_LINES) :]
            others = [max((row[at].cell_len for row in rows), default=0) for at in range(1, len(COLUMNS))]
            others[-1] = len(COLUMNS[-1])
            for row in rows:
                row[0].truncate(
                    max(LEAST_NAME, self._console.width - sum(others) - 2 * len(others)), overflow="ellipsis"
                )
                table.add_row(*row)
            parts.append(table)
        detail = Text(fit(step.detail) if step else "", "dim", no_wrap=True, overflow="ellipsis")
        return Group(*parts, detail, *self._time())

    def _time(self) -> "Iterator[RenderableType]":
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        if self._experiments:
            whole, left = self._end - self._begin, max(0.0, self._end - time.monotonic())
            grid = Table.grid(padding=(0, 1))
            number = min(self._done + 1, len(self._experiments))
            text = f"{duration(left)} of {duration(whole)} left, experiment {number} of {len(self._experiments)}"
            grid.add_row(
                ProgressBar(total=max(whole, 1.0), completed=whole - left, width=BAR_WIDTH), Text(text, "cyan")
            )
            yield grid

    def _rows(self, run: "CaseRun") -> "Iterator[tuple[Text, ...]]":
        from rich.text import Text

        result = self._result(run)
        name = fit(run.case.name)
        for side, arm in zip(run.runner.sides[1:-1], result.arms[1:], strict=False):
            ratio = wording.judged(arm, result)
            verdict, style = _verdict(side, arm.effect, bool(ratio and ratio.coverage >= intervals.CONFIDENCE))
            yield (
                Text(name, "dim"),
                Text(fit(arm.name)),
                Text(intervals.spelled(ratio)),
                Text(fit(verdict), style),
                Text(str(len(run.rounds))),
            )
            name = ""

    def _result(self, run: "CaseRun") -> CaseResult:
        """Return the result so far, computed once for the same rounds."""
        state = (len(run.rounds), tuple(side.status for side in run.runner.sides))
        known = self._results.get(id(run))
        if known is None or known[0] != state:
            known = self._results[id(run)] = state, run.result()
        return known[1]


def _unusual(outcome: str) -> str:
    return f" ({outcome})" if outcome and outcome != "done" else ""


def _verdict(side: "Side", effect: str, sure: bool) -> tuple[str, str]:
    """Return the verdict so far and its style."""
    if not side.live:
        return shorten(f"{side.status}: {side.reason}", LONGEST_REASON, placeholder=" …"), "yellow"
    return (effect, wording.COLOURS.get(effect, "dim")) if sure else ("…", "dim")
