"""Write a report as JSON, Markdown and a terminal table, and read its JSON back against its types."""

from collections.abc import Iterator
from pathlib import Path
from typing import IO

import msgspec

from tfbuild.errors import VerificationFailed
from tfbuild.measure import records
from tfbuild.util import terminal
from tfbuild.util.files import read_regular, replace_file, writing
from tfbuild.util.installation import as_typed
from tfbuild.util.terminal import foreign_cell as cell
from tfbuild.util.terminal import markdown_cell
from tfbuild.verify.records import SCHEMA, Benchmark, Check, Report, Throughput
from tfbuild.verify.verification import NO_START
from tfbuild.verify.wording import MARKS, baseline, numbers, plain, spelled

MOST_BYTES = 32 * 1024 * 1024
SCHEMA_FILE = Path(__file__).with_name("schema.json")
COLOURS = {"pass": "green", "warn": "yellow", "fail": "bold red", "skip": "dim"}


def to_json(report: Report) -> str:
    """Return the report as one JSON document; its schema is tfbuild/verify/schema.json."""
    return records.to_json(report)


def from_json(text: str | bytes) -> Report:
    """Read a report from its JSON. Raises ValueError for anything else, and for another schema."""
    return records.from_json(text, Report, SCHEMA, "a report")


def schema() -> str:
    """Return the JSON Schema of a report; `python -m tfbuild.verify.report` writes it to tfbuild/verify/schema.json."""
    return records.json_schema(Report, SCHEMA)


def path(report: Report, folder: Path) -> Path:
    """Return ID.json or ID-failed.json, so that a failure never replaces the report of an image in use."""
    return folder / f"{report.id}{'' if report.passed else '-failed'}.json"


def write(report: Report, folder: Path) -> Path:
    """Write the report as JSON, Markdown and a page, each whole or not at all; return the JSON's path.

    Raises UsageError or DiskFull.
    """
    # Verbs that only read reports need no templates.
    from tfbuild.verify import page

    file = path(report, folder)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(file.with_suffix(".md"), to_markdown(report))
        replace_file(file.with_suffix(".html"), page.to_html(report))
        return replace_file(file, to_json(report) + "\n")


def stored(folder: Path, identifier: str) -> Report | None:
    """Return the report of an earlier verification; None where it is missing, unreadable or of another image."""
    try:
        report = from_json(read_regular(folder / f"{identifier}.json", MOST_BYTES))
    except (OSError, ValueError):
        return None
    return report if report.id == identifier else None


def raise_if_failed(report: Report, image: str) -> None:
    """Raise VerificationFailed where a check failed, with what to do about the first one."""
    if report.passed:
        return
    failed = [check for check in report.checks if check.status == "fail"]
    names = ", ".join(check.name for check in failed) or "nothing could be proved"
    why = f"is not what it claims to be: {names}"
    # Nothing else is wrong with it: it may be right for another CPU.
    if names == "guard" and any(check.detail == NO_START for check in report.checks):
        why = f"was not verified: it does not start on this host: {failed[0].detail.removeprefix('tfbuild: ')}"
    raise VerificationFailed(f"{image} {why}", hint=failed[0].fix if failed else "")


# --- Markdown ------------------------------------------------------------------------------------------------------


def to_markdown(report: Report) -> str:
    return (
        "\n".join(line for part in (_head, _to_do, _table, _speed, _proofs, _details) for line in (*part(report), ""))
        + "\n"
    )


def _head(report: Report) -> Iterator[str]:
    yield f"# {report.id}: {report.verdict}"
    yield ""
    yield f"`{cell(report.image.ref).replace('`', ' ')}` ({report.image.id})"
    yield f"verified {report.created} in {report.seconds:.0f} s by {report.tool}."


def _to_do(report: Report) -> Iterator[str]:
    """Yield what to do, as the page does first."""
    for check in report.checks:
        if check.status == "fail":
            fix = f" *Fix:* {markdown_cell(as_typed(check.fix))}" if check.fix else ""
            yield f"- **{check.name}** failed: {cell(as_typed(check.detail))}.{fix}"
    if report.source_would_add:
        yield f"- On this CPU a build from source would add: {' '.join(report.source_would_add)}."


def _table(report: Report) -> Iterator[str]:
    yield "| check | | what was seen | s |"
    yield "|---|---|---|---|"
    for check in report.checks:
        yield f"| {check.name} | {MARKS[check.status]} | {cell(as_typed(check.detail))} | {check.seconds:.1f} |"


def _speed(report: Report) -> Iterator[str]:
    throughput = report.throughput
    if throughput is None:
        return
    yield "## Throughput"
    yield ""
    yield f"Against `{baseline(report)}`: {throughput.effect}."
    yield "Ratios are the baseline's time over the image's: above 1 the image is faster."
    yield ""
    yield "| workload | CPU time | wall time | image against itself | |"
    yield "|---|---|---|---|---|"
    yield from (_speed_row(row.name, row) for row in throughput.benchmarks)
    yield _speed_row("**all** (geometric mean)", throughput)
    yield ""
    yield f"{throughput.clean} of {throughput.rounds} rounds were undisturbed;"
    yield f"other load used {throughput.foreign:.0%} of the machine on average."


def _speed_row(name: str, row: Benchmark | Throughput) -> str:
    return f"| {name} | {spelled(row.cpu)} | {spelled(row.wall)} | {spelled(row.band)} | {row.effect} |"


def _proofs(report: Report) -> Iterator[str]:
    yield "## What each check proves, and how"
    yield ""
    for check in report.checks:
        yield f"- **{check.name}**: {check.proves} *How:* {check.how}"
        if check.measures:
            yield f"  *Numbers:* {numbers(check)}."


def _details(report: Report) -> Iterator[str]:
    yield "## Plan, host and contents"
    yield ""
    plan = msgspec.to_builtins(report.plan)
    yield from (f"- {name}: {cell(plain(value))}" for name, value in plan.items() if value)
    if host := report.host:
        limits = f"{host.cpus} CPUs (cgroup quota: {host.quota or 'none'}), {host.memory} MiB"
        yield f"- host: {cell(host.cpu)}, {limits}, kernel {cell(host.kernel)}, engine {cell(host.engine)}"
    if software := report.software:
        built = f"TensorFlow {software.tensorflow} ({software.git}), compiled by {software.compiler}"
        yield f"- found: {cell(built)}; malloc of {cell(software.malloc)}"
        yield f"- packages: {cell(plain(software.packages))}"
    yield ""
    yield "| label | value |"
    yield "|---|---|"
    yield from (f"| {cell(name)} | {cell(value)} |" for name, value in sorted(report.image.labels.items()))


# --- terminal ------------------------------------------------------------------------------------------------------


def show(report: Report, stream: IO[str] | None = None) -> None:
    """Print a table to `stream` (default: stdout), in colour on a terminal."""
    from rich.table import Table
    from rich.text import Text

    console = terminal.console(stream)
    table = Table(box=None, show_header=False, pad_edge=False)
    for check in report.checks:
        table.add_row(Text(MARKS[check.status], COLOURS[check.status]), check.name, Text(_seen(check)))
    console.print(table)
    if report.source_would_add:
        console.print(Text(f"a build from source would add {' '.join(report.source_would_add)} on this CPU"))
    console.print(Text(f"{report.id}: {report.verdict} in {report.seconds:.0f} s", COLOURS[report.verdict]))


def _seen(check: Check) -> str:
    return as_typed(check.detail + (f"\nfix: {check.fix}" if check.status == "fail" and check.fix else ""))


if __name__ == "__main__":
    SCHEMA_FILE.write_text(schema(), encoding="utf-8")
