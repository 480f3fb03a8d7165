"""Show stored reports in today's words: numbers stay, sentences are derived again or taken from today's rows. Pure."""

from collections.abc import Iterable
from dataclasses import replace

from tfbuild import facts
from tfbuild.bench import findings
from tfbuild.facts import Facts
from tfbuild.measure import experiments, pooled
from tfbuild.measure.arms import Machine
from tfbuild.measure.experiments import Case, Experiment
from tfbuild.measure.records import ArmResult, BenchReport, CaseResult, ExperimentResult, Finding


class Phrase(Facts, frozen=True):
    was: str
    now: str


class PhraseTable(Facts, frozen=True):
    phrase: tuple[Phrase, ...]


def reworded(report: BenchReport) -> BenchReport:
    """Return the report with the words of today's experiments and findings; no number, name or verdict changes."""
    rows = {row.name: row for row in experiments.known()}
    machine = Machine(image=report.image.id, against=report.image.against, cpus=report.host.cpus, gpus=0)
    return replace(
        report, experiments=tuple(_experiment(row, rows.get(row.name), machine) for row in report.experiments)
    )


def phrase(text: str) -> str:
    """Replace the phrases that earlier versions wrote."""
    for row in facts.load("rewordings", PhraseTable).phrase:
        text = text.replace(row.was, row.now)
    return text


def _experiment(row: ExperimentResult, today: Experiment | None, machine: Machine) -> ExperimentResult:
    known = {case.name: case for case in today.case} if today else {}
    cases = tuple(_case(case, today, known.get(case.name), machine) for case in row.cases)
    row = replace(row, reason=phrase(row.reason), cases=cases, findings=_findings(row.findings, cases, today))
    # A profiled command has no case, and describes itself.
    if today is None or not cases:
        return row
    # Other cases were compared in other ways.
    compares = today.compares if all(case.name in known for case in cases) else row.compares
    return replace(row, question=today.question, compares=compares, changes=today.changes, source=today.source)


def _case(case: CaseResult, row: Experiment | None, today: Case | None, machine: Machine) -> CaseResult:
    lines = {machine.fill(arm.name): machine.fill(arm.code) for arm in row.arms(today)} if row and today else {}

    def arm(one: ArmResult) -> ArmResult:
        return replace(one, reason=phrase(one.reason), code=lines.get(one.name, one.code))

    return replace(case, reason=phrase(case.reason), arms=tuple(map(arm, case.arms)))


def _findings(
    stored: Iterable[Finding], cases: tuple[CaseResult, ...], today: Experiment | None
) -> tuple[Finding, ...]:
    """Derive again what follows from the rounds; keep what was observed beside them."""
    derived: tuple[Finding, ...] = ()
    if today:
        derived = (*findings.of(today.finding, cases), *(pooled.findings(cases) if today.together else ()))
    kept = (one for one in stored if not derived or _observed(one, derived, cases))
    return (*derived, *(replace(one, text=phrase(one.text)) for one in kept))


def _observed(one: Finding, derived: Iterable[Finding], cases: Iterable[CaseResult]) -> bool:
    """Whether a stored finding is none of the derived ones, which share names of values or begin with a case's name."""
    if one.values:
        return not any(one.values.keys() & other.values.keys() for other in derived)
    return not one.text.startswith(tuple(f"{case.name}:" for case in cases))
