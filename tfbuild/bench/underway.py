"""An experiment while it is measured: its cases, alone or in turns, and what they have come to so far."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from tfbuild.bench import findings
from tfbuild.measure import pooled, records
from tfbuild.measure.arms import Machine
from tfbuild.measure.experiments import Case, Experiment
from tfbuild.measure.records import CaseResult, ExperimentResult, Finding
from tfbuild.measure.rounds import CaseRun
from tfbuild.measure.workers import Pool

# Of a case's whole time, where few rounds are missing: its workers start again, and its workloads are built again.
LEAST_PART = 0.25


@dataclass
class Group:
    """Cases that take turns in each round, or one alone. `made`: as they are measured; `told`: what that came to."""

    row: Experiment
    cases: tuple[Case, ...]
    made: list[CaseRun] = field(default_factory=list)
    told: list[CaseResult] = field(default_factory=list)

    @property
    def cut(self) -> bool:
        """Whether it was time that a case, or an arm of one, had too little of."""
        return any(records.TRUNCATED in (case.status, *(arm.status for arm in case.arms)) for case in self.told)

    @property
    def gained(self) -> tuple[int, int]:
        """Arms with a number and rounds, of which more are better."""
        return _gained(self.told)

    def begin(self, machine: Machine, pool: Pool, tell: Callable[[str], None]) -> list[CaseRun]:
        """Comparisons that only need time go on where they were; where an arm was never ready, all are made anew."""
        if not self.made or not all(one.goes_on() for one in self.made):
            return [CaseRun(row=self.row, case=case, machine=machine, pool=pool, tell=tell) for case in self.cases]
        for one in self.made:
            one.resume(tell)
        return self.made

    def keep(self, made: list[CaseRun], *, interrupted: bool = False) -> None:
        """What they came to, unless more was known before."""
        told = [one.result(interrupted=interrupted) for one in made]
        if not self.told or _gained(told) > self.gained:
            self.made, self.told = made, told

    def not_begun(self, machine: Machine) -> None:
        """The time was over; where something else is missing too, that is the reason that more time would not mend."""
        self.told = [_not_begun(self.row, case, machine) for case in self.cases]

    def missing(self, rounds: int) -> float:
        """Seconds for what is not there of so many `rounds`, by the row's weight."""
        done = min((len(case.rounds) for case in self.told if case.status == records.TRUNCATED), default=0)
        return sum(map(self.row.seconds, self.cases)) * max(LEAST_PART, 1 - done / rounds)


def _gained(told: Sequence[CaseResult]) -> tuple[int, int]:
    arms = [arm for case in told for arm in case.arms]
    return sum(arm.status == records.MEASURED for arm in arms), sum(len(case.rounds) for case in told)


@dataclass
class Underway:
    """`status` and `reason`: why it has no case to tell of, where it has none; `seen`: beside the times."""

    row: Experiment
    groups: list[Group]
    seen: list[Finding] = field(default_factory=list)
    seconds: float = 0.0
    status: str = ""
    reason: str = ""

    def cases(self) -> Iterator[CaseResult]:
        for group in self.groups:
            yield from group.told

    def result(self) -> ExperimentResult:
        cases = tuple(self.cases())
        status, reason = (self.status, self.reason) if self.status else _outcome(cases)
        mean = pooled.findings(cases) if self.row.together else ()
        return ExperimentResult(
            name=self.row.name,
            question=self.row.question,
            compares=self.row.compares,
            changes=self.row.changes,
            source=self.row.source,
            status=status,
            reason=reason,
            seconds=round(self.seconds, 1),
            cases=cases,
            findings=(*findings.of(self.row.finding, cases), *mean, *self.seen),
        )


def _outcome(cases: Sequence[CaseResult]) -> tuple[str, str]:
    """The experiment's status: the best of what its cases have, and the reason where nothing was measured."""
    told = [case.status for case in cases]
    for status in (records.MEASURED, records.TRUNCATED):
        if any(case.status == status and case.rounds for case in cases):
            return (records.TRUNCATED if records.TRUNCATED in told else records.MEASURED), ""
    first = cases[0] if cases else None
    return (first.status, first.reason) if first else (records.SKIPPED, "it has no case")


def _not_begun(row: Experiment, case: Case, machine: Machine) -> CaseResult:
    lacks = machine.lacks(row, case)
    return CaseResult(
        name=case.name,
        metric=case.metric or row.metric,
        status=records.SKIPPED if lacks else records.TRUNCATED,
        reason=lacks or "the experiment's time was over before it began",
        baseline=machine.fill(row.arms(case)[0].name),
        arms=(),
    )
