"""Turn comparisons into lines of code: for each model the one that gained most. Pure."""

from collections.abc import Callable, Iterator

from tfbuild.bench import findings
from tfbuild.bench.current_settings import CurrentSettings, shared
from tfbuild.bench.gains import Advice, ArmComparison, gains
from tfbuild.measure.evaluate import Verdict, against
from tfbuild.measure.experiments import AdviceKind
from tfbuild.measure.records import FASTER, SLOWER, ArmResult, CaseResult, ExperimentResult, Interval

# The name of a value in batch_size.py's finding.
KNEE = "measured_90%"
BASELINE = "unless a program says otherwise"


def _code(row: ExperimentResult, current: CurrentSettings) -> Iterator[Advice]:
    yield from _best_lines(row, current)
    yield from _baseline_line(row, current)


def _best_lines(row: ExperimentResult, current: CurrentSettings) -> Iterator[Advice]:
    """Advise each line for the cases in which no other line gained more, with all cases in which it lost."""
    comparisons = [one for case in row.cases for one in _lines(row, case, current)]
    # In some cases an arm has no `code`, but always its name.
    named = {one.arm.name: one.arm.code for one in comparisons if one.arm.code}

    def line(one: ArmComparison) -> str:
        return one.arm.code or named.get(one.arm.name, "")

    best: dict[str, list[ArmComparison]] = {}
    for case in row.cases:
        better = [one for one in comparisons if one.case is case and one.verdict.effect == FASTER]
        if coded := [one for one in better if line(one)]:
            most = max(coded, key=lambda one: one.median)
            best.setdefault(line(most), []).append(most)
    for code, own in best.items():
        lost = [one for one in comparisons if line(one) == code and one.verdict.effect == SLOWER]
        yield Advice(experiment=row.name, env={}, code=code, gains=gains(own), losses=gains(lost))


def _lines(row: ExperimentResult, case: CaseResult, current: CurrentSettings) -> Iterator[ArmComparison]:
    """Compare each arm with the first one in the same environment, so that a gain is not the environment's."""
    for arm in case.arms[1:]:
        alike = [each for each in case.arms if each is not arm and (each.env, each.image) == (arm.env, arm.image)]
        if arm.effect and arm.same is not False and alike and current.holds(arm.env):
            yield ArmComparison(row=row, case=case, arm=arm, other=alike[0], verdict=against(case, arm, alike[0]))


def _baseline_line(row: ExperimentResult, current: CurrentSettings) -> Iterator[Advice]:
    """Advise the baseline's own line if each other arm that was measured lost somewhere and gained nowhere."""
    cases = [case for case in row.cases if case.arms and case.arms[0].code and current.holds(shared(case))]
    others = [(case, arm) for case in cases for arm in case.arms[1:] if arm.effect]
    lost = [(case, arm) for case, arm in others if arm.effect == SLOWER]
    losers = {arm.name for _, arm in lost}
    if lost and all(arm.effect != FASTER and arm.name in losers for _, arm in others):
        comparisons = [
            ArmComparison(row=row, case=case, arm=case.arms[0], other=arm, verdict=_inverted(arm))
            for case, arm in lost
            if case.arms[0].code == cases[0].arms[0].code
        ]
        code = cases[0].arms[0].code
        yield Advice(experiment=row.name, env={}, code=code, gains=gains(comparisons), in_place=BASELINE)


def _inverted(arm: ArmResult) -> Verdict:
    """Return the verdict on the baseline against an arm that lost to it."""

    def invert(ratio: Interval | None) -> Interval | None:
        return ratio and Interval(
            median=1 / ratio.median, low=1 / ratio.high, high=1 / ratio.low, coverage=ratio.coverage
        )

    return Verdict(cpu=invert(arm.cpu), wall=invert(arm.wall), effect=FASTER)


def _batch_sizes(row: ExperimentResult, _: CurrentSettings) -> Iterator[Advice]:
    """Advise each size for the models of which it is the smallest with 90 % of the best rate.

    It must be shown to be faster than the smallest one.
    """
    comparisons: dict[str, list[ArmComparison]] = {}
    notes: dict[str, list[str]] = {}
    for case in row.cases:
        # Derived again, because older reports claim more; what was observed beside the rounds is only in the report.
        derived = findings.of("batch_size", [case])
        observed = [one for one in row.findings if one.text.startswith(f"{case.name}:") and KNEE not in one.values]
        size = next((int(one.values[KNEE]) for one in derived if KNEE in one.values), 0)
        arm = next((arm for arm in case.arms if arm.items == size and arm.effect == FASTER), None)
        if arm:
            verdict = against(case, arm, case.arms[0])
            largest = size == max(arm.items for arm in case.arms if arm.seconds)
            code = f"batch_size = {size}" + ("  # the largest one tried: more may be faster still" if largest else "")
            comparison = ArmComparison(row=row, case=case, arm=arm, other=case.arms[0], verdict=verdict)
            comparisons.setdefault(code, []).append(comparison)
            notes.setdefault(code, []).extend(finding.text for finding in (*derived, *observed))
    for code, own in comparisons.items():
        yield Advice(experiment=row.name, env={}, code=code, gains=gains(own), notes=tuple(notes[code]))


LINES: dict[AdviceKind, Callable[[ExperimentResult, CurrentSettings], Iterator[Advice]]] = {
    "code": _code,
    "batch_size": _batch_sizes,
}
