"""A benchmark's report: as JSON, on a terminal, and as one HTML page."""

import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean
from typing import IO, TYPE_CHECKING

from markupsafe import Markup

from tfbuild import pages
from tfbuild.bench import wording
from tfbuild.bench.advise import advise
from tfbuild.bench.wording import TableRow
from tfbuild.context.labels import read_labels
from tfbuild.errors import fit
from tfbuild.measure import records
from tfbuild.measure.evaluate import interval_text
from tfbuild.measure.experiments import Experiment
from tfbuild.measure.records import BenchReport, CaseResult, ExperimentResult, Interval
from tfbuild.pages import Line, ratios
from tfbuild.util import as_typed, terminal
from tfbuild.util.quantities import counted

if TYPE_CHECKING:
    from rich.console import RenderableType

# The number of reasons in the message about an empty report.
MOST_REASONS = 3
# What every form of a report begins with.
CHANGE, NO_CHANGE = "What to change", "No change to what is set now has a measured gain."


def emptiness(report: BenchReport) -> str:
    """Say why a report has no result, neither a time nor a number found nor a failure; "" if it has one."""
    cases = [case for row in report.experiments for case in row.cases]
    results: list[ExperimentResult | CaseResult] = [*report.experiments, *cases]
    if any(found.values for row in report.experiments for found in row.findings) or any(case.rounds for case in cases):
        return ""
    if any(result.status == records.FAILED for result in results):
        return ""
    reasons = dict.fromkeys(result.reason or result.status for result in results if result.status != records.MEASURED)
    return "; ".join([*reasons][:MOST_REASONS]) or "it has no experiment"


def report_path(report: BenchReport, folder: Path, name: str = "", model: str = "") -> Path:
    """Return NAME.json; without a name bench-ID.json, by tfbuild's identifier of the image, its id or release, and for
    a SavedModel bench-ID-MODEL.json."""
    if name:
        return folder / f"{name}.json"
    prefix, _, digest = report.image.id.partition(":")
    place = f"{zlib.crc32(prefix.encode()):08x}"  # of an environment
    other = digest[:12] if prefix == "sha256" else f"tensorflow-{report.software.tensorflow}-{place}"
    identifier = "-".join(filter(None, (read_labels(report.image.labels).id or other, model)))
    return folder / f"bench-{re.sub(r'[^A-Za-z0-9_.+-]', '-', identifier)}.json"


# --- terminal --------------------------------------------------------------------------------------------------------


def show_report(report: BenchReport, stream: IO[str] | None = None) -> None:
    """Print what to change, then tables, to `stream` (default: stdout), with colours on a terminal."""
    from rich.text import Text

    table = terminal.table()
    for name in ("experiment", "case", "", "CPU time", "wall time", "verdict"):
        table.add_column(name)
    for *cells, verdict, style in _rows(report):
        table.add_row(*map(Text, cells), Text(verdict, style))
    ended = "interrupted" if report.interrupted else "done"
    parts: list[RenderableType] = [
        *(Text(fit(line), no_wrap=True) for line in (*headlines(report), *_changes(report))),
        table,
        *(Text(f"{row.name}: {finding.text}") for row in report.experiments for finding in row.findings),
        Text(f"{report.image.ref}: {ended} after {report.seconds:.0f} s; {wording.noise_note(report)}"),
    ]
    print(terminal.rendered(parts, stream), end="", file=stream)


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
                yield row.name, case.name, arm.name, *ratios, wording.table_row(arm, case).verdict + doubt, style


def headlines(report: BenchReport) -> Iterator[str]:
    """Yield the outcome of each comparison of two images: in how many cases one was faster, and the overall ratio.

    Its ends are the means of the intervals' ends. Cases in which it computes something else are left out.
    """
    for row in report.experiments:
        compared: dict[str, list[tuple[CaseResult, str, Interval]]] = {}
        for case in row.cases:
            for arm in case.arms[1:]:
                ratio = wording.judged_ratio(arm, case)
                if ratio and arm.image != case.arms[0].image and arm.same is not False:
                    compared.setdefault(arm.name, []).append((case, arm.effect, ratio))
        for name, results in compared.items():
            faster, slower = map([effect for _, effect, _ in results].count, (records.FASTER, records.SLOWER))
            ends = ([getattr(ratio, end) for _, _, ratio in results] for end in ("median", "low", "high"))
            median, low, high = map(geometric_mean, ends)
            text = f"{row.name}: {name}: {faster} of {counted(len(results), 'case')} faster, {slower} slower"
            text += f"; x{median:.2f} [{low:.2f}, {high:.2f}] overall (geometric means)"
            yield text + _disturbed([case for case, *_ in results]) + _unlike(report)


def _unlike(report: BenchReport) -> str:
    """Say in what else the images differ, to which a difference may be due; "" if they do not, or if it is unknown."""
    image, other = report.image, report.image.other
    if other is None:
        return ""
    own = {"TensorFlow": report.software.tensorflow, **(image.env or {})}
    its = {"TensorFlow": other.tensorflow, **other.env}
    names = sorted(name for name in own.keys() | its.keys() if own.get(name) != its.get(name))
    texts = (f"{name} {own.get(name, 'unset')} against {its.get(name, 'unset')}" for name in names)
    return f"; the images also differ in {', '.join(texts)}" if names else ""


def _changes(report: BenchReport) -> Iterator[str]:
    """Yield what to change, in the order of `advise`, with its evidence."""
    advices = advise(report)
    if advices or not any(headlines(report)):
        yield f"{CHANGE}:" if advices else NO_CHANGE
    for number, advice in enumerate(advices, 1):
        yield f"{number:2}. {advice.line}{f'  # {advice.remark}' if advice.remark else ''}"
        for gain in advice.gains:
            sure = wording.join(gain.basis, gain.certainty, gain.doubt)
            yield f"    {interval_text(gain.ratio)} {gain.case.name} ({sure})"
    yield ""


def show_experiments(rows: Sequence[Experiment], model: Mapping[str, object], *, quick: bool) -> None:
    """Print the experiments with their questions and cases as a table. `model`: see workers.Machine."""
    batch = {"batch": model.get("given") or "N"}  # the sweep finds it
    for row in rows:
        print(f"{row.name:12}{row.question}")
        print(f"{'':12}{as_typed(row.compares)}")
        for case in row.cases(quick):
            # "intra-op {half} (half of the processors)": the number is known only on the machine that measures.
            arms = re.sub(r"\{\w+\} \((.*?)\)", r"\1", "; ".join(arm.name for arm in row.arms(case)))
            name = case.name.format_map({**model, **batch})
            print(f"{'':14}- {name}: {arms}{f' (needs: {case.needs})' if case.needs else ''}")


# --- the page: what to change, then each experiment with its chart ---------------------------------------------------

# The numbers of gains and of changes shown.
MOST_LINES, MOST_CHANGES = 3, 12


def to_html(report: BenchReport) -> str:
    """Render the report as one HTML page that loads nothing else."""
    return pages.render(
        "bench/report.html",
        report=report,
        noise=wording.noise_note(report),
        change=CHANGE,
        no_change=NO_CHANGE,
        headlines=[*headlines(report)],
        advice=advise(report),
        method=wording.METHOD,
        interval_text=interval_text,
        case_rows=_case_rows,
        anchors={row.name: f"experiment-{place}" for place, row in enumerate(report.experiments, 1)},
        answers=_answer,
        draw=draw_chart,
        environment=_environment(report),
        most_lines=MOST_LINES,
        most_changes=MOST_CHANGES,
    )


# --- the experiments -------------------------------------------------------------------------------------------------


def _answer(row: ExperimentResult) -> Iterator[str]:
    """Yield the findings, and in how many cases each arm was faster or slower than the baseline at the same work."""
    lines = [*(finding.text for finding in row.findings), *_counts(row)]
    yield from lines or [f"{row.status}: {row.reason}" if row.reason else row.status]


def _counts(row: ExperimentResult) -> Iterator[str]:
    measured = [(case, arm) for case in row.cases for arm in case.arms if arm.effect and arm.same is not False]
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
    if measured and all(arm.effect == records.NO_DIFFERENCE for _, arm in measured):
        yield records.NO_DIFFERENCE + _disturbed(row.cases)


def _disturbed(cases: Sequence[CaseResult]) -> str:
    return f" ({text})" if (text := wording.disturbance(cases)) else ""


def _range(medians: Sequence[float]) -> str:
    low, high = f"x{min(medians):.2f}", f"x{max(medians):.2f}"
    return low if low == high else f"{low} to {high}"


def _case_rows(case: CaseResult) -> list[TableRow]:
    """Return a case's rows: its arms, then the baseline against itself, with what makes the numbers less reliable."""
    rows = [wording.table_row(arm, case) for arm in case.arms]
    if not rows:
        rows.append(TableRow(name="all arms", verdict=f"{case.status}: {case.reason}"))
    if case.band:
        again = {case.metric: interval_text(case.band)}
        rows.append(TableRow(name="baseline again", verdict=wording.caveat(case), **again))
    return rows


# --- the chart of an experiment --------------------------------------------------------------------------------------


def draw_chart(row: ExperimentResult) -> Markup | None:
    """Draw the arms' ratios; None if there is nothing to draw."""
    groups = [(case.name, lines) for case in row.cases if (lines := _lines(case))]
    return ratios(f"{row.name}: ratios to the baseline", _by_arm(groups) or groups) if groups else None


def _lines(case: CaseResult) -> list[Line]:
    measured = [(arm, wording.judged_ratio(arm, case)) for arm in case.arms if arm.name != case.baseline]
    return [
        Line(
            label=arm.name + (" (computes something else)" if arm.same is False else ""),
            ratio=ratio,
            effect=arm.effect,
            band=case.band,
        )
        for arm, ratio in measured
        if ratio
    ]


def _by_arm(groups: Sequence[tuple[str, Sequence[Line]]]) -> list[tuple[str, list[Line]]]:
    """Return one group with a line for each case, if all cases compare the same arm; it takes less room."""
    labels = [line.label for _, lines in groups for line in lines]
    if len(labels) > len(groups) or len(set(labels)) > 1:
        return []
    return [(labels[0], [replace(lines[0], label=case) for case, lines in groups])]


# --- the rest --------------------------------------------------------------------------------------------------------


def _environment(report: BenchReport) -> dict[str, str]:
    image, other = report.image, report.image.other
    properties = {
        "image": f"{image.ref} ({image.id})",
        "compared with": f"{image.against} ({other.id}), TensorFlow {other.tensorflow}" if other else image.against,
        **records.surroundings(report.host, report.software),
        "image sets": _sets(image.env),
        "the other sets": _sets(other.env if other else None),
    }
    return {name: value for name, value in properties.items() if value}


def _sets(env: Mapping[str, str] | None) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted((env or {}).items()))
