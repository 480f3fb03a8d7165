"""What a benchmark shows on a terminal while it runs: the experiment's arms, and how much of the time is left.

Drawn only where the run says so, between two samples: a thread that draws would be timed with what it shows.
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
# Where a terminal is narrow, the case's name is cut, to so many letters at the least; a reason to so many at once.
LEAST_NAME, LONGEST_REASON = 8, 40
# Of the terminal's height: heading, table's head, time, and what the step is at, with air around.
OTHER_LINES = 7


class LiveWatch(Protocol):
    """Who looks on while a run is made."""

    def plan(self, experiments: Sequence[str], end: float) -> None:
        """What will be measured, until when (monotonic)."""

    def cases(self, made: "Sequence[CaseRun]") -> None:
        """These are measured from now on: one alone, or several that take turns."""

    def draw(self) -> None:
        """Nothing is being timed just now."""


class Nobody:
    """For logs, which have their lines."""

    def plan(self, experiments: Sequence[str], end: float) -> None: ...
    def cases(self, made: "Sequence[CaseRun]") -> None: ...
    def draw(self) -> None: ...


class Told(Progress):
    """Progress that a display of its own shows."""

    def __init__(self, display: Display) -> None:
        self._display = display


def watched(stream: TextIO | None = None) -> tuple[Progress, LiveWatch]:
    """A live table where `stream` (default: stderr) is a terminal, plain lines elsewhere."""
    stream = stream or sys.stderr
    if not stream.isatty() or os.environ.get("TERM", "dumb") in ("dumb", "unknown"):
        return Progress(stream), Nobody()
    board = Board(stream)
    return Told(board), board


class Board:
    """The table on a terminal; what is done stays above it as lines."""

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

    def cases(self, made: "Sequence[CaseRun]") -> None:
        self._cases += made
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
        # Streams are not redirected: stdout carries data. Before the experiments nothing is timed yet.
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
            rows = [row for made in self._cases for row in self._rows(made)]
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
            told = f"{duration(left)} of {duration(whole)} left, experiment {number} of {len(self._experiments)}"
            grid.add_row(
                ProgressBar(total=max(whole, 1.0), completed=whole - left, width=BAR_WIDTH), Text(told, "cyan")
            )
            yield grid

    def _rows(self, made: "CaseRun") -> "Iterator[tuple[Text, ...]]":
        from rich.text import Text

        found = self._result(made)
        name = fit(made.case.name)
        for side, arm in zip(made.runner.sides[1:-1], found.arms[1:], strict=False):
            ratio = wording.judged(arm, found)
            word, style = _word(side, arm.effect, bool(ratio and ratio.coverage >= intervals.CONFIDENCE))
            told = intervals.spelled(ratio)
            yield (
                Text(name, "dim"),
                Text(fit(arm.name)),
                Text(told),
                Text(fit(word), style),
                Text(str(len(made.rounds))),
            )
            name = ""

    def _result(self, made: "CaseRun") -> CaseResult:
        """Worked out once for the same rounds."""
        state = (len(made.rounds), tuple(side.status for side in made.runner.sides))
        known = self._results.get(id(made))
        if known is None or known[0] != state:
            known = self._results[id(made)] = state, made.result()
        return known[1]


def _unusual(outcome: str) -> str:
    return f" ({outcome})" if outcome and outcome != "done" else ""


def _word(side: "Side", effect: str, sure: bool) -> tuple[str, str]:
    """The verdict so far, and its style."""
    if not side.live:
        return shorten(f"{side.status}: {side.reason}", LONGEST_REASON, placeholder=" …"), "yellow"
    return (effect, wording.COLOURS.get(effect, "dim")) if sure else ("…", "dim")
