"""Reports side by side: hardware against hardware, image against image, release against release.

The first is what each of the others is held against. They were not taken in the same rounds, so that what a machine did
to one run as a whole is in the ratios, and nothing in two reports tells it from the image's own; only where both
measured another image of the same id in the same rounds, on equal machines, is its time taken as the measure of both.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import IO

from tfbuild.bench import common, gate, wording
from tfbuild.bench.common import TOO_FEW, ArmRatio, Lack, TimedArm
from tfbuild.context.labels import read_labels
from tfbuild.errors import UsageError, fit
from tfbuild.measure import intervals, means
from tfbuild.measure.means import CaseRatio
from tfbuild.measure.records import FASTER, NO_DIFFERENCE, SLOWER, BenchReport, Interval

THROUGHPUT, CPU = "throughput", "cpu"
# Of what the first report measured: with more lost, what is left could hide as much as a gate is to find.
MOST_LOST = 0.1
# Reasons that are spelled out.
MOST_TOLD = 3
NO_CPU = "no CPU time"
ONE_RUN = "both reports are of the same run, sample by sample"
# Labels that tell how an image was made; those of one build differ in them all from another's.
TELLING = ("release", "target", "python", "instruction-set", "copts", "compiler", "allocator", "onednn", "threading")


@dataclass(frozen=True, kw_only=True)
class ReportComparison:
    """`throughput` (by the clock), `cpu` (CPU time) and, by the clock, `experiments`: means of the rows that count.

    A total without such rows is None, or not there. `differs`: what sets the two apart, by name: the first's, the
    second's; `lacks`: what only the first measured, `more`: what only the second did; `unjudged`: by a total's name,
    why a gate cannot go by it; `smallest`: by name, the slowdown that its interval shows four times of five; `others`:
    the first report against each further one.
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
    def totals(self) -> dict[str, Interval]:
        """What there is to show and to judge: throughput, CPU time, and each experiment."""
        both = {THROUGHPUT: self.throughput, CPU: self.cpu}
        return {name: ratio for name, ratio in both.items() if ratio} | self.experiments


def direction(ratio: Interval) -> str:
    """What the whole interval says, drift included."""
    if ratio.coverage < intervals.CONFIDENCE or ratio.low <= 1 <= ratio.high:
        return NO_DIFFERENCE
    return FASTER if ratio.low > 1 else SLOWER


def compare(first: BenchReport, *others: BenchReport) -> ReportComparison:
    """What the first and each other measured alike; UsageError where that is nothing."""
    found = [_pair(first, other, number) for number, other in enumerate(others, 2)]
    return replace(found[0], others=tuple(found[1:]))


def _pair(first: BenchReport, second: BenchReport, number: int) -> ReportComparison:
    shared = common.shared(first, second)
    rows = tuple(row for one in shared.both if (row := common.row(first, second, *one)))
    if not rows:
        raise UsageError(
            f"reports 1 and {number} have no measurement in common", hint="run the same experiments for both"
        )
    lacks = (*shared.lacks, *_timeless(shared.both, rows))
    names = dict.fromkeys([*(row.experiment for row in rows), *(lack.experiment for lack in lacks)])
    counting = [row for row in rows if not row.left_out]
    made = ReportComparison(
        first=_title(first),
        second=_title(second),
        differs=differences(first, second),
        rows=rows,
        throughput=_total(counting),
        cpu=_total(counting, CPU),
        experiments=_experiments(names, counting),
        lacks=lacks,
        more=shared.more,
        unjudged=_unjudged(names, rows, lacks, ONE_RUN if first.experiments == second.experiments else ""),
        smallest={},
        notes=(),
    )
    made = replace(made, smallest={name: round(means.smallest(ratio), 4) for name, ratio in made.totals.items()})
    return replace(made, notes=tuple(_notes(first, second, made, number)))


def differences(first: BenchReport, second: BenchReport) -> dict[str, tuple[str, str]]:
    """What sets two subjects apart: machine, image, release, how it was made."""
    ours, theirs = _subject(first), _subject(second)
    names = dict.fromkeys([*ours, *theirs])
    both = {name: (fit(ours.get(name, "")), fit(theirs.get(name, ""))) for name in names}
    return {name: pair for name, pair in both.items() if pair[0] != pair[1]}


def _subject(report: BenchReport) -> dict[str, str]:
    host, found, image = report.host, report.software, report.image
    labels = read_labels(image.labels)
    return {
        "CPU": host.cpu,
        "CPUs": str(host.cpus),
        "cgroup quota": f"{host.quota:g}" if host.quota else "",
        "memory": f"{host.memory} MiB",
        "kernel": host.kernel,
        "image": image.ref,
        "image's id": image.id,
        "TensorFlow": found.tensorflow,
        "compiled by": found.compiler,
        "Python": found.python,
        "NumPy": found.numpy,
        "malloc of": found.malloc,
        **{f"label {name}": labels.get(name) for name in TELLING},
        "tool": report.tool,
    }


# --- totals ----------------------------------------------------------------------------------------------------------


def _timeless(both: Sequence[tuple[TimedArm, TimedArm]], rows: Sequence[ArmRatio]) -> Iterator[Lack]:
    """What both have without a ratio to show for it."""
    found = {(row.experiment, row.case, row.arm) for row in rows}
    for ours, _ in both:
        if ours.key not in found:
            experiment, case, arm = ours.key
            yield Lack(experiment=experiment, case=case, arm=arm, why=TOO_FEW)


def _total(rows: Iterable[ArmRatio], metric: str = "") -> Interval | None:
    """By the clock, or of CPU time."""
    timed = [(row, row.cpu if metric == CPU else row.wall) for row in rows]
    return means.total(
        [CaseRatio(experiment=row.experiment, case=row.case, ratio=ratio) for row, ratio in timed if ratio]
    )


def _experiments(names: Iterable[str], rows: Sequence[ArmRatio]) -> dict[str, Interval]:
    """By the clock. What is held against another image throughout does not drift as the others do."""
    its = {name: [row for row in rows if row.experiment == name] for name in names}
    found = {name: ratio for name, rows in its.items() if (ratio := _total(rows))}
    return {
        name: ratio
        if all(row.held for row in its[name])
        else means.widened(ratio, [other for one, other in found.items() if one != name])
        for name, ratio in found.items()
    }


def _unjudged(names: Iterable[str], rows: Sequence[ArmRatio], lacks: Sequence[Lack], every: str) -> dict[str, str]:
    """By total's name, why no gate may go by it; `every`: why by none at all, if so."""
    if every:
        return dict.fromkeys((THROUGHPUT, CPU, *names), every)
    told = {
        THROUGHPUT: _trouble([row.left_out for row in rows], lacks),
        CPU: _trouble([row.left_out or ("" if row.cpu else NO_CPU) for row in rows], lacks),
    }
    for name in names:
        its = [row.left_out for row in rows if row.experiment == name]
        told[name] = _trouble(its, [lack for lack in lacks if lack.experiment == name])
    return {name: why for name, why in told.items() if why}


def _trouble(left_out: Sequence[str], lacks: Sequence[Lack]) -> str:
    """Empty where enough of what the first report measured counts, and nothing of it broke."""
    reasons = [*filter(None, left_out), *(lack.why for lack in lacks)]
    every = len(left_out) + len(lacks)
    broken = [lack for lack in lacks if lack.broken]
    if broken:
        first = f"{broken[0].experiment}: {broken[0].case}: {broken[0].arm}"
        return f"{len(broken)} of {every} rows broke, first {fit(first)} ({_counted(lack.why for lack in broken)})"
    if len(reasons) > MOST_LOST * every:
        return f"{len(reasons)} of {every} rows do not count: {_counted(reasons)}"
    return ""


def _counted(words: Iterable[str]) -> str:
    """Each with how often it comes, the most frequent first."""
    told = Counter(words).most_common()
    rest = sum(number for _, number in told[MOST_TOLD:])
    shown = [f"{number} {fit(word)}" for word, number in told[:MOST_TOLD]]
    return ", ".join([*shown, f"{rest} for other reasons"] if rest else shown)


def _title(report: BenchReport) -> str:
    return f"{report.image.ref} on {report.host.cpu} ({report.host.cpus} CPUs), TensorFlow {report.software.tensorflow}"


def _notes(first: BenchReport, second: BenchReport, made: ReportComparison, number: int) -> Iterator[str]:
    for report in (first, second):
        yield f"{report.image.ref}, {report.created}: {wording.noise(report)}"
    if first.experiments == second.experiments:
        yield f"report {number}: {ONE_RUN}"
    if left := [row.left_out for row in made.rows if row.left_out]:
        yield f"report {number}: {len(left)} of {len(made.rows)} shared rows count in no total: {_counted(left)}"
    lost = Counter(lack.experiment for lack in made.lacks)
    every = lost + Counter(row.experiment for row in made.rows)
    if lost:
        told = ", ".join(f"{name} {count} of {every[name]}" for name, count in lost.items())
        yield f"report {number} lacks {lost.total()} of the {every.total()} rows that report 1 has: {told}"
    if more := Counter(lack.experiment for lack in made.more):
        told = ", ".join(f"{name} {count}" for name, count in more.items())
        yield f"only report {number} has {more.total()} rows more: {told}"
    if broken := [lack for lack in made.lacks if lack.broken]:
        yield f"report {number}: {_trouble([], broken)}"
    if slower := [name for name, ratio in made.experiments.items() if direction(ratio) == SLOWER]:
        yield f"report {number}: slower by all of its interval: {', '.join(slower)}"
    if shows := [f"{name} x{made.smallest[name]:.2f}" for name in (THROUGHPUT, CPU) if name in made.smallest]:
        yield f"report {number}: the smallest slowdown that shows, four times of five: {', '.join(shows)}"
    yield from _drift(first, second, made, number)


def _drift(first: BenchReport, second: BenchReport, made: ReportComparison, number: int) -> Iterator[str]:
    held = sum(bool(row.held) for row in made.rows)
    if held:
        yield f"report {number}: {held} of {len(made.rows)} rows are held against the same other image in their rounds"
    if first.host.cpu != second.host.cpu or first.host.cpus != second.host.cpus:
        yield "two machines: the ratios are of machine and image together"
    elif held < len(made.rows):
        yield (
            "one after the other, not in the same rounds: what a shared machine did to a whole run is in the ratios "
            "and in no interval (invoke bench --only isa --against IMAGE, in both, takes it out)"
        )


# --- what is printed -------------------------------------------------------------------------------------------------


def show(found: ReportComparison, judged: Sequence[gate.GateVerdict] = (), stream: IO[str] | None = None) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    every = (found, *found.others)
    stream = stream or sys.stdout
    console = Console(file=stream, width=None if stream.isatty() else 140, soft_wrap=False, highlight=False)
    console.print(Text(f"1  {found.first}"))
    for number, one in enumerate(every, 2):
        console.print(Text(f"{number}  {one.second}"))
        for name, (ours, theirs) in one.differs.items():
            console.print(Text(f"   {name}: {ours or '-'} | {theirs or '-'}", "dim"))
    table = Table(box=None, pad_edge=False)
    heads = [head for number in range(2, len(every) + 2) for head in (f"{number} against 1", "CPU time")]
    for name in ("experiment", "case", "", *heads):
        table.add_column(name)
    for key, rows in side_by_side(found):
        table.add_row(*map(Text, (*key, *(cell for row in rows for cell in cells(row)))))
    console.print(table)
    for name in dict.fromkeys(name for one in every for name in one.totals):
        console.print(Text(f"{name:12}" + "  ".join(intervals.spelled(one.totals.get(name)) or "-" for one in every)))
    for note in notes(found):
        console.print(Text(note, "dim"))
    for verdict in judged:
        console.print(Text(gate.spelled(verdict, len(every))))


def judgeable(found: ReportComparison) -> tuple[gate.Totals, ...]:
    """The totals that gates judge, a report each."""
    return tuple(gate.Totals(ratios=one.totals, unjudged=one.unjudged) for one in (found, *found.others))


def side_by_side(found: ReportComparison) -> list[tuple[tuple[str, str, str], list[ArmRatio | None]]]:
    """Each arm with its row in every comparison (None: not measured in that report)."""
    every = (found, *found.others)
    tables = [{(row.experiment, row.case, row.arm): row for row in one.rows} for one in every]
    return [(key, [table.get(key) for table in tables]) for key in dict.fromkeys(key for t in tables for key in t)]


def cells(row: ArmRatio | None) -> tuple[str, str]:
    """By the clock, with the reason where it counts in no total, and of CPU time."""
    if row is None:
        return "", ""
    return intervals.spelled(row.wall) + (f" ({row.left_out})" if row.left_out else ""), intervals.spelled(row.cpu)


def notes(found: ReportComparison) -> list[str]:
    return list(dict.fromkeys(note for one in (found, *found.others) for note in one.notes))
