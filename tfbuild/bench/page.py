"""A report as one HTML page: what to change, then a chart for each experiment, with the rest folded."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from tfbuild.bench import advise, charts, compare, wording
from tfbuild.bench.compare import GateVerdict, ReportComparison, side_by_side
from tfbuild.bench.gains import certainty, doubt
from tfbuild.bench.wording import TableRow
from tfbuild.measure import experiments, intervals, records
from tfbuild.measure.evaluate import AGAIN, cpu, wall
from tfbuild.measure.records import ArmResult, BenchReport, CaseResult, ExperimentResult
from tfbuild.pages import rendering
from tfbuild.pages.charts import Line, LineGroup, ratios
from tfbuild.util.quantities import counted

QUIET = "quiet"
# The colour and the sign of a gate's outcome.
GATES = {compare.PASSED: ("good", "✓"), compare.FAILED: ("bad", "✗"), compare.UNJUDGED: ("warned", "?")}
# The numbers of lines, of answers and of changes shown; the reader can unfold the others.
MOST_LINES, MOST_ANSWERS = 3, 4
MOST_CHANGES = 12


@dataclass(frozen=True, kw_only=True)
class Missing:
    """All that was not measured for the same reason; `parts`: experiment, case and arm."""

    status: str
    reason: str
    parts: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class CaseView:
    """`arms`: each with the style of its verdict."""

    case: CaseResult
    caveat: str
    arms: tuple[tuple[TableRow, str], ...]


@dataclass(frozen=True, kw_only=True)
class RawRound:
    cells: tuple[str, ...]
    foreign: str


@dataclass(frozen=True, kw_only=True)
class Raw:
    """A case's rounds, with two cells for each arm."""

    name: str
    arms: tuple[str, ...]
    rounds: tuple[RawRound, ...]


@dataclass(frozen=True, kw_only=True)
class PageSection:
    """An experiment; `answer`: its results in a few lines; `more_charts`: those beside the first one."""

    row: ExperimentResult
    anchor: str
    answer: tuple[str, ...]
    chart: Markup
    more_charts: tuple[Markup, ...]
    cases: tuple[CaseView, ...]
    raw: tuple[Raw, ...]


def to_html(report: BenchReport) -> str:
    """Render the report as one page that loads nothing else."""
    advices = advise.advise(report)
    sections = [_section(row, number) for number, row in enumerate(report.experiments, 1)]
    return rendering.render(
        "bench/report",
        report=report,
        noise=wording.noise(report),
        change=advise.CHANGE,
        in_place=advise.IN_PLACE,
        no_change=advise.no_change(advices),
        advice=[advice for advice in advices if not advice.in_place],
        kept=[advice for advice in advices if advice.in_place],
        anchors={section.row.name: section.anchor for section in sections},
        sections=sections,
        unmeasured=unmeasured(report),
        method=METHOD,
        environment=_environment(report),
        most_lines=MOST_LINES,
        most_answers=MOST_ANSWERS,
        most_changes=MOST_CHANGES,
        interval_text=intervals.interval_text,
        certainty=certainty,
        doubt=doubt,
    )


def comparison(reports: ReportComparison, verdicts: Sequence[GateVerdict] = ()) -> str:
    """Render reports side by side as one page, with the verdicts of the gates."""
    pairs = (reports, *reports.others)
    groups = [
        LineGroup(
            title=name,
            lines=tuple(line for number, pair in enumerate(pairs, 2) if (line := _line(pair, name, number))),
        )
        for name in dict.fromkeys(name for pair in pairs for name in pair.totals)
    ]
    return rendering.render(
        "bench/compare",
        first=reports.first,
        comparisons=pairs,
        rows=side_by_side(reports),
        cells=compare.cells,
        chart=ratios("Throughput against the first report", groups) if groups else "",
        gates=[(compare.verdict_text(verdict, len(pairs)), *GATES[verdict.outcome]) for verdict in verdicts],
        notes=compare.notes(reports),
    )


def _line(pair: ReportComparison, name: str, number: int) -> Line | None:
    """Return the total `name` as a line of report `number`; None if the two reports do not share it."""
    ratio = pair.totals.get(name)
    if ratio is None:
        return None
    return Line(label=f"{number}: {pair.second}", ratio=ratio, effect=compare.direction(ratio))


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
            cases = sum(arm.name == name for _, arm in measured)
            noisy = sum(case.noisy for case, _ in pairs)
            yield (
                f"{name}: {effect} in {len(pairs)} of {counted(cases, 'case')}, "
                f"{_range([median for _, median in pairs])}" + (f" ({noisy} of them noisy)" if noisy else "")
            )
    undecided = [(case, arm) for case, arm in measured if wording.undecided(arm, case)]
    if len(undecided) < len(measured) and all(arm.effect == records.NO_DIFFERENCE for _, arm in measured):
        yield records.NO_DIFFERENCE + _noise([case for case in row.cases if case.noisy and case.rounds])
    if undecided:
        yield f"{wording.TOO_FEW}: {len(undecided)} of {len(measured)} comparisons"


def _noise(noisy: Sequence[CaseResult]) -> str:
    clean, rounds = sum(case.clean for case in noisy), sum(len(case.rounds) for case in noisy)
    return f" ({counted(len(noisy), 'noisy case')}: {clean} of {rounds} rounds undisturbed)" if noisy else ""


def _range(medians: Sequence[float]) -> str:
    low, high = f"x{min(medians):.2f}", f"x{max(medians):.2f}"
    return low if low == high else f"{low} to {high}"


def unmeasured(report: BenchReport) -> list[Missing]:
    """Return what was not measured, grouped by reason in the order of the report."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for row in report.experiments:
        for part, status, reason in _gaps(row):
            by_reason.setdefault((status, reason), []).append(part)
    return [Missing(status=status, reason=reason, parts=tuple(parts)) for (status, reason), parts in by_reason.items()]


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


def _section(row: ExperimentResult, number: int) -> PageSection:
    drawn = list(charts.draw(row))
    return PageSection(
        row=row,
        anchor=f"experiment-{number}",
        answer=tuple(_answer(row)),
        chart=drawn[0] if drawn else Markup(),
        more_charts=tuple(drawn[1:]),
        cases=tuple(_case(case) for case in row.cases),
        raw=tuple(_raw(case) for case in row.cases if case.rounds),
    )


def _case(case: CaseResult) -> CaseView:
    rows = [(wording.table_row(arm, case), _style(arm)) for arm in case.arms]
    if not rows:
        rows.append((TableRow(name="all arms", verdict=f"{case.status}: {case.reason}"), QUIET))
    if case.band:
        again = {case.metric: intervals.interval_text(case.band)}
        rows.append((TableRow(name="baseline again", verdict="", **again), QUIET))
    return CaseView(case=case, caveat=wording.caveat(case), arms=tuple(rows))


def _style(arm: ArmResult) -> str:
    return arm.effect if arm.effect in (records.FASTER, records.SLOWER) else QUIET


def _raw(case: CaseResult) -> Raw:
    sampled = {name for row in case.rounds for name in row.samples}
    names = [name for name in (*(arm.name for arm in case.arms), AGAIN) if name in sampled]
    rounds = []
    for row in case.rounds:
        samples = [row.samples.get(name) for name in names]
        cells = [f"{time(sample) * 1e3:.4g}" if sample else "" for sample in samples for time in (cpu, wall)]
        rounds.append(RawRound(cells=tuple(cells), foreign=f"{row.foreign:.0%}"))
    shown = tuple("baseline again" if name == AGAIN else name for name in names)
    return Raw(name=case.name, arms=shown, rounds=tuple(rounds))


# --- the rest --------------------------------------------------------------------------------------------------------

METHOD = (
    "All processes are paused except the one being timed. Rounds are in random order; a sample takes 0.1 s or more.",
    "A ratio is the baseline's time divided by the arm's, per item and per round. The page shows the median of the "
    "rounds' ratios and an interval of order statistics that contains the true median with 95 % confidence (a lower "
    "confidence is stated).",
    "The baseline also runs against itself in the same rounds. An effect is claimed only if it lies beyond that band "
    "and beyond 1.",
    "The verdict uses CPU time if other load would disturb wall time, and wall time if waiting is what is measured.",
    "A disturbed round is repeated up to twice. If too few are clean, all count and the case is noisy.",
    "Absolute times and memory are informative only: times drift on a shared machine, and memory is that of the whole "
    "process, which arms with the same environment share.",
)


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
