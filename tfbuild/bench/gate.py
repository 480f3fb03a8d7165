"""`compare --fail-if`: a limit that a comparison may not go beyond, and that is never kept by what is missing."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tfbuild.errors import RegressionFound, UsageError
from tfbuild.measure import intervals, means
from tfbuild.measure.records import Interval

GATE = re.compile(r"([a-z0-9]+) *(<=|<|>=|>) *(\d+(?:\.\d+)?)")
EXAMPLES = "--fail-if 'throughput<0.95', 'cpu<0.95' or 'jpeg<0.9'"
PASSED, FAILED, UNJUDGED = "passed", "failed", "cannot be judged"
# Ratios beyond it are no comparison's: 95 is meant as a share, and would always fail.
MOST = 10.0


@dataclass(frozen=True, kw_only=True)
class Gate:
    """`name`: throughput (by the clock), cpu or an experiment; fails where all of its interval is beyond the limit."""

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
    """What gates judge of one report against the first; `unjudged`: by a total's name, why no gate may go by it."""

    ratios: Mapping[str, Interval]
    unjudged: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class GateVerdict:
    """What a gate says of report `report` against the first; `told`: the figures, or why there are none."""

    gate: str
    report: int
    outcome: str
    told: str


def gates(texts: Sequence[str]) -> tuple[Gate, ...]:
    """'throughput<0.95' as a gate; UsageError where one cannot be read, or no ratio could ever keep or miss it."""
    found = []
    for text in texts:
        read = GATE.fullmatch(text.strip())
        if read is None:
            raise UsageError(f"--fail-if {text!r} cannot be read", hint=EXAMPLES)
        limit = float(read[3])
        if not 0 < limit <= MOST:
            raise UsageError(
                f"--fail-if {text!r}: a limit is a ratio, above 0 and at most {MOST:g}",
                hint=f"a twentieth slower is 0.95: {EXAMPLES}",
            )
        found.append(Gate(name=read[1], sign=read[2], limit=limit))
    return tuple(found)


def judge(every: Sequence[Totals], wanted: Sequence[Gate]) -> tuple[GateVerdict, ...]:
    """Judge each further report by each gate.

    Raises UsageError where a gate asks for what the first report has not.
    """
    known = dict.fromkeys(name for one in every for name in (*one.ratios, *one.unjudged))
    if unknown := [gate.name for gate in wanted if gate.name not in known]:
        raise UsageError(f"--fail-if {unknown[0]}: report 1 did not measure that", hint=f"one of: {', '.join(known)}")
    return tuple(_judged(one, number, gate) for number, one in enumerate(every, 2) for gate in wanted)


def _judged(one: Totals, number: int, gate: Gate) -> GateVerdict:
    ratio = one.ratios.get(gate.name)
    if ratio is None or gate.name in one.unjudged:
        why = one.unjudged.get(gate.name, "no row of it counts")
        seen = f" (the rows that count: {intervals.spelled(ratio)})" if ratio else ""
        return GateVerdict(gate=str(gate), report=number, outcome=UNJUDGED, told=f"{why}{seen}")
    if gate.fails(ratio):
        return GateVerdict(gate=str(gate), report=number, outcome=FAILED, told=intervals.spelled(ratio))
    return GateVerdict(
        gate=str(gate), report=number, outcome=PASSED, told=intervals.spelled(ratio) + _power(gate, ratio)
    )


def _power(gate: Gate, ratio: Interval) -> str:
    """A gate that nothing fails is none: from where on it would."""
    if gate.sign not in ("<", "<="):
        return ""
    return f"; a true x{gate.limit * means.smallest(ratio):.2f} or less would fail, four times of five"


def spelled(one: GateVerdict, count: int) -> str:
    """A line for whoever reads; the report's number only where there are several."""
    whose = f"report {one.report}: " if count > 1 else ""
    return f"{whose}{one.gate}: {one.outcome}: {one.told}"


def enforce(judged: Sequence[GateVerdict]) -> None:
    """RegressionFound with the gates that fail and those that cannot be judged: what is not known is not passed."""
    count = max((one.report for one in judged), default=2) - 1
    bad = [one for outcome in (FAILED, UNJUDGED) for one in judged if one.outcome == outcome]
    if not bad:
        return
    told = "; ".join(spelled(one, count) for one in bad)
    if bad[0].outcome == FAILED:
        raise RegressionFound(told, hint="measure again on a quiet machine before it is believed: invoke bench")
    raise RegressionFound(
        told, hint="measure the same again, with time enough (--budget) and nothing beside it: invoke bench"
    )
