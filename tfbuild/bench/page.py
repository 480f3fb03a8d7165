"""A report as one HTML page: readable with no network, on a phone and in the dark. What a report says is escaped."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from tfbuild.bench import advise, charts, compare, gate, wording
from tfbuild.bench.compare import ReportComparison, side_by_side
from tfbuild.bench.gate import GateVerdict
from tfbuild.bench.wording import TableRow
from tfbuild.errors import UsageError
from tfbuild.measure import experiments, intervals, records
from tfbuild.measure.evaluate import AGAIN, cpu, wall
from tfbuild.measure.records import ArmResult, BenchReport, CaseResult, ExperimentResult
from tfbuild.util.files import replace_file

TEMPLATES = Path(__file__).parents[2] / "templates"
QUIET = "quiet"
# Lines that stand open; a reader may unfold the others.
MOST = 3
CUT_SHORT = "the time was over before all rounds were made: intervals are as wide as they are"


@dataclass(frozen=True, kw_only=True)
class Card:
    """What is advised: `setting` as it is to be typed; `anchor`: where its numbers are.

    `in_place`: why there is nothing to change, or nothing.
    """

    experiment: str
    anchor: str
    setting: str
    gains: tuple[str, ...]
    losses: tuple[str, ...]
    in_place: str


@dataclass(frozen=True, kw_only=True)
class Missing:
    """What has no number for the same reason; `places`: experiment, case, arm."""

    status: str
    reason: str
    places: tuple[str, ...]


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
    """A case's rounds: two cells an arm."""

    name: str
    arms: tuple[str, ...]
    rounds: tuple[RawRound, ...]


@dataclass(frozen=True, kw_only=True)
class PageSection:
    """An experiment; `found`: its answer in a line or a few."""

    row: ExperimentResult
    anchor: str
    found: tuple[str, ...]
    charts: tuple[Markup, ...]
    cases: tuple[CaseView, ...]
    raw: tuple[Raw, ...]


def to_html(report: BenchReport) -> str:
    """The report as one page that asks nothing of anybody."""
    cards = _cards(report)
    return _render(
        "report",
        report=report,
        noise=wording.noise(report),
        advice=[card for card in cards if not card.in_place],
        kept=[card for card in cards if card.in_place],
        sections=[_section(row, number) for number, row in enumerate(report.experiments, 1)],
        unmeasured=unmeasured(report),
        method=METHOD,
        environment=_environment(report),
        most=MOST,
    )


def comparison(found: ReportComparison, judged: Sequence[GateVerdict] = ()) -> str:
    """Reports side by side, as one page; with what the gates say of them."""
    every = (found, *found.others)
    groups = [
        charts.LineGroup(
            title=name, lines=tuple(line for number, one in enumerate(every, 2) if (line := _line(one, name, number)))
        )
        for name in dict.fromkeys(name for one in every for name in one.totals)
    ]
    return _render(
        "compare",
        found=found,
        every=every,
        rows=side_by_side(found),
        cells=compare.cells,
        chart=Markup(charts.ratios("Throughput against the first report", groups)) if groups else "",
        gates=[gate.spelled(one, len(every)) for one in judged],
        notes=compare.notes(found),
    )


def _line(one: ReportComparison, name: str, number: int) -> charts.Line | None:
    """One of the totals, to be drawn for report `number`; None where these two reports do not share it."""
    ratio = one.totals.get(name)
    if ratio is None:
        return None
    return charts.Line(label=f"{number}: {one.second}", ratio=ratio, effect=compare.direction(ratio))


def write(text: str, path: Path, option: str = "--html") -> None:
    """Whole or not at all; UsageError where it cannot be written."""
    try:
        replace_file(path, text)
    except OSError as error:
        raise UsageError(f"{option} {path}: {error.strerror}", hint="name a file that can be written") from error


def _render(template: str, **names: object) -> str:
    return _environment_of_templates().get_template(f"bench/{template}.html.j2").render(**names)


@cache
def _environment_of_templates() -> Environment:
    return Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


# --- the summary -----------------------------------------------------------------------------------------------------


def _cards(report: BenchReport) -> list[Card]:
    anchors = {row.name: f"experiment-{number}" for number, row in enumerate(report.experiments, 1)}
    return [
        Card(
            experiment=one.experiment,
            anchor=anchors[one.experiment],
            setting="\n".join([*(f"{name}={value}" for name, value in sorted(one.env.items())), one.code]).strip(),
            gains=one.gains,
            losses=one.losses,
            in_place=one.in_place,
        )
        for one in advise.advise(report)
    ]


def _found(row: ExperimentResult) -> Iterator[str]:
    """Its findings; else what each arm did to the baseline, case by case counted."""
    yield from (finding.text for finding in row.findings)
    if experiments.purpose(row.name).answer_only and row.findings:
        return
    measured = [(case, arm) for case in row.cases for arm in case.arms if arm.effect]
    for effect in (records.FASTER, records.SLOWER):
        told: dict[str, list[tuple[CaseResult, float]]] = {}
        for case, arm in measured:
            ratio = wording.judged(arm, case)
            if arm.effect == effect and ratio:
                told.setdefault(arm.name, []).append((case, ratio.median))
        for name, seen in told.items():
            cases = sum(arm.name == name for _, arm in measured)
            noisy = sum(case.noisy for case, _ in seen)
            yield (
                f"{name}: {effect} in {len(seen)} of {cases} {_plural('case', cases)}, "
                f"{_range([median for _, median in seen])}" + (f" ({noisy} of them noisy)" if noisy else "")
            )
    undecided = [(case, arm) for case, arm in measured if wording.undecided(arm, case)]
    if len(undecided) < len(measured) and all(arm.effect == records.NO_DIFFERENCE for _, arm in measured):
        yield records.NO_DIFFERENCE
    if undecided:
        yield f"{wording.TOO_FEW}: {len(undecided)} of {len(measured)} comparisons"
    if not measured and not row.findings:
        yield f"{row.status}: {row.reason}" if row.reason else row.status


def _range(medians: Sequence[float]) -> str:
    low, high = f"x{min(medians):.2f}", f"x{max(medians):.2f}"
    return low if low == high else f"{low} to {high}"


def _plural(word: str, number: int) -> str:
    return word if number == 1 else f"{word}s"


def unmeasured(report: BenchReport) -> list[Missing]:
    """What has no number, by reason, in the order of the report; then what has one of few rounds."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in report.experiments:
        for place, status, reason in _gaps(row):
            found.setdefault((status, reason), []).append(place)
    told = [Missing(status=status, reason=reason, places=tuple(places)) for (status, reason), places in found.items()]
    return sorted(told, key=lambda one: one.reason == CUT_SHORT)


def _gaps(row: ExperimentResult) -> Iterator[tuple[str, str, str]]:
    """The largest part of an experiment that shares a reason, as (where, status, reason)."""
    if not row.cases:
        yield row.name, row.status, row.reason
    for case in row.cases:
        if case.status != records.MEASURED:
            cut = case.rounds and case.status == records.TRUNCATED
            yield f"{row.name}: {case.name}", case.status, CUT_SHORT if cut else case.reason
        if case.rounds:
            lost = [arm for arm in case.arms if arm.status != records.MEASURED]
            yield from ((f"{row.name}: {case.name}: {arm.name}", arm.status, arm.reason) for arm in lost)


# --- the experiments -------------------------------------------------------------------------------------------------


def _section(row: ExperimentResult, number: int) -> PageSection:
    return PageSection(
        row=row,
        anchor=f"experiment-{number}",
        found=tuple(_found(row)),
        charts=tuple(Markup(chart) for chart in charts.of(row)),
        cases=tuple(_case(case) for case in row.cases),
        raw=tuple(_raw(case) for case in row.cases if case.rounds),
    )


def _case(case: CaseResult) -> CaseView:
    rows = [(wording.table_row(arm, case), _style(arm)) for arm in case.arms]
    if not rows:
        rows.append((TableRow(name="", verdict=f"{case.status}: {case.reason}"), QUIET))
    if case.band:
        again = {case.metric: intervals.spelled(case.band)}
        rows.append((TableRow(name="baseline again", verdict="", **again), QUIET))
    return CaseView(case=case, caveat=wording.caveat(case), arms=tuple(rows))


def _style(arm: ArmResult) -> str:
    return arm.effect if arm.effect in (records.FASTER, records.SLOWER) else QUIET


def _raw(case: CaseResult) -> Raw:
    taken = {name for row in case.rounds for name in row.samples}
    names = [name for name in (*(arm.name for arm in case.arms), AGAIN) if name in taken]
    rounds = []
    for row in case.rounds:
        samples = [row.samples.get(name) for name in names]
        cells = [f"{time(sample) * 1e3:.4g}" if sample else "" for sample in samples for time in (cpu, wall)]
        rounds.append(RawRound(cells=tuple(cells), foreign=f"{row.foreign:.0%}"))
    shown = tuple("baseline again" if name == AGAIN else name for name in names)
    return Raw(name=case.name, arms=shown, rounds=tuple(rounds))


# --- the rest --------------------------------------------------------------------------------------------------------

METHOD = (
    "Persistent processes, all stopped but the one that is timed; rounds in random order, samples of 0.1 s and more.",
    "A ratio is the baseline's time over the arm's, per item and per round; shown are the median of the rounds' ratios "
    "and an interval of order statistics that holds the true one with 95 % or more (where it is less, it says so).",
    "The baseline runs against itself in the same rounds. An effect is claimed only beyond that band and beyond 1.",
    "CPU time is judged where neighbours would disturb the clock, wall time where waiting is the point.",
    "A round that others disturbed is repeated up to twice; where too few are clean, all count and the case is noisy.",
    "Absolute times and memory are for reading only: on a shared machine they drift, and memory is the whole process's,"
    " which arms share where nothing in their environment sets them apart.",
)


def _environment(report: BenchReport) -> dict[str, str]:
    host, found, image = report.host, report.software, report.image
    told = {
        "image": f"{image.ref} ({image.id})",
        "compared with": image.against,
        "CPU": f"{host.cpu}, {host.cpus} CPUs, {host.machine}",
        "cgroup quota": f"{host.quota:g} CPUs" if host.quota else "none",
        "memory": f"{host.memory} MiB",
        "kernel": host.kernel,
        "engine": host.engine,
        "TensorFlow": f"{found.tensorflow} ({found.git}), compiled by {found.compiler}",
        "Python": found.python,
        "NumPy": found.numpy,
        "malloc of": found.malloc,
        "image sets": ", ".join(f"{name}={value}" for name, value in sorted((image.env or {}).items())),
    }
    return {name: value for name, value in told.items() if value}
