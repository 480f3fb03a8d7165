"""A benchmark's report as JSON and on a terminal."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

from tfbuild.bench import wording
from tfbuild.bench.advise import Advice, advise
from tfbuild.context.labels import read_labels
from tfbuild.errors import fit
from tfbuild.measure import records
from tfbuild.measure.experiments import Experiment
from tfbuild.measure.intervals import interval_text
from tfbuild.measure.records import BenchReport, CaseResult, ExperimentResult
from tfbuild.util import terminal
from tfbuild.util.files import read_named

if TYPE_CHECKING:
    from rich.console import RenderableType

# The number of reasons in the message about an empty report.
MOST_REASONS = 3
# What every form of a report begins with.
CHANGE, NO_CHANGE = "What to change", "No change has a measured gain."


def read_report(path: Path) -> BenchReport:
    """Read a report; raise OSError, or ValueError if it is not one or of another schema."""
    return records.from_json(read_named(path), BenchReport, records.SCHEMA, "a benchmark's report")


def emptiness(report: BenchReport) -> str:
    """Say why a report has no result, neither a time nor a finding nor a failure; "" if it has one."""
    cases = [case for row in report.experiments for case in row.cases]
    results: list[ExperimentResult | CaseResult] = [*report.experiments, *cases]
    if any(row.findings for row in report.experiments) or any(case.rounds for case in cases):
        return ""
    if any(result.status == records.FAILED for result in results):
        return ""
    reasons = dict.fromkeys(result.reason or result.status for result in results if result.status != records.MEASURED)
    return "; ".join([*reasons][:MOST_REASONS]) or "it has no experiment"


def path(report: BenchReport, folder: Path, name: str = "") -> Path:
    """Return NAME.json; without a name bench-ID.json, by tfbuild's identifier of the image or by the image's id."""
    if name:
        return folder / f"{name}.json"
    identifier = read_labels(report.image.labels).id or report.image.id.rpartition(":")[2][:12]
    return folder / f"bench-{re.sub(r'[^A-Za-z0-9_.+-]', '-', identifier)}.json"


# --- terminal --------------------------------------------------------------------------------------------------------


def show(report: BenchReport, stream: IO[str] | None = None) -> None:
    """Print what to change, then tables, to `stream` (default: stdout), with colours on a terminal."""
    from rich.text import Text

    table = terminal.table()
    for name in ("experiment", "case", "", "CPU time", "wall time", "verdict"):
        table.add_column(name)
    for *cells, verdict, style in _rows(report):
        table.add_row(*map(Text, cells), Text(verdict, style))
    ended = "interrupted" if report.interrupted else "done"
    parts: list[RenderableType] = [
        *(Text(fit(line), no_wrap=True) for line in _changes(advise(report))),
        table,
        *(Text(f"{row.name}: {finding.text}") for row in report.experiments for finding in row.findings),
        Text(f"{report.image.ref}: {ended} after {report.seconds:.0f} s; {wording.noise(report)}"),
    ]
    terminal.write(terminal.console(stream), parts)


def _rows(report: BenchReport) -> Iterator[tuple[str, ...]]:
    """Yield the cells of each arm that was compared, or of what was not measured, with the style of the verdict."""
    for row in report.experiments:
        if not row.cases:
            yield row.name, "", "", "", "", f"{row.status}: {row.reason}", "dim"
        for case in row.cases:
            if not case.arms:
                yield row.name, case.name, "", "", "", f"{case.status}: {case.reason}", "dim"
            for arm in [arm for arm in case.arms if arm.name != case.baseline or not case.rounds]:
                doubt = f" ({wording.caveat(case)})" if case.rounds and wording.caveat(case) else ""
                ratios = interval_text(arm.cpu), interval_text(arm.wall)
                style = wording.COLOURS.get(arm.effect, "dim")
                yield row.name, case.name, arm.name, *ratios, wording.verdict(arm, case) + doubt, style


def _changes(advices: Sequence[Advice]) -> Iterator[str]:
    """Yield what to change, the largest gain first, with its evidence."""
    yield f"{CHANGE}, by gain:" if advices else NO_CHANGE
    for number, advice in enumerate(advices, 1):
        yield f"{number:2}. {advice.line}{f'  # {advice.remark}' if advice.remark else ''}"
        for gain in advice.gains:
            sure = wording.join(gain.basis, gain.certainty, gain.doubt)
            yield f"    {interval_text(gain.ratio)} {gain.case.name} ({sure})"
    yield ""


def show_experiments(rows: Sequence[Experiment], *, quick: bool) -> None:
    """Print the experiments with their questions and cases as a table."""
    for row in rows:
        print(f"{row.name:12}{row.question}")
        print(f"{'':12}{row.compares}")
        for case in row.cases(quick):
            arms = ", ".join(arm.name for arm in row.arms(case))
            print(f"{'':14}- {case.name}: {arms}{f' (needs: {case.needs})' if case.needs else ''}")
