"""A report as one page, HTML or Markdown: what to change, then each experiment; and several reports side by side."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from tfbuild.bench import advise, charts, compare, wording
from tfbuild.bench.compare import GateVerdict, ReportComparison, side_by_side
from tfbuild.bench.wording import TableRow
from tfbuild.measure import experiments, intervals, records
from tfbuild.measure.evaluate import AGAIN, cpu, wall
from tfbuild.measure.records import BenchReport, CaseResult, ExperimentResult
from tfbuild.pages import rendering
from tfbuild.pages.charts import Line, LineGroup, ratios
from tfbuild.util.quantities import counted

# The numbers of lines, of answers and of changes shown; the reader can unfold the others.
MOST_LINES, MOST_ANSWERS = 3, 4
MOST_CHANGES = 12


def to_html(report: BenchReport) -> str:
    """Render the report as one HTML page that loads nothing else."""
    return rendering.render(
        "bench/report.html",
        **_content(report),
        busy=wording.busy(report),
        anchors={row.name: f"experiment-{number}" for number, row in enumerate(report.experiments, 1)},
        answers=lambda row: list(_answer(row)),
        charts=lambda row: list(charts.draw(row)),
        raw_rounds=_raw_rounds,
        unmeasured=unmeasured(report),
        environment=_environment(report),
        most_lines=MOST_LINES,
        most_answers=MOST_ANSWERS,
        most_changes=MOST_CHANGES,
    )


def to_markdown(report: BenchReport) -> str:
    """Render the report as Markdown: what to change, then a table for each experiment."""
    return rendering.render("bench/report.md", **_content(report))


def _content(report: BenchReport) -> dict[str, Any]:
    """Return what both forms of the report show."""
    advices = advise.advise(report)
    return {
        "report": report,
        "noise": wording.noise(report),
        "change": advise.CHANGE,
        "in_place": advise.IN_PLACE,
        "no_change": advise.no_change(advices),
        "advice": [advice for advice in advices if not advice.in_place],
        "kept": [advice for advice in advices if advice.in_place],
        "case_rows": _case_rows,
        "method": wording.METHOD,
        "interval_text": intervals.interval_text,
    }


def comparison(reports: ReportComparison, verdicts: Sequence[GateVerdict] = ()) -> str:
    """Render reports side by side as one page, with the verdicts of the gates."""
    pairs = (reports, *reports.others)
    groups = _totals(pairs)
    return rendering.render(
        "bench/compare.html",
        first=reports.first,
        comparisons=pairs,
        rows=side_by_side(reports),
        cells=compare.cells,
        chart=ratios("Throughput against the first report", groups) if groups else "",
        gates=[(compare.verdict_text(verdict, len(pairs)), *compare.LOOKS[verdict.outcome]) for verdict in verdicts],
        notes=compare.notes(reports),
    )


def _totals(pairs: Sequence[ReportComparison]) -> list[LineGroup]:
    """Return the totals as the lines of one group; of several reports, as a group for each total."""
    lines = {
        name: [
            Line(label=f"report {number}", ratio=pair.totals[name], effect=compare.direction(pair.totals[name]))
            for number, pair in enumerate(pairs, 2)
            if name in pair.totals
        ]
        for name in dict.fromkeys(name for pair in pairs for name in pair.totals)
    }
    if len(pairs) > 1:
        return [LineGroup(title=name, lines=tuple(own)) for name, own in lines.items()]
    only = tuple(replace(line, label=name) for name, (line,) in lines.items())
    return [LineGroup(title="report 2, relative to report 1", lines=only)] if only else []


# --- the experiments -------------------------------------------------------------------------------------------------


def _answer(row: ExperimentResult) -> Iterator[str]:
    """Yield in how many cases each arm was faster or slower than the baseline, and the findings."""
    findings = tuple(finding.text for finding in row.findings)
    if not (experiments.purpose(row.name).answer_only and findings):
        yield from _counts(row)
    yield from findings
    if not findings and not any(case.rounds for case in row.cases):
        yield f"{row.status}: {row.reason}" if row.reason else row.status


def _counts(row: ExperimentResult) -> Iterator[str]:
    measured = [(case, arm) for case in row.cases for arm in case.arms if arm.effect]
    for effect in (records.FASTER, records.SLOWER):
        medians: dict[str, list[tuple[CaseResult, float]]] = {}
        for case, arm in measured:
            ratio = wording.judged_ratio(arm, case)
            if arm.effect == effect and ratio:
                medians.setdefault(arm.name, []).append((case, ratio.median))
        for name, pairs in medians.items():
            cases = counted(sum(arm.name == name for _, arm in measured), "case")
            text = f"{name}: {effect} in {len(pairs)} of {cases}, {_range([median for _, median in pairs])}"
            yield text + _disturbed([case for case, _ in pairs])
    undecided = [(case, arm) for case, arm in measured if wording.undecided(arm, case)]
    if len(undecided) < len(measured) and all(arm.effect == records.NO_DIFFERENCE for _, arm in measured):
        yield records.NO_DIFFERENCE + _disturbed(row.cases)
    if undecided:
        yield f"{wording.TOO_FEW}: {len(undecided)} of {len(measured)} comparisons"


def _disturbed(cases: Sequence[CaseResult]) -> str:
    return f" ({text})" if (text := wording.disturbance(cases)) else ""


def _range(medians: Sequence[float]) -> str:
    low, high = f"x{min(medians):.2f}", f"x{max(medians):.2f}"
    return low if low == high else f"{low} to {high}"


def unmeasured(report: BenchReport) -> dict[tuple[str, str], list[str]]:
    """Return what was not measured by status and reason: experiment, case and arm, in the order of the report."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for row in report.experiments:
        for part, status, reason in _gaps(row):
            by_reason.setdefault((status, reason), []).append(part)
    return by_reason


def _gaps(row: ExperimentResult) -> Iterator[tuple[str, str, str]]:
    """Yield the largest parts of an experiment that share a reason, as (where, status, reason)."""
    if not row.cases:
        yield row.name, row.status, row.reason
    for case in row.cases:
        # A case with rounds was measured; wording.noise says how many of them the time budget stopped.
        if case.status != records.MEASURED and not (case.rounds and case.status == records.TRUNCATED):
            yield f"{row.name}: {case.name}", case.status, case.reason
        if case.rounds:
            lost = [arm for arm in case.arms if arm.status != records.MEASURED]
            yield from ((f"{row.name}: {case.name}: {arm.name}", arm.status, arm.reason) for arm in lost)


def _case_rows(case: CaseResult) -> list[TableRow]:
    """Return a case's rows: its arms, then the baseline against itself, with what makes the numbers less reliable."""
    rows = [wording.table_row(arm, case) for arm in case.arms]
    if not rows:
        rows.append(TableRow(name="all arms", verdict=f"{case.status}: {case.reason}"))
    if case.band:
        again = {case.metric: intervals.interval_text(case.band)}
        rows.append(TableRow(name="baseline again", verdict=wording.caveat(case), **again))
    return rows


def _raw_rounds(case: CaseResult) -> tuple[list[str], list[list[str]]]:
    """Return the names of what was timed, and for each round CPU time and wall time of each, and the other load."""
    sampled = {name for row in case.rounds for name in row.samples}
    names = [name for name in (*(arm.name for arm in case.arms), AGAIN) if name in sampled]
    rows = []
    for row in case.rounds:
        samples = [row.samples.get(name) for name in names]
        cells = [f"{time(sample) * 1e3:.4g}" if sample else "" for sample in samples for time in (cpu, wall)]
        rows.append([*cells, f"{row.foreign:.0%}"])
    return ["baseline again" if name == AGAIN else name for name in names], rows


# --- the rest --------------------------------------------------------------------------------------------------------


def _environment(report: BenchReport) -> dict[str, str]:
    host, software, image = report.host, report.software, report.image
    properties = {
        "image": f"{image.ref} ({image.id})",
        "compared with": image.against,
        "CPU": f"{host.cpu}, {host.cpus} CPUs, {host.machine}",
        "cgroup quota": f"{host.quota:g} CPUs" if host.quota else "none",
        "memory": f"{host.memory} MiB",
        "kernel": host.kernel,
        "engine": host.engine,
        "TensorFlow": f"{software.tensorflow} ({software.git}), compiled by {software.compiler}",
        "Python": software.python,
        "NumPy": software.numpy,
        "malloc of": software.malloc,
        "image sets": ", ".join(f"{name}={value}" for name, value in sorted((image.env or {}).items())),
    }
    return {name: value for name, value in properties.items() if value}
