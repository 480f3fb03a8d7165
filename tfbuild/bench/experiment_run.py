"""An experiment that is being measured: its cases, one by one or in turns, and their results so far."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from tfbuild.bench import findings
from tfbuild.measure import evaluate, records
from tfbuild.measure.experiments import Case, Experiment
from tfbuild.measure.records import CaseResult, ExperimentResult, Finding
from tfbuild.measure.rounds import CaseRun
from tfbuild.measure.sides import Machine
from tfbuild.measure.workers import Pool

# The least share of a case's time, even if few rounds are missing: workers start and build their workloads again.
LEAST_PART = 0.25


@dataclass
class CaseGroup:
    """One case, or cases that take turns in each round. `runs`: their measurement; `results`: what is known so far."""

    row: Experiment
    cases: tuple[Case, ...]
    runs: list[CaseRun] = field(default_factory=list)
    results: list[CaseResult] = field(default_factory=list)

    @property
    def cut(self) -> bool:
        """Whether a case, or an arm of one, had too little time."""
        return any(records.TRUNCATED in (case.status, *(arm.status for arm in case.arms)) for case in self.results)

    @property
    def progress(self) -> tuple[int, int]:
        """Return the numbers of measured arms and of rounds."""
        return _progress(self.results)

    def begin(self, machine: Machine, pool: Pool, tell: Callable[[str], None]) -> list[CaseRun]:
        """Resume runs that only lack time; start all anew if an arm was never ready."""
        if not self.runs or not all(run.only_lacks_time() for run in self.runs):
            return [CaseRun(row=self.row, case=case, machine=machine, pool=pool, tell=tell) for case in self.cases]
        for run in self.runs:
            run.resume(tell)
        return self.runs

    def keep(self, runs: list[CaseRun], *, interrupted: bool = False) -> None:
        """Keep the results of these runs, unless more was known before."""
        results = [run.result(interrupted=interrupted) for run in runs]
        if not self.results or _progress(results) > self.progress:
            self.runs, self.results = runs, results

    def not_begun(self, machine: Machine) -> None:
        """Record why the cases were not begun: they cannot run on this machine, or no time was left."""
        self.results = [_not_begun(self.row, case, machine) for case in self.cases]

    def missing(self, rounds: int) -> float:
        """Return the seconds that the cases still need for `rounds` rounds, by the row's weight."""
        done = min((len(case.rounds) for case in self.results if case.status == records.TRUNCATED), default=0)
        return sum(map(self.row.seconds, self.cases)) * max(LEAST_PART, 1 - done / rounds)


def _progress(results: Sequence[CaseResult]) -> tuple[int, int]:
    arms = [arm for case in results for arm in case.arms]
    return sum(arm.status == records.MEASURED for arm in arms), sum(len(case.rounds) for case in results)


@dataclass
class ExperimentRun:
    """`status` and `reason`: why there are no results; `observed`: findings beside the times."""

    row: Experiment
    groups: list[CaseGroup]
    observed: list[Finding] = field(default_factory=list)
    seconds: float = 0.0
    status: str = ""
    reason: str = ""

    def cases(self) -> Iterator[CaseResult]:
        """Yield the results of all cases so far."""
        for group in self.groups:
            yield from group.results

    def result(self) -> ExperimentResult:
        """Return the experiment's record, with its findings."""
        cases = tuple(self.cases())
        status, reason = (self.status, self.reason) if self.status else _outcome(cases)
        mean = evaluate.findings(cases) if self.row.together else ()
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
            findings=(*findings.derive(self.row.finding, cases), *mean, *self.observed),
        )


def _outcome(cases: Sequence[CaseResult]) -> tuple[str, str]:
    """Return the experiment's status: the best of its cases', and the reason if nothing was measured."""
    statuses = [case.status for case in cases]
    for status in (records.MEASURED, records.TRUNCATED):
        if any(case.status == status and case.rounds for case in cases):
            return (records.TRUNCATED if records.TRUNCATED in statuses else records.MEASURED), ""
    first = cases[0] if cases else None
    return (first.status, first.reason) if first else (records.SKIPPED, "it has no case")


def _not_begun(row: Experiment, case: Case, machine: Machine) -> CaseResult:
    lacks = machine.lacks(row, case)
    return CaseResult(
        name=case.name,
        metric=case.metric or row.metric,
        status=records.SKIPPED if lacks else records.TRUNCATED,
        reason=lacks or "the experiment's time budget ended before it began",
        baseline=machine.fill(row.arms(case)[0].name),
        arms=(),
    )
