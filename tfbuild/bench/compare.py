"""Reports side by side: hardware against hardware, image against image, release against release.

The first is what each of the others is held against. They were not taken in the same rounds, so that a machine's drift
is in the ratio; the interval is the widest that the two medians' own intervals allow, and a gate fails only where all
of it lies beyond the limit.
"""

import math
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import msgspec

from tfbuild.bench import report as reporting
from tfbuild.bench.charts import Line
from tfbuild.bench.evaluate import seconds_per_item
from tfbuild.bench.results import FASTER, NO_DIFFERENCE, SLOWER, ArmResult, BenchReport, CaseResult
from tfbuild.errors import RegressionFound, UsageError, fit
from tfbuild.proof import Interval
from tfbuild.verify import paired

GATE = re.compile(r"([a-z0-9]+) *(<=|<|>=|>) *(\d+(?:\.\d+)?)")
THROUGHPUT = "throughput"
# Labels that tell how an image was made; those of one build differ in them all from another's.
TELLING = ("release", "target", "python", "instruction-set", "copts", "compiler", "allocator", "onednn", "threading")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One arm in both reports: `ratio`: the first's time per item over the second's."""

    experiment: str
    case: str
    arm: str
    metric: str
    ratio: Interval


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """`throughput`: over all rows, and by experiment, as geometric means of the rows' ratios.

    `differs`: what sets the two apart, by name: the first's, the second's; `others`: the first report against each
    further one.
    """

    first: str
    second: str
    differs: dict[str, tuple[str, str]]
    rows: tuple[Row, ...]
    throughput: Interval
    experiments: dict[str, Interval]
    notes: tuple[str, ...]
    others: tuple["Comparison", ...] = ()

    @property
    def totals(self) -> dict[str, Interval]:
        """What a gate may ask for: throughput, and each experiment."""
        return {THROUGHPUT: self.throughput, **self.experiments}

    def line(self, name: str, number: int) -> Line | None:
        """One of the totals, to be drawn for report `number`; None where these two reports do not share it."""
        ratio = self.totals.get(name)
        return Line(label=f"{number}: {self.second}", ratio=ratio, effect=direction(ratio)) if ratio else None


def direction(ratio: Interval) -> str:
    """What the whole interval says, drift included."""
    if ratio.coverage < paired.CONFIDENCE or ratio.low <= 1 <= ratio.high:
        return NO_DIFFERENCE
    return FASTER if ratio.low > 1 else SLOWER


def compare(first: BenchReport, *others: BenchReport) -> Comparison:
    """What the first and each other measured alike; UsageError where that is nothing."""
    found = [_pair(first, other, number) for number, other in enumerate(others, 2)]
    return replace(found[0], others=tuple(found[1:]))


def _pair(first: BenchReport, second: BenchReport, number: int) -> Comparison:
    rows = tuple(_rows(first, second))
    if not rows:
        raise UsageError(
            f"reports 1 and {number} have no measurement in common", hint="run the same experiments for both"
        )
    names = dict.fromkeys(row.experiment for row in rows)
    return Comparison(
        first=_title(first),
        second=_title(second),
        differs=differences(first, second),
        rows=rows,
        throughput=_mean([row.ratio for row in rows]),
        experiments={name: _mean([row.ratio for row in rows if row.experiment == name]) for name in names},
        notes=tuple(_notes(first, second)),
    )


def differences(first: BenchReport, second: BenchReport) -> dict[str, tuple[str, str]]:
    """What sets two subjects apart: machine, image, release, how it was made."""
    ours, theirs = _subject(first), _subject(second)
    names = dict.fromkeys([*ours, *theirs])
    both = {name: (fit(ours.get(name, "")), fit(theirs.get(name, ""))) for name in names}
    return {name: pair for name, pair in both.items() if pair[0] != pair[1]}


def _subject(report: BenchReport) -> dict[str, str]:
    host, found, image = report.host, report.software, report.image
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
        **{f"label {name}": image.labels.get(f"io.tfbuild.{name}", "") for name in TELLING},
        "tool": report.tool,
    }


def _rows(first: BenchReport, second: BenchReport) -> list[Row]:
    there = {key: (case, arm) for key, case, arm in _arms(second)}
    found = []
    for key, case, arm in _arms(first):
        other = there.get(key)
        # The same work only: what a name stands for may differ between two versions of tfbuild.
        if other is None or (case.metric, arm.workload, arm.params) != (
            other[0].metric,
            other[1].workload,
            other[1].params,
        ):
            continue
        ours, theirs = seconds_per_item(case, arm), seconds_per_item(*other)
        if ours and theirs and min(ours.low, theirs.low) > 0:
            ratio = Interval(
                median=ours.median / theirs.median,
                low=ours.low / theirs.high,
                high=ours.high / theirs.low,
                coverage=min(ours.coverage, theirs.coverage),
            )
            found.append(Row(experiment=key[0], case=key[1], arm=key[2], metric=case.metric, ratio=ratio))
    return found


def _arms(report: BenchReport) -> list[tuple[tuple[str, str, str], CaseResult, ArmResult]]:
    """What was timed in the report's own image: an arm of --against's says nothing of it."""
    return [
        ((row.name, case.name, arm.name), case, arm)
        for row in report.experiments
        for case in row.cases
        for arm in case.arms
        if case.rounds and arm.seconds is not None and arm.image == report.image.id
    ]


def _mean(ratios: Sequence[Interval]) -> Interval:
    def mean(values: list[float]) -> float:
        return math.exp(sum(map(math.log, values)) / len(values))

    return Interval(
        median=mean([ratio.median for ratio in ratios]),
        low=mean([ratio.low for ratio in ratios]),
        high=mean([ratio.high for ratio in ratios]),
        coverage=min(ratio.coverage for ratio in ratios),
    )


def _title(report: BenchReport) -> str:
    return f"{report.image.ref} on {report.host.cpu} ({report.host.cpus} CPUs), TensorFlow {report.software.tensorflow}"


def _notes(first: BenchReport, second: BenchReport) -> list[str]:
    told = [f"{report.image.ref}, {report.created}: {reporting.noise(report)}" for report in (first, second)]
    if first.host.cpu != second.host.cpu or first.host.cpus != second.host.cpus:
        told.append("two machines: the ratios are of machine and image together")
    else:
        told.append("one after the other, not in the same rounds: a shared machine's drift is in the ratios")
    return told


# --- the gate --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Gate:
    """`name`: throughput (of everything) or an experiment; fails where all of its interval is beyond the limit.

    Too few rounds for 95 % confidence fail nothing.
    """

    name: str
    sign: str
    limit: float

    def fails(self, ratio: Interval) -> bool:
        return (
            ratio.coverage >= paired.CONFIDENCE
            and {
                "<": ratio.high < self.limit,
                "<=": ratio.high <= self.limit,
                ">": ratio.low > self.limit,
                ">=": ratio.low >= self.limit,
            }[self.sign]
        )


def gates(texts: Sequence[str]) -> tuple[Gate, ...]:
    """'throughput<0.95' as a gate; UsageError where one cannot be read."""
    found = []
    for text in texts:
        read = GATE.fullmatch(text.strip())
        if read is None:
            raise UsageError(f"--fail-if {text!r} cannot be read", hint="--fail-if 'throughput<0.95', or 'jpeg<0.9'")
        found.append(Gate(name=read[1], sign=read[2], limit=float(read[3])))
    return tuple(found)


def apply(found: Comparison, wanted: Sequence[Gate]) -> None:
    """RegressionFound with the gates that fail; UsageError where one asks for what no other report shares."""
    every = (found, *found.others)
    known = dict.fromkeys(name for one in every for name in one.totals)
    if unknown := [gate.name for gate in wanted if gate.name not in known]:
        raise UsageError(f"--fail-if {unknown[0]}: the reports do not share that", hint=f"one of: {', '.join(known)}")
    failed = [told for number, one in enumerate(every, 2) for told in _failures(one, number, wanted, len(every))]
    if failed:
        told = "; ".join(failed)
        raise RegressionFound(told, hint="measure again on a quiet machine before it is believed: invoke bench")


def _failures(one: Comparison, number: int, wanted: Sequence[Gate], count: int) -> Iterator[str]:
    whose = f"report {number}: " if count > 1 else ""
    for gate in wanted:
        ratio = one.totals.get(gate.name)
        if ratio and gate.fails(ratio):
            yield f"{whose}{gate.name} {reporting.spelled(ratio)} {gate.sign} {gate.limit:g}"


# --- what is printed -------------------------------------------------------------------------------------------------


def show(found: Comparison, stream: IO[str] | None = None) -> None:
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
    for name in ("experiment", "case", "", "time", *(f"{number} against 1" for number in range(2, len(every) + 2))):
        table.add_column(name)
    for key, ratios in side_by_side(found):
        table.add_row(*map(Text, (*key, *map(reporting.spelled, ratios))))
    console.print(table)
    for name in dict.fromkeys(name for one in every for name in one.totals):
        console.print(Text(f"{name:12}" + "  ".join(reporting.spelled(one.totals.get(name)) or "-" for one in every)))
    for note in dict.fromkeys(note for one in every for note in one.notes):
        console.print(Text(note, "dim"))


def side_by_side(found: Comparison) -> list[tuple[tuple[str, str, str, str], list[Interval | None]]]:
    """Each arm with its ratio in every comparison (None: not measured in that report)."""
    every = (found, *found.others)
    tables = [{(row.experiment, row.case, row.arm, row.metric): row.ratio for row in one.rows} for one in every]
    return [(key, [table.get(key) for table in tables]) for key in dict.fromkeys(key for t in tables for key in t)]


def run(paths: Sequence[str], fail_if: Sequence[str], html: str, *, json: bool) -> None:
    """`invoke compare`: prints, writes the page where one is asked for, then judges."""
    if len(paths) < 2:
        raise UsageError(
            "one report is nothing to compare", hint="two reports/bench-*.json or more, the baseline first"
        )
    wanted = gates(fail_if)
    found = compare(*(reporting.read(Path(path)) for path in paths))
    if html:
        from tfbuild.bench import page

        page.write(page.comparison(found), Path(html))
    if json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n")
    else:
        show(found)
    apply(found, wanted)
