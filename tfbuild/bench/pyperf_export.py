"""Export a report in pyperf's format, for python -m pyperf stats, compare_to and hist."""

import io
from collections.abc import Iterator
from datetime import datetime

import pyperf

from tfbuild.errors import UsageError
from tfbuild.measure.evaluate import TIMES
from tfbuild.measure.records import ArmResult, BenchReport, CaseResult, ExperimentResult

# pyperf refuses these as tags.
NO_TAGS = ("", "all")


def to_pyperf(report: BenchReport) -> str:
    """Return a benchmark for each arm, with seconds per item of every round in the case's metric.

    Raises UsageError if the report has no samples.
    """
    benchmarks = {benchmark.get_name(): benchmark for benchmark in _benchmarks(report)}
    if not benchmarks:
        raise UsageError("this report has no samples to export", hint="measure something first: invoke bench IMAGE")
    buffer = io.StringIO()
    pyperf.BenchmarkSuite(list(benchmarks.values())).dump(buffer)
    return buffer.getvalue()


def _benchmarks(report: BenchReport) -> Iterator[pyperf.Benchmark]:
    common = _machine(report)
    for row in report.experiments:
        for case in row.cases:
            for arm in case.arms:
                if values := _values(case, arm):
                    own = _metadata(row, case, arm)
                    # One process measured them all, which pyperf calls one run.
                    run = pyperf.Run(values, metadata=_lines({**common, **own}), collect_metadata=False)
                    yield pyperf.Benchmark([run])


def _values(case: CaseResult, arm: ArmResult) -> list[float]:
    """Return seconds per item; pyperf accepts only positive values."""
    time = TIMES[case.metric]
    samples = [row.samples[arm.name] for row in case.rounds if arm.name in row.samples]
    return [value for sample in samples if (value := time(sample) / arm.items) > 0]


def _machine(report: BenchReport) -> dict[str, object]:
    return {
        "cpu_model_name": report.host.cpu,
        "cpu_count": report.host.cpus,
        "platform": f"{report.host.machine}, kernel {report.host.kernel}",
        "python_version": report.software.python,
        "tensorflow_version": report.software.tensorflow,
        "image": report.image.ref,
        "image_id": report.image.id,
        "tool": report.tool,
        "date": _date(report.created),
    }


def _date(created: str) -> str:
    """Return the time as pyperf writes it, without a time zone; "" if it cannot be read."""
    try:
        return datetime.fromisoformat(created).replace(tzinfo=None).isoformat(sep=" ")
    except ValueError:
        return ""


def _metadata(row: ExperimentResult, case: CaseResult, arm: ArmResult) -> dict[str, object]:
    return {
        "name": f"{row.name}/{case.name}/{arm.name}",
        "unit": "second",
        "tags": [row.name] if row.name not in NO_TAGS else [],
        "duration": sum(row.samples[arm.name].wall for row in case.rounds if arm.name in row.samples),
        "time": "CPU time" if case.metric == "cpu" else "wall time",
        "undisturbed_rounds": f"{case.clean} of {len(case.rounds)}",
        "items_per_call": arm.items,
        "workload": arm.workload,
        "parameters": " ".join(f"{name}={value}" for name, value in sorted(arm.params.items())),
        "environment": " ".join(f"{name}={value}" for name, value in sorted(arm.env.items())),
    }


def _lines(metadata: dict[str, object]) -> dict[str, object]:
    """Join lines and drop empty values, since pyperf accepts neither."""
    flat = {name: " ".join(value.split()) if isinstance(value, str) else value for name, value in metadata.items()}
    return {name: value for name, value in flat.items() if value not in ("", [])}
