"""Compare reports of different hardware, images or releases side by side, each with the first.

The reports do not share rounds, so a disturbance of a whole run is in the ratios and cannot be told from the image's
effect. Only if both measured the same other image in their rounds, on equal machines, are times taken relative to it.

Gates (`compare --fail-if`) are limits that a comparison must keep; missing measurements never pass one.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import IO, TYPE_CHECKING

from tfbuild.bench import matching, wording
from tfbuild.bench.matching import ArmRatio, Lack
from tfbuild.context.labels import read_labels
from tfbuild.errors import RegressionFound, UsageError, fit
from tfbuild.measure import intervals
from tfbuild.measure.intervals import CaseRatio
from tfbuild.measure.records import FASTER, NO_DIFFERENCE, SLOWER, BenchReport, Interval
from tfbuild.util import installation, terminal

if TYPE_CHECKING:
    from rich.console import RenderableType

THROUGHPUT, CPU = "throughput", "cpu"
# The largest share of the first report's rows that may be missing; more could hide what a gate looks for.
MOST_LOST = 0.1
# At most this many reasons are listed.
MOST_REASONS = 3
NO_CPU = "no CPU time"
ONE_RUN = "both reports are of the same run, sample by sample"
# Labels that say how an image was built.
BUILD_LABELS = (
    "release",
    "target",
    "python",
    "instruction-set",
    "copts",
    "compiler",
    "allocator",
    "onednn",
    "threading",
)


@dataclass(frozen=True, kw_only=True)
class ReportComparison:
    """Totals are means over the rows that count: `throughput` and `experiments` by the clock, `cpu` of CPU time.

    A total without such rows is None or missing. `differs`: properties that differ, as (first's, second's); `lacks`:
    rows that only the first has; `more`: rows that only the second has; `unjudged`: by the total's name, why no gate
    may judge it; `smallest`: by name, the slowdown that its interval would show in four of five runs; `others`: the
    first report against each further one.
    """

    first: str
    second: str
    differs: dict[str, tuple[str, str]]
    rows: tuple[ArmRatio, ...]
    throughput: Interval | None
    cpu: Interval | None
    experiments: dict[str, Interval]
    lacks: tuple[Lack, ...]
    more: tuple[Lack, ...]
    unjudged: dict[str, str]
    smallest: dict[str, float]
    notes: tuple[str, ...]
    others: tuple["ReportComparison", ...] = ()

    @property
    def pairs(self) -> tuple["ReportComparison", ...]:
        """Return the comparisons of the first report with each other one, this one first."""
        return self, *self.others

    @property
    def totals(self) -> dict[str, Interval]:
        """Return all totals by name: throughput, CPU time and each experiment."""
        both = {THROUGHPUT: self.throughput, CPU: self.cpu}
        return {name: ratio for name, ratio in both.items() if ratio} | self.experiments


def direction(ratio: Interval) -> str:
    """Return the verdict of the whole interval, drift included."""
    if ratio.coverage < intervals.CONFIDENCE or ratio.low <= 1 <= ratio.high:
        return NO_DIFFERENCE
    return FASTER if ratio.low > 1 else SLOWER


def compare(first: BenchReport, *others: BenchReport) -> ReportComparison:
    """Compare the first report with each other one; raise UsageError if two have nothing in common."""
    pairs = [_pair(first, other, number) for number, other in enumerate(others, 2)]
    return replace(pairs[0], others=tuple(pairs[1:]))


def _pair(first: BenchReport, second: BenchReport, number: int) -> ReportComparison:
    matched = matching.match(first, second)
    rows, lacks = matched.rows, matched.lacks
    if not rows:
        raise UsageError(
            f"reports 1 and {number} have no measurement in common", hint="run the same experiments for both"
        )
    names = dict.fromkeys([*(row.experiment for row in rows), *(lack.experiment for lack in lacks)])
    counting = [row for row in rows if not row.left_out]
    comparison = ReportComparison(
        first=_title(first),
        second=_title(second),
        differs=differences(first, second),
        rows=rows,
        throughput=_total(counting),
        cpu=_total(counting, CPU),
        experiments=_experiments(names, counting),
        lacks=lacks,
        more=matched.more,
        unjudged=_unjudged(names, rows, lacks, ONE_RUN if first.experiments == second.experiments else ""),
        smallest={},
        notes=(),
    )
    smallest = {name: round(intervals.detectable_slowdown(ratio), 4) for name, ratio in comparison.totals.items()}
    comparison = replace(comparison, smallest=smallest)
    return replace(comparison, notes=tuple(_notes(first, second, comparison, number)))


def differences(first: BenchReport, second: BenchReport) -> dict[str, tuple[str, str]]:
    """Return what differs between the reports: machine, image, release and build."""
    ours, theirs = _subject(first), _subject(second)
    names = dict.fromkeys([*ours, *theirs])
    both = {name: (fit(ours.get(name, "")), fit(theirs.get(name, ""))) for name in names}
    return {name: pair for name, pair in both.items() if pair[0] != pair[1]}


def _subject(report: BenchReport) -> dict[str, str]:
    host, software, image = report.host, report.software, report.image
    labels = read_labels(image.labels)
    return {
        "CPU": host.cpu,
        "CPUs": str(host.cpus),
        "cgroup quota": f"{host.quota:g}" if host.quota else "",
        "memory": f"{host.memory} MiB",
        "kernel": host.kernel,
        "image": image.ref,
        "image's id": image.id,
        "TensorFlow": software.tensorflow,
        "compiled by": software.compiler,
        "Python": software.python,
        "NumPy": software.numpy,
        "malloc of": software.malloc,
        **{f"label {name}": labels.get(name) for name in BUILD_LABELS},
        "tool": report.tool,
    }


# --- totals ----------------------------------------------------------------------------------------------------------


def _total(rows: Iterable[ArmRatio], metric: str = "") -> Interval | None:
    """Return the mean by the clock, or of CPU time."""
    timed = [(row, row.cpu if metric == CPU else row.wall) for row in rows]
    return intervals.total(
        [CaseRatio(experiment=row.experiment, case=row.case, ratio=ratio) for row, ratio in timed if ratio]
    )


def _experiments(names: Iterable[str], rows: Sequence[ArmRatio]) -> dict[str, Interval]:
    """Return the means by the clock, widened by drift, unless all rows are relative to another image."""
    by_name = {name: [row for row in rows if row.experiment == name] for name in names}
    totals = {name: ratio for name, rows in by_name.items() if (ratio := _total(rows))}
    return {
        name: ratio
        if all(row.held for row in by_name[name])
        else intervals.widen_by_drift(ratio, [total for other, total in totals.items() if other != name])
        for name, ratio in totals.items()
    }


def _unjudged(names: Iterable[str], rows: Sequence[ArmRatio], lacks: Sequence[Lack], every: str) -> dict[str, str]:
    """Say by the total's name why no gate may judge it; `every`: a reason that holds for all totals, if any."""
    if every:
        return dict.fromkeys((THROUGHPUT, CPU, *names), every)
    reasons = {
        THROUGHPUT: _objection([row.left_out for row in rows], lacks),
        CPU: _objection([row.left_out or ("" if row.cpu else NO_CPU) for row in rows], lacks),
    }
    for name in names:
        left_out = [row.left_out for row in rows if row.experiment == name]
        reasons[name] = _objection(left_out, [lack for lack in lacks if lack.experiment == name])
    return {name: why for name, why in reasons.items() if why}


def _objection(left_out: Sequence[str], lacks: Sequence[Lack]) -> str:
    """Say why a total cannot be judged: something broke, or too little of what the first report measured counts."""
    reasons = [*filter(None, left_out), *(lack.why for lack in lacks)]
    every = len(left_out) + len(lacks)
    broken = [lack for lack in lacks if lack.broken]
    if broken:
        first = f"{broken[0].experiment}: {broken[0].case}: {broken[0].arm}"
        return f"{len(broken)} of {every} rows broke, first {fit(first)} ({_counted(lack.why for lack in broken)})"
    if len(reasons) > MOST_LOST * every:
        return f"{len(reasons)} of {every} rows do not count: {_counted(reasons)}"
    return ""


def _counted(reasons: Iterable[str]) -> str:
    """List the reasons with their counts, the most frequent first."""
    counts = Counter(reasons).most_common()
    rest = sum(number for _, number in counts[MOST_REASONS:])
    shown = [f"{number} {fit(reason)}" for reason, number in counts[:MOST_REASONS]]
    return ", ".join([*shown, f"{rest} for other reasons"] if rest else shown)


def _title(report: BenchReport) -> str:
    return f"{report.image.ref} on {report.host.cpu} ({report.host.cpus} CPUs), TensorFlow {report.software.tensorflow}"


def _notes(first: BenchReport, second: BenchReport, comparison: ReportComparison, number: int) -> Iterator[str]:
    rows = comparison.rows
    for report in (first, second):
        yield f"{report.image.ref}, {report.created}: {wording.noise(report)}"
    if first.experiments == second.experiments:
        yield f"report {number}: {ONE_RUN}"
    if left := [row.left_out for row in rows if row.left_out]:
        yield f"report {number}: {len(left)} of {len(rows)} shared rows are in no total: {_counted(left)}"
    lost = Counter(lack.experiment for lack in comparison.lacks)
    every = lost + Counter(row.experiment for row in rows)
    if lost:
        counts = ", ".join(f"{name} {count} of {every[name]}" for name, count in lost.items())
        yield f"report {number} lacks {lost.total()} of the {every.total()} rows that report 1 has: {counts}"
    if more := Counter(lack.experiment for lack in comparison.more):
        counts = ", ".join(f"{name} {count}" for name, count in more.items())
        yield f"report {number} has {more.total()} more rows: {counts}"
    if broken := [lack for lack in comparison.lacks if lack.broken]:
        yield f"report {number}: {_objection([], broken)}"
    if slower := [name for name, ratio in comparison.experiments.items() if direction(ratio) == SLOWER]:
        yield f"report {number}: slower over the whole interval: {', '.join(slower)}"
    smallest = comparison.smallest
    if shown := [f"{name} x{smallest[name]:.2f}" for name in (THROUGHPUT, CPU) if name in smallest]:
        yield f"report {number}: the smallest slowdown that would show in four of five runs: {', '.join(shown)}"
    yield from _drift(first, second, rows, number)


def _drift(first: BenchReport, second: BenchReport, rows: Sequence[ArmRatio], number: int) -> Iterator[str]:
    held = sum(bool(row.held) for row in rows)
    if held:
        yield f"report {number}: {held} of {len(rows)} rows are relative to the other image that both runs measured"
    if first.host.cpu != second.host.cpu or first.host.cpus != second.host.cpus:
        yield "different machines: the ratios include the difference between them"
    elif held < len(rows):
        yield (
            "the runs were not interleaved: load during a whole run changes the ratios, but not their intervals "
            f"({installation.command()} bench --only isa --against IMAGE in both runs cancels it)"
        )


# --- gates -----------------------------------------------------------------------------------------------------------

GATE = re.compile(r"([a-z0-9]+) *(<=|<|>=|>) *(\d+(?:\.\d+)?)")
EXAMPLES = "--fail-if 'throughput<0.95', 'cpu<0.95' or 'jpeg<0.9'"
PASSED, FAILED, UNJUDGED = "passed", "failed", "cannot be judged"
# The sign of an outcome, its colour on a terminal, and its style on a page.
LOOKS = {PASSED: ("✓", "green", "good"), FAILED: ("✗", "red", "bad"), UNJUDGED: ("?", "yellow", "warned")}
# A larger limit is a mistake: 95 was meant as a percentage, and would always fail.
MOST = 10.0


@dataclass(frozen=True, kw_only=True)
class Gate:
    """`name`: throughput (by the clock), cpu or an experiment. It fails if the whole interval is beyond the limit."""

    name: str
    sign: str
    limit: float

    def __str__(self) -> str:
        return f"{self.name}{self.sign}{self.limit:g}"

    def fails(self, ratio: Interval) -> bool:
        """Whether the whole interval lies beyond the limit."""
        return {
            "<": ratio.high < self.limit,
            "<=": ratio.high <= self.limit,
            ">": ratio.low > self.limit,
            ">=": ratio.low >= self.limit,
        }[self.sign]


@dataclass(frozen=True, kw_only=True)
class GateVerdict:
    """A gate's verdict on report number `report` against the first; `detail`: the figures, or why there are none."""

    gate: str
    report: int
    outcome: str
    detail: str


def gates(texts: Sequence[str]) -> tuple[Gate, ...]:
    """Parse gates such as 'throughput<0.95'; raise UsageError if one is invalid, or if its limit makes no sense."""
    parsed = []
    for text in texts:
        match = GATE.fullmatch(text.strip())
        if match is None:
            raise UsageError(f"--fail-if {text!r} cannot be read", hint=EXAMPLES)
        limit = float(match[3])
        if not 0 < limit <= MOST:
            raise UsageError(
                f"--fail-if {text!r}: the limit must be a ratio, above 0 and at most {MOST:g}",
                hint=f"5 % slower is 0.95: {EXAMPLES}",
            )
        parsed.append(Gate(name=match[1], sign=match[2], limit=limit))
    return tuple(parsed)


def judge(comparison: ReportComparison, gates: Sequence[Gate]) -> tuple[GateVerdict, ...]:
    """Judge each report after the first by each gate.

    Raises UsageError if the first report lacks what a gate judges.
    """
    pairs = comparison.pairs
    known = dict.fromkeys(name for pair in pairs for name in (*pair.totals, *pair.unjudged))
    if unknown := [gate.name for gate in gates if gate.name not in known]:
        raise UsageError(f"--fail-if {unknown[0]}: report 1 did not measure that", hint=f"one of: {', '.join(known)}")
    return tuple(
        GateVerdict(gate=str(gate), report=number, outcome=outcome, detail=detail)
        for number, pair in enumerate(pairs, 2)
        for gate in gates
        for outcome, detail in [_judged(pair, gate)]
    )


def _judged(pair: ReportComparison, gate: Gate) -> tuple[str, str]:
    """Return the outcome, and the figures or why there are none."""
    ratio = pair.totals.get(gate.name)
    shown = intervals.interval_text(ratio)
    if ratio is None or gate.name in pair.unjudged:
        why = pair.unjudged.get(gate.name, "none of its rows counts")
        return UNJUDGED, f"{why} (the rows that count: {shown})" if shown else why
    if gate.fails(ratio):
        return FAILED, shown
    return PASSED, shown + _power(gate, ratio)


def _power(gate: Gate, ratio: Interval) -> str:
    """Say which true ratio this gate would catch, since a gate that nothing can fail is useless."""
    if gate.sign not in ("<", "<="):
        return ""
    return f"; a true x{gate.limit * intervals.detectable_slowdown(ratio):.2f} or less would fail in four of five runs"


def verdict_text(verdict: GateVerdict, count: int) -> str:
    """Return the verdict as a line, with the report's number if there are several."""
    report = f"report {verdict.report}: " if count > 1 else ""
    return f"{report}{verdict.gate}: {verdict.outcome}: {verdict.detail}"


def enforce(verdicts: Sequence[GateVerdict]) -> None:
    """Raise RegressionFound with the gates that fail or cannot be judged."""
    count = max((verdict.report for verdict in verdicts), default=2) - 1
    bad = [verdict for outcome in (FAILED, UNJUDGED) for verdict in verdicts if verdict.outcome == outcome]
    if not bad:
        return
    lines = "; ".join(verdict_text(verdict, count) for verdict in bad)
    if bad[0].outcome == FAILED:
        raise RegressionFound(lines, hint="confirm it on a quiet machine: invoke bench")
    raise RegressionFound(lines, hint="measure the same again with a longer --budget on a quiet machine: invoke bench")


# --- terminal --------------------------------------------------------------------------------------------------------


def show(comparison: ReportComparison, verdicts: Sequence[GateVerdict] = (), stream: IO[str] | None = None) -> None:
    """Print the reports side by side, then the verdicts of the gates, to `stream` (default: stdout)."""
    from rich.text import Text

    pairs = comparison.pairs
    parts: list[RenderableType] = [Text(f"1  {comparison.first}")]
    for number, pair in enumerate(pairs, 2):
        parts.append(Text(f"{number}  {pair.second}"))
        parts += [
            Text(f"   {name}: {ours or '-'} | {theirs or '-'}", "dim") for name, (ours, theirs) in pair.differs.items()
        ]
    table = terminal.table()
    heads = [head for number in range(2, len(pairs) + 2) for head in (f"{number} against 1", "CPU time")]
    for name in ("experiment", "case", "", *heads):
        table.add_column(name)
    for key, rows in side_by_side(comparison):
        table.add_row(*map(Text, (*key, *(cell for row in rows for cell in cells(row)))))
    parts.append(table)
    for name in dict.fromkeys(name for pair in pairs for name in pair.totals):
        ratios = "  ".join(intervals.interval_text(pair.totals.get(name)) or "-" for pair in pairs)
        parts.append(Text(f"{name:12}{ratios}"))
    parts += [Text(note, "dim") for note in notes(comparison)]
    for verdict in verdicts:
        sign, colour, _ = LOOKS[verdict.outcome]
        parts.append(Text(f"{sign} {verdict_text(verdict, len(pairs))}", colour))
    terminal.write(terminal.console(stream), parts)


def side_by_side(comparison: ReportComparison) -> list[tuple[tuple[str, str, str], list[ArmRatio | None]]]:
    """Return each arm with its row in every comparison (None: not measured in that report)."""
    tables = [{(row.experiment, row.case, row.arm): row for row in pair.rows} for pair in comparison.pairs]
    return [(key, [table.get(key) for table in tables]) for key in dict.fromkeys(key for t in tables for key in t)]


def cells(row: ArmRatio | None) -> tuple[str, str]:
    """Return the ratio by the clock, with the reason if it counts in no total, and that of CPU time."""
    if row is None:
        return "", ""
    why = f" ({row.left_out})" if row.left_out else ""
    return intervals.interval_text(row.wall) + why, intervals.interval_text(row.cpu)


def notes(comparison: ReportComparison) -> list[str]:
    """Return what else a reader has to know, each note once."""
    return list(dict.fromkeys(note for pair in comparison.pairs for note in pair.notes))
