"""Two reports side by side: hardware against hardware, image against image, release against release.

They were not taken in the same rounds, so that a machine's drift is in the ratio; the interval is the widest that the
two medians' own intervals allow, and a gate fails only where all of it lies beyond the limit.
"""

import math
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec

from tfbuild.bench import report as reporting
from tfbuild.bench.evaluate import cpu, interval, wall
from tfbuild.bench.results import ArmResult, BenchReport, CaseResult, Sample
from tfbuild.errors import RegressionFound, UsageError
from tfbuild.proof import Interval
from tfbuild.verify import paired

GATE = re.compile(r"([a-z0-9]+) *(<=|<|>=|>) *(\d+(?:\.\d+)?)")
THROUGHPUT = "throughput"
TIMES: dict[str, Callable[[Sample], float]] = {"cpu": cpu, "wall": wall}


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
    """`throughput`: over all rows, and by experiment, as geometric means of the rows' ratios."""

    first: str
    second: str
    rows: tuple[Row, ...]
    throughput: Interval
    experiments: dict[str, Interval]
    notes: tuple[str, ...]


def compare(first: BenchReport, second: BenchReport) -> Comparison:
    """What both measured alike; UsageError where that is nothing."""
    rows = tuple(row for row in _rows(first, second))
    if not rows:
        raise UsageError("the two reports have no measurement in common", hint="run the same experiments for both")
    names = dict.fromkeys(row.experiment for row in rows)
    return Comparison(
        first=_title(first),
        second=_title(second),
        rows=rows,
        throughput=_mean([row.ratio for row in rows]),
        experiments={name: _mean([row.ratio for row in rows if row.experiment == name]) for name in names},
        notes=tuple(_notes(first, second)),
    )


def _rows(first: BenchReport, second: BenchReport) -> list[Row]:
    there = {key: (case, arm) for key, case, arm in _arms(second)}
    found = []
    for key, case, arm in _arms(first):
        other = there.get(key)
        # The same work only: what a name stands for may differ between two versions of tfbuild.
        if other is None or (arm.workload, arm.params) != (other[1].workload, other[1].params):
            continue
        ours, theirs = _seconds(case, arm), _seconds(*other)
        if ours and theirs:
            ratio = Interval(
                median=ours.median / theirs.median,
                low=ours.low / theirs.high,
                high=ours.high / theirs.low,
                coverage=min(ours.coverage, theirs.coverage),
            )
            found.append(Row(experiment=key[0], case=key[1], arm=key[2], metric=case.metric, ratio=ratio))
    return found


def _arms(report: BenchReport) -> list[tuple[tuple[str, str, str], CaseResult, ArmResult]]:
    return [
        ((row.name, case.name, arm.name), case, arm)
        for row in report.experiments
        for case in row.cases
        for arm in case.arms
        if case.rounds and arm.seconds is not None
    ]


def _seconds(case: CaseResult, arm: ArmResult) -> Interval | None:
    """An interval of the median of seconds per item, in the case's metric, over all rounds."""
    time = TIMES[case.metric]
    return interval([time(row.samples[arm.name]) / arm.items for row in case.rounds if arm.name in row.samples])


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
    told = [f"{name}: {reporting.noise(report)}" for name, report in (("first", first), ("second", second))]
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
    """RegressionFound with the gates that fail; UsageError where one asks for what was not measured in both."""
    known = {THROUGHPUT: found.throughput, **found.experiments}
    if unknown := [gate.name for gate in wanted if gate.name not in known]:
        raise UsageError(f"--fail-if {unknown[0]}: the reports do not share that", hint=f"one of: {', '.join(known)}")
    failed = [gate for gate in wanted if gate.fails(known[gate.name])]
    if failed:
        told = "; ".join(f"{g.name} {reporting.spelled(known[g.name])} {g.sign} {g.limit:g}" for g in failed)
        raise RegressionFound(told, hint="measure again on a quiet machine before it is believed: invoke bench")


# --- what is printed -------------------------------------------------------------------------------------------------


def show(found: Comparison, stream: IO[str] | None = None) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    stream = stream or sys.stdout
    console = Console(file=stream, width=None if stream.isatty() else 140, soft_wrap=False, highlight=False)
    console.print(Text(f"first   {found.first}\nsecond  {found.second}"))
    table = Table(box=None, pad_edge=False)
    for name in ("experiment", "case", "", "time", "second against first"):
        table.add_column(name)
    for row in found.rows:
        told = (row.experiment, row.case, row.arm, row.metric, reporting.spelled(row.ratio))
        table.add_row(*map(Text, told))
    console.print(table)
    for name, ratio in {**found.experiments, THROUGHPUT: found.throughput}.items():
        console.print(Text(f"{name:12}{reporting.spelled(ratio)}"))
    for note in found.notes:
        console.print(Text(note, "dim"))


def run(first: str, second: str, fail_if: Sequence[str], *, json: bool) -> None:
    """`invoke compare`: prints, then judges."""
    wanted = gates(fail_if)
    found = compare(reporting.read(Path(first)), reporting.read(Path(second)))
    if json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n")
    else:
        show(found)
    apply(found, wanted)
