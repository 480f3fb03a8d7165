"""A report for people to read: as one HTML page, as Markdown, and as a table in the terminal.

Each begins with what to do about failures; the page folds each check's proof.
"""

from collections import Counter
from collections.abc import Iterator
from typing import IO, NamedTuple

import msgspec
from markupsafe import Markup

from tfbuild.pages import charts, rendering
from tfbuild.pages.charts import Line
from tfbuild.util import terminal
from tfbuild.util.installation import as_typed
from tfbuild.util.terminal import foreign_cell as cell
from tfbuild.util.terminal import markdown_cell
from tfbuild.verify.records import Benchmark, Check, Report, Throughput, ratio_text

ALL = "all (geometric mean)"


class Shown(NamedTuple):
    """How a status looks: its word and colour in the terminal, and its sign and CSS class on the page.

    The sign has a word for those who do not see colours; `counted` follows the number of checks with the status.
    """

    mark: str
    colour: str
    sign: str
    style: str
    counted: str


SHOWN = {
    "pass": Shown("ok", "green", "✓ pass", "good", "passed"),
    "warn": Shown("WARN", "yellow", "! warning", "warned", "passed with a warning"),
    "fail": Shown("FAIL", "bold red", "✗ FAIL", "bad", "failed"),
    "skip": Shown("skip", "dim", "– skipped", "quiet", "skipped"),
}


def baseline(report: Report) -> str:
    """Return what the image's speed was compared with, and what was changed in its environment."""
    if report.throughput is None:
        return ""
    changed = report.throughput.retuned
    settings = " ".join(f"{name}={value}" for name, value in sorted(changed.items()))
    return f"{report.throughput.baseline} with {settings}" if changed else report.throughput.baseline


def numbers(check: Check) -> str:
    """Return the numbers behind a check, with their limits."""
    return ", ".join(f"{m.name} {m.value:.4g}{f' ({m.limit})' if m.limit else ''}" for m in check.measures)


def speeds(throughput: Throughput | None) -> list[tuple[str, str, str, str, str]]:
    """Return a row for all workloads and one for each: CPU time, wall time, the image against itself, the effect."""
    rows: list[tuple[str, Benchmark | Throughput]] = [(ALL, throughput)] if throughput else []
    rows += [(row.name, row) for row in throughput.benchmarks] if throughput else []
    return [(name, ratio_text(row.cpu), ratio_text(row.wall), ratio_text(row.band), row.effect) for name, row in rows]


def plan(report: Report) -> dict[str, str]:
    """Return the fields of the plan that are not empty."""
    fields = msgspec.to_builtins(report.plan).items()
    return {name: " ".join(value) if isinstance(value, list | tuple) else value for name, value in fields if value}


def environment(report: Report) -> dict[str, str]:
    """Return the facts of image, host and software that are known."""
    host, software, image = report.host, report.software, report.image
    rows = {
        "image": f"{image.ref} ({image.id})",
        "digests": " ".join(image.digests),
        "size": f"{image.size / 1e6:.0f} MB",
        "architecture": image.architecture,
    }
    if host:
        rows |= {
            "CPU": f"{host.cpu}, {host.cpus} CPUs, {host.machine}",
            "cgroup quota": f"{host.quota:g} CPUs" if host.quota else "none",
            "memory": f"{host.memory} MiB",
            "kernel": host.kernel,
            "engine": host.engine,
        }
    if software:
        rows |= {
            "TensorFlow": f"{software.tensorflow} ({software.git}), compiled by {software.compiler}",
            "compiled for": " ".join(software.compiled_for),
            "Python": software.python,
            "NumPy": software.numpy,
            "malloc of": software.malloc,
        }
    return {name: value for name, value in rows.items() if value}


# --- the page --------------------------------------------------------------------------------------------------------


def to_html(report: Report) -> str:
    """Render the report as one page that loads nothing else."""
    return rendering.render(
        "verify/report.html",
        report=report,
        failed=[check for check in report.checks if check.status == "fail"],
        warned=[check for check in report.checks if check.status == "warn"],
        summary=_summary(report.checks),
        shown=SHOWN,
        numbers=numbers,
        baseline=baseline(report),
        chart=_chart(report.throughput) if report.throughput else Markup(),
        speeds=speeds(report.throughput),
        plan=plan(report),
        environment=environment(report),
    )


def _summary(checks: tuple[Check, ...]) -> str:
    """Count the checks by status, as "9 passed, 1 skipped"."""
    counts = Counter(check.status for check in checks)
    return ", ".join(f"{counts[status]} {shown.counted}" for status, shown in SHOWN.items() if counts[status])


def _chart(throughput: Throughput) -> Markup:
    """Draw the mean and each workload; nothing if no logarithmic axis can show them."""
    metric = throughput.metric
    drawn = (_line(ALL, throughput, metric), *(_line(row.name, row, metric) for row in throughput.benchmarks))
    lines = [line for line in drawn if line]
    if not lines:
        return Markup()
    title = f"{'CPU time' if throughput.metric == 'cpu' else 'wall time'}, relative to the baseline"
    return charts.ratios("throughput of the image relative to the baseline", [(title, lines)])


def _line(name: str, row: Benchmark | Throughput, metric: str) -> Line | None:
    ratio = charts.drawable(row.cpu if metric == "cpu" else row.wall)
    return Line(label=name, ratio=ratio, effect=row.effect, band=charts.drawable(row.band)) if ratio else None


# --- Markdown ------------------------------------------------------------------------------------------------------


def to_markdown(report: Report) -> str:
    """Return what a CI's summary shows, as Markdown: what to do first, then the checks and the speed."""
    parts = (_head, _to_do, _table, _speed)
    return "\n".join(line for part in parts for line in (*part(report), "")) + "\n"


def _head(report: Report) -> Iterator[str]:
    yield f"# {report.id}: {report.verdict}"
    yield ""
    yield f"`{cell(report.image.ref).replace('`', ' ')}` ({report.image.id})"
    yield f"verified {report.created} in {report.seconds:.0f} s by {report.tool}."


def _to_do(report: Report) -> Iterator[str]:
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
        yield f"| {check.name} | {SHOWN[check.status].mark} | {cell(as_typed(check.detail))} | {check.seconds:.1f} |"


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
    yield from (f"| {' | '.join(row)} |" for row in speeds(throughput))
    yield ""
    yield f"{throughput.clean} of {throughput.rounds} rounds were undisturbed;"
    yield f"other load used {throughput.foreign:.0%} of the machine on average."


# --- terminal ------------------------------------------------------------------------------------------------------


def show(report: Report, stream: IO[str] | None = None) -> None:
    """Print a table to `stream` (default: stdout), in colour on a terminal."""
    from rich.table import Table
    from rich.text import Text

    console = terminal.console(stream)
    table = Table(box=None, show_header=False, pad_edge=False)
    for check in report.checks:
        shown = SHOWN[check.status]
        table.add_row(Text(shown.mark, shown.colour), check.name, Text(_seen(check)))
    console.print(table)
    if report.source_would_add:
        console.print(Text(f"a build from source would add {' '.join(report.source_would_add)} on this CPU"))
    console.print(Text(f"{report.id}: {report.verdict} in {report.seconds:.0f} s", SHOWN[report.verdict].colour))


def _seen(check: Check) -> str:
    return as_typed(check.detail + (f"\nfix: {check.fix}" if check.status == "fail" and check.fix else ""))
