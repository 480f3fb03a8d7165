"""A benchmark's report as JSON, which is read back against its types, in pyperf's format, and on a terminal.

`python -m tfbuild.bench.report` writes the JSON Schema of reports to schema.json.
"""

import io
import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING

from tfbuild.bench import wording
from tfbuild.bench.advise import CHANGE, IN_PLACE, advise, no_change
from tfbuild.bench.gains import Advice
from tfbuild.context.labels import read_labels
from tfbuild.errors import UsageError, fit
from tfbuild.measure import evaluate, records
from tfbuild.measure.experiments import Experiment
from tfbuild.measure.intervals import interval_text
from tfbuild.measure.records import BenchReport, CaseResult, ExperimentResult
from tfbuild.util import terminal
from tfbuild.util.files import read_named
from tfbuild.util.terminal import cause

if TYPE_CHECKING:
    from rich.console import RenderableType

# The number of reasons in the message about an empty report.
MOST_REASONS = 3
SCHEMA_FILE = Path(__file__).with_name("schema.json")


def from_json(text: str | bytes) -> BenchReport:
    """Read a report from JSON; raise ValueError if it is not a report, or of another schema."""
    report = records.from_json(text, BenchReport, records.SCHEMA, "a benchmark's report")
    if contradiction := next(_contradictions(report), ""):
        raise ValueError(f"not a benchmark's report: {contradiction}")
    return report


def _contradictions(report: BenchReport) -> Iterator[str]:
    """Yield what no measurement can result in."""
    for case in (case for row in report.experiments for case in row.cases):
        if case.metric not in ("cpu", "wall"):
            yield f"{case.name} is judged by {case.metric!r}"
        if any(arm.items < 1 for arm in case.arms):
            yield f"{case.name} has an arm without items"
        if any(arm.seconds is not None and arm.seconds <= 0 for arm in case.arms):
            yield f"{case.name} has an arm that took no time"
        if any(raw.inner < 1 or raw.wall <= 0 for row in case.rounds for raw in row.samples.values()):
            yield f"{case.name} has a sample without calls or time"


def read_report(path: Path) -> BenchReport:
    """Read the report at `path`; raise UsageError if that fails, or if nothing was measured for it."""
    hint = "give a reports/bench-*.json that was written by invoke bench"
    try:
        report = from_json(read_named(path))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {cause(error)}", hint=hint) from error
    if why := emptiness(report):
        raise UsageError(f"{path}: nothing was measured: {why}", hint=hint)
    return report


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


# --- pyperf ----------------------------------------------------------------------------------------------------------

# pyperf refuses these as tags.
NO_TAGS = ("", "all")


def to_pyperf(report: BenchReport) -> str:
    """Return a benchmark for each arm, with seconds per item of every round in the case's metric.

    Raises UsageError if the report has no samples.
    """
    import pyperf

    common = _common_metadata(report)
    # By name, as pyperf refuses two benchmarks of one name.
    runs = {
        metadata["name"]: pyperf.Run(values, metadata=_single_lines({**common, **metadata}), collect_metadata=False)
        for values, metadata in _timed(report)
    }
    if not runs:
        raise UsageError("this report has no samples to export", hint="measure something first: invoke bench IMAGE")
    buffer = io.StringIO()
    # One process measured all values, which pyperf calls one run.
    pyperf.BenchmarkSuite([pyperf.Benchmark([run]) for run in runs.values()]).dump(buffer)
    return buffer.getvalue()


def _timed(report: BenchReport) -> Iterator[tuple[list[float], dict[str, object]]]:
    """Yield the seconds per item of each arm, which pyperf wants to be above 0, and what is said of it."""
    for row in report.experiments:
        for case in row.cases:
            for arm in case.arms:
                samples = [turn.samples[arm.name] for turn in case.rounds if arm.name in turn.samples]
                values = [evaluate.TIMES[case.metric](sample) / arm.items for sample in samples]
                metadata: dict[str, object] = {
                    "name": f"{row.name}/{case.name}/{arm.name}",
                    "unit": "second",
                    "tags": [row.name] if row.name not in NO_TAGS else [],
                    "duration": sum(sample.wall for sample in samples),
                    "time": wording.METRICS[case.metric],
                    "undisturbed_rounds": f"{case.clean} of {len(case.rounds)}",
                    "items_per_call": arm.items,
                    "workload": arm.workload,
                    "parameters": " ".join(f"{name}={value}" for name, value in sorted(arm.params.items())),
                    "environment": " ".join(f"{name}={value}" for name, value in sorted(arm.env.items())),
                }
                if positive := [value for value in values if value > 0]:
                    yield positive, metadata


def _common_metadata(report: BenchReport) -> dict[str, object]:
    try:
        # As pyperf writes it, without a time zone.
        date = datetime.fromisoformat(report.created).replace(tzinfo=None).isoformat(sep=" ")
    except ValueError:
        date = ""
    return {
        "cpu_model_name": report.host.cpu,
        "cpu_count": report.host.cpus,
        "platform": f"{report.host.machine}, kernel {report.host.kernel}",
        "python_version": report.software.python,
        "tensorflow_version": report.software.tensorflow,
        "image": report.image.ref,
        "image_id": report.image.id,
        "tool": report.tool,
        "date": date,
    }


def _single_lines(metadata: dict[str, object]) -> dict[str, object]:
    """Join lines and drop empty values, since pyperf accepts neither."""
    flat = {name: " ".join(value.split()) if isinstance(value, str) else value for name, value in metadata.items()}
    return {name: value for name, value in flat.items() if value not in ("", [])}


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
    """Yield what to change, the largest gain first, with its evidence; then what is in place, a line each."""
    new = [advice for advice in advices if not advice.in_place]
    yield f"{CHANGE}, by gain:" if new else no_change(advices)
    for number, advice in enumerate(new, 1):
        yield f"{number:2}. {advice.line}{f'  # {advice.remark}' if advice.remark else ''}"
        for gain in (*advice.gains, *advice.losses):
            sure = wording.join(f"{gain.time}, over {gain.over}", gain.certainty, gain.doubt)
            slower = ", slower" if gain in advice.losses else ""
            yield f"    {interval_text(gain.ratio)} {gain.model} ({sure}){slower}"
    for advice in advices:
        if advice.in_place:
            yield f"{IN_PLACE} ({advice.in_place}): {advice.line}, up to x{advice.best:.2f}"
    yield ""


def show_experiments(rows: Sequence[Experiment], *, quick: bool) -> None:
    """Print the experiments with their questions and cases as a table."""
    for row in rows:
        print(f"{row.name:12}{row.question}")
        print(f"{'':12}{row.compares}")
        for case in row.cases(quick):
            arms = ", ".join(arm.name for arm in row.arms(case))
            print(f"{'':14}- {case.name}: {arms}{f' (needs: {case.needs})' if case.needs else ''}")


if __name__ == "__main__":
    SCHEMA_FILE.write_text(records.json_schema(BenchReport, records.SCHEMA), encoding="utf-8")
