"""`compare --fail-if`: limits that a comparison must keep; missing measurements never pass one."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tfbuild.errors import RegressionFound, UsageError
from tfbuild.measure import intervals, mean_ratio
from tfbuild.measure.records import Interval

GATE = re.compile(r"([a-z0-9]+) *(<=|<|>=|>) *(\d+(?:\.\d+)?)")
EXAMPLES = "--fail-if 'throughput<0.95', 'cpu<0.95' or 'jpeg<0.9'"
PASSED, FAILED, UNJUDGED = "passed", "failed", "cannot be judged"
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
        return {
            "<": ratio.high < self.limit,
            "<=": ratio.high <= self.limit,
            ">": ratio.low > self.limit,
            ">=": ratio.low >= self.limit,
        }[self.sign]


@dataclass(frozen=True, kw_only=True)
class Totals:
    """The totals of one report against the first; `unjudged`: by the total's name, why no gate may judge it."""

    ratios: Mapping[str, Interval]
    unjudged: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class GateVerdict:
    """A gate's verdict on report number `report` against the first; `told`: the figures, or why there are none."""

    gate: str
    report: int
    outcome: str
    told: str


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


def judge(reports: Sequence[Totals], gates: Sequence[Gate]) -> tuple[GateVerdict, ...]:
    """Judge each report after the first by each gate.

    Raises UsageError if the first report lacks what a gate judges.
    """
    known = dict.fromkeys(name for totals in reports for name in (*totals.ratios, *totals.unjudged))
    if unknown := [gate.name for gate in gates if gate.name not in known]:
        raise UsageError(f"--fail-if {unknown[0]}: report 1 did not measure that", hint=f"one of: {', '.join(known)}")
    return tuple(_judged(totals, number, gate) for number, totals in enumerate(reports, 2) for gate in gates)


def _judged(totals: Totals, number: int, gate: Gate) -> GateVerdict:
    ratio = totals.ratios.get(gate.name)
    if ratio is None or gate.name in totals.unjudged:
        why = totals.unjudged.get(gate.name, "none of its rows counts")
        counted = f" (the rows that count: {intervals.spelled(ratio)})" if ratio else ""
        return GateVerdict(gate=str(gate), report=number, outcome=UNJUDGED, told=f"{why}{counted}")
    if gate.fails(ratio):
        return GateVerdict(gate=str(gate), report=number, outcome=FAILED, told=intervals.spelled(ratio))
    return GateVerdict(
        gate=str(gate), report=number, outcome=PASSED, told=intervals.spelled(ratio) + _power(gate, ratio)
    )


def _power(gate: Gate, ratio: Interval) -> str:
    """Say which true ratio this gate would catch, since a gate that nothing can fail is useless."""
    if gate.sign not in ("<", "<="):
        return ""
    return f"; a true x{gate.limit * mean_ratio.smallest(ratio):.2f} or less would fail in four of five runs"


def spelled(verdict: GateVerdict, count: int) -> str:
    """Return the verdict as a line, with the report's number if there are several."""
    report = f"report {verdict.report}: " if count > 1 else ""
    return f"{report}{verdict.gate}: {verdict.outcome}: {verdict.told}"


def enforce(verdicts: Sequence[GateVerdict]) -> None:
    """Raise RegressionFound with the gates that fail or cannot be judged."""
    count = max((verdict.report for verdict in verdicts), default=2) - 1
    bad = [verdict for outcome in (FAILED, UNJUDGED) for verdict in verdicts if verdict.outcome == outcome]
    if not bad:
        return
    lines = "; ".join(spelled(verdict, count) for verdict in bad)
    if bad[0].outcome == FAILED:
        raise RegressionFound(lines, hint="confirm it on a quiet machine: invoke bench")
    raise RegressionFound(lines, hint="measure the same again with a longer --budget on a quiet machine: invoke bench")
