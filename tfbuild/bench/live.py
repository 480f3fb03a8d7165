"""What a terminal shows during a benchmark, below the running step: each arm's result so far, and the time left."""

import time
from collections.abc import Iterator, Sequence
from textwrap import shorten
from typing import TYPE_CHECKING

from tfbuild.bench import wording
from tfbuild.errors import fit
from tfbuild.measure import intervals
from tfbuild.measure.records import CaseResult
from tfbuild.util.progress import duration

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.text import Text

    from tfbuild.measure.rounds import CaseRun
    from tfbuild.measure.sides import Side

BAR_WIDTH = 30
COLUMNS = ("case", "", "ratio", "verdict", "rounds")
# On a narrow terminal the case's name is cut to at least so many letters; reasons are always cut to so many.
LEAST_NAME, LONGEST_REASON = 8, 40
# Lines of the terminal for the step, the table's head and the time, and for spacing.
OTHER_LINES = 6


class LiveTable:
    """A rich renderable: a row for each arm that is being measured, and the time that the run has left."""

    def __init__(self) -> None:
        self._cases: list[CaseRun] = []
        self._results: dict[int, tuple[object, CaseResult]] = {}
        self._experiments = self._number = 0
        self._begin = self._end = time.monotonic()

    def plan(self, experiments: int, end: float) -> None:
        """Announce how many experiments will be measured, and until when (monotonic)."""
        self._experiments, self._begin, self._end = experiments, time.monotonic(), end

    def next_experiment(self) -> None:
        """Clear the table for the cases of the next experiment."""
        self._cases, self._results, self._number = [], {}, self._number + 1

    def add(self, runs: "Sequence[CaseRun]") -> None:
        """Announce the cases that are measured next: one, or several that take turns."""
        self._cases += runs

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "Iterator[RenderableType]":
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        if rows := [row for run in self._cases for row in self._rows(run)]:
            yield _table(rows[-max(3, console.height - OTHER_LINES) :], options.max_width)
        if self._experiments:
            whole, left = self._end - self._begin, max(0.0, self._end - time.monotonic())
            number = min(self._number, self._experiments)
            text = f"{duration(left)} of {duration(whole)} left, experiment {number} of {self._experiments}"
            grid = Table.grid(padding=(0, 1))
            bar = ProgressBar(total=max(whole, 1.0), completed=whole - left, width=BAR_WIDTH)
            grid.add_row(bar, Text(text, "cyan"))
            yield grid

    def _rows(self, run: "CaseRun") -> "Iterator[tuple[Text, ...]]":
        from rich.text import Text

        result = self._result(run)
        name = fit(run.case.name)
        for side, arm in zip(run.sides[1:-1], result.arms[1:], strict=False):
            ratio = wording.judged_ratio(arm, result)
            verdict, style = _verdict(side, arm.effect, bool(ratio and ratio.coverage >= intervals.CONFIDENCE))
            yield (
                Text(name, "dim"),
                Text(fit(arm.name)),
                Text(intervals.interval_text(ratio)),
                Text(fit(verdict), style),
                Text(str(len(run.rounds))),
            )
            name = ""

    def _result(self, run: "CaseRun") -> CaseResult:
        """Return the result so far, computed once for the same rounds."""
        state = (len(run.rounds), tuple(side.status for side in run.sides))
        known = self._results.get(id(run))
        if known is None or known[0] != state:
            known = self._results[id(run)] = state, run.result()
        return known[1]


def _table(rows: "Sequence[tuple[Text, ...]]", width: int) -> "RenderableType":
    """Return a table in which only the names of cases are cut."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in COLUMNS:
        table.add_column(name, no_wrap=True, overflow="ellipsis", header_style="dim")
    others = [max(row[at].cell_len for row in rows) for at in range(1, len(COLUMNS) - 1)] + [len(COLUMNS[-1])]
    for row in rows:
        row[0].truncate(max(LEAST_NAME, width - sum(others) - 2 * len(others)), overflow="ellipsis")
        table.add_row(*row)
    return table


def _verdict(side: "Side", effect: str, sure: bool) -> tuple[str, str]:
    """Return the verdict so far and its style."""
    if not side.live:
        return shorten(f"{side.status}: {side.reason}", LONGEST_REASON, placeholder=" …"), "yellow"
    return (effect, wording.COLOURS.get(effect, "dim")) if sure else ("…", "dim")
