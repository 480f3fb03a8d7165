"""A verification as one HTML page: what to do, then each check, with its proof folded."""

from collections.abc import Iterator

import msgspec
from markupsafe import Markup

from tfbuild.pages import charts, rendering
from tfbuild.pages.charts import Line, LineGroup
from tfbuild.verify import wording
from tfbuild.verify.records import Benchmark, Check, Report, Throughput

# How a status looks: its colour, and a sign with a word for those who do not see colours.
STYLES = {"pass": "good", "warn": "warned", "fail": "bad", "skip": "quiet"}
SIGNS = {"pass": "✓ pass", "warn": "! warning", "fail": "✗ FAIL", "skip": "– skipped"}
ALL = "all (geometric mean)"


def to_html(report: Report) -> str:
    """Render the report as one page that loads nothing else."""
    return rendering.render(
        "verify/report.html",
        report=report,
        failed=[check for check in report.checks if check.status == "fail"],
        warned=[check for check in report.checks if check.status == "warn"],
        summary=_summary(report.checks),
        signs=SIGNS,
        styles=STYLES,
        numbers=wording.numbers,
        baseline=wording.baseline(report),
        chart=_chart(report.throughput) if report.throughput else Markup(),
        speeds=list(_speeds(report.throughput)) if report.throughput else [],
        plan={name: wording.plain(value) for name, value in msgspec.to_builtins(report.plan).items() if value},
        environment=_environment(report),
    )


def _summary(checks: tuple[Check, ...]) -> str:
    """Count the checks by status, as "9 passed, 1 skipped"."""
    names = {"pass": "passed", "warn": "passed with a warning", "fail": "failed", "skip": "skipped"}
    counts = {name: sum(check.status == status for check in checks) for status, name in names.items()}
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count)


def _chart(throughput: Throughput) -> Markup:
    """Draw the mean and each workload; nothing if no logarithmic axis can show them."""
    metric = throughput.metric
    drawn = (_line(ALL, throughput, metric), *(_line(row.name, row, metric) for row in throughput.benchmarks))
    lines = tuple(line for line in drawn if line)
    if not lines:
        return Markup()
    title = f"{'CPU time' if throughput.metric == 'cpu' else 'wall time'}, relative to the baseline"
    group = LineGroup(title=title, lines=lines)
    return charts.ratios("throughput of the image relative to the baseline", [group])


def _line(name: str, row: Benchmark | Throughput, metric: str) -> Line | None:
    ratio = charts.drawable(row.cpu if metric == "cpu" else row.wall)
    return Line(label=name, ratio=ratio, effect=row.effect, band=charts.drawable(row.band)) if ratio else None


def _speeds(throughput: Throughput) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield a row of text for each workload and for all of them."""
    yield ALL, *_ratios(throughput), throughput.effect
    for row in throughput.benchmarks:
        yield row.name, *_ratios(row), row.effect


def _ratios(row: Benchmark | Throughput) -> tuple[str, str, str]:
    return wording.spelled(row.cpu), wording.spelled(row.wall), wording.spelled(row.band)


def _environment(report: Report) -> dict[str, str]:
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
