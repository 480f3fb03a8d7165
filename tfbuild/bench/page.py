"""A report as one page, HTML or Markdown: what to change, then each experiment; and several reports side by side."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

from markupsafe import Markup

from tfbuild.bench import advise, compare, findings, wording
from tfbuild.bench.compare import GateVerdict, ReportComparison, side_by_side
from tfbuild.bench.wording import TableRow
from tfbuild.measure import experiments, intervals, records
from tfbuild.measure.evaluate import AGAIN, cpu, seconds_per_item, wall
from tfbuild.measure.experiments import ChartKind
from tfbuild.measure.records import ArmResult, BenchReport, CaseResult, ExperimentResult
from tfbuild.pages import rendering
from tfbuild.pages.charts import WIDTH, Line, Spec, bars, curves, drawable, marks, name, number, ratios
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
        anchors={row.name: f"experiment-{place}" for place, row in enumerate(report.experiments, 1)},
        answers=lambda row: list(_answer(row)),
        charts=lambda row: list(draw_charts(row)),
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
    pairs = reports.pairs
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


def _totals(pairs: Sequence[ReportComparison]) -> list[tuple[str, list[Line]]]:
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
        return [*lines.items()]
    only = [replace(line, label=name) for name, (line,) in lines.items()]
    return [("report 2, relative to report 1", only)] if only else []


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
        for compared, pairs in medians.items():
            cases = counted(sum(arm.name == compared for _, arm in measured), "case")
            text = f"{compared}: {effect} in {len(pairs)} of {cases}, {_range([median for _, median in pairs])}"
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


# --- the charts of an experiment -------------------------------------------------------------------------------------

CURVE_HEIGHT = 105


def draw_charts(row: ExperimentResult) -> Iterator[Markup]:
    """Draw an experiment's charts, as elements for a page."""
    for kind in experiments.purpose(row.name).charts:
        yield from DRAWN[kind](row)


def _ratio_chart(row: ExperimentResult) -> Iterator[Markup]:
    groups = [(case.name, lines) for case in row.cases if (lines := _lines(case))]
    if groups:
        yield ratios(f"{row.name}: ratios to the baseline", _by_arm(groups) or groups)


def _by_arm(groups: Sequence[tuple[str, Sequence[Line]]]) -> list[tuple[str, list[Line]]]:
    """Return one group with a line for each case, if all cases compare the same arm; it takes less room."""
    labels = [line.label for _, lines in groups for line in lines]
    if len(labels) > len(groups) or len(set(labels)) > 1:
        return []
    return [(labels[0], [replace(lines[0], label=case) for case, lines in groups])]


def _rate_curves(row: ExperimentResult) -> Iterator[Markup]:
    """Draw items a second over the batch size for each case with enough points; the ratios if no case has them."""
    drawn = [(case.name, curve, _rate_text(case)) for case in row.cases if (curve := _curve(case))]
    yield from [curves(f"{row.name}: items a second over the batch size", drawn)] if drawn else _ratio_chart(row)


def _rate_text(case: CaseResult) -> str:
    return "; ".join(f"batch {point['n']}: {point['rate']:.4g} items a second" for point in _points(case))


def _memory_bars(row: ExperimentResult) -> Iterator[Markup]:
    """Draw the process's resident memory, a bar for each arm."""
    groups = [(case.name, [(arm.name, arm.rss) for arm in case.arms if arm.rss]) for case in row.cases]
    if any(lines for _, lines in groups):
        yield bars(f"{row.name}: memory of the process", [group for group in groups if group[1]], "MiB")


DRAWN: dict[ChartKind, Callable[[ExperimentResult], Iterator[Markup]]] = {
    "ratios": _ratio_chart,
    "rates": _rate_curves,
    "memory": _memory_bars,
}


def _lines(case: CaseResult) -> list[Line]:
    measured = [(arm, drawable(wording.judged_ratio(arm, case))) for arm in case.arms if arm.name != case.baseline]
    band = drawable(case.band)
    return [Line(label=_label(arm), ratio=at, effect=arm.effect, band=band) for arm, at in measured if at]


def _label(arm: ArmResult) -> str:
    return arm.name + (" (computes something else)" if arm.same is False else "")


# --- batch sizes -----------------------------------------------------------------------------------------------------


def _curve(case: CaseResult) -> Spec | None:
    """Draw the points with the curve for steps of a + b n seconds; None if there are too few."""
    points, steps = _points(case), findings.steps(case)
    if len(points) < 2 or len(steps) < 2:
        return None
    sizes = sorted({n for n, _ in steps})
    across = {"type": "log", "base": 2, "domain": [sizes[0] / 1.2, sizes[-1] * 1.2], "nice": False}
    axis = {"values": sizes, "format": "d", "title": "items in a batch", "labelOverlap": True, "labelSeparation": 4}
    x = number("n", scale=across, axis=axis)
    line = findings.fit(steps)
    curve = [{"n": n, "rate": n / (line.a + line.b * n)} for n in _between(sizes[0], sizes[-1])] if line else []
    top = max([point["high"] for point in points] + [point["rate"] for point in curve]) * 1.1
    up = {"domain": [0, top], "nice": False}
    y = number("rate", scale=up, axis={"title": "items a second", "format": "~s", "tickCount": 4, "grid": True})
    span = {"x": x, "y": number("low", scale=up), "y2": {"field": "high"}}
    knees = [{"n": findings.knee(steps, share), "text": f"{share:.0%}", "y": top} for share in findings.SHARES]
    label = {"baseline": "bottom", "fontSize": 11, "color": "var(--muted)", "dy": -2}
    drawn = [
        marks(knees, "rule", {"x": x}, color="var(--same)", strokeDash=[3, 3]),
        *(
            marks(labels, "text", {"x": x, "y": {"value": 0}, "text": name("text")}, align=align, dx=dx, **label)
            for align, dx, labels in _aligned(_side_by_side(knees), sizes[-1])
        ),
        marks(curve, "line", {"x": x, "y": y}, color="var(--same)"),
        marks(points, "rule", span, strokeWidth=3, color="var(--faster)"),
        marks(points, "point", {"x": x, "y": y}, filled=True, size=50, opacity=1, color="var(--faster)"),
    ]
    return {"layer": drawn, "width": WIDTH, "height": CURVE_HEIGHT}


def _points(case: CaseResult) -> list[dict[str, Any]]:
    points = []
    for arm in case.arms:
        seconds = seconds_per_item(case, arm)
        if seconds and seconds.low > 0:
            rates = {"rate": 1 / seconds.median, "low": 1 / seconds.high, "high": 1 / seconds.low}
            points.append({"n": arm.items, **rates})
    return points


def _between(low: float, high: float) -> list[float]:
    return [low * (high / low) ** (step / 40) for step in range(41)]


def _side_by_side(knees: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one label for all shares that the same batch reaches."""
    texts: dict[int, list[str]] = {}
    for knee in knees:
        texts.setdefault(knee["n"], []).append(knee["text"])
    return [{"n": n, "text": ", ".join(shares)} for n, shares in texts.items()]


def _aligned(
    labels: list[dict[str, Any]], largest: int
) -> list[tuple[Literal["left", "right"], int, list[dict[str, Any]]]]:
    """Part labels into those left of their lines, which are the first and that at the edge, and those right of them."""
    left = [label for label in labels if label is labels[0] or label["n"] == largest]
    right = [label for label in labels if label not in left]
    return [("right", 4, left), ("left", -4, right)]


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
