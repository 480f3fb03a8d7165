"""Turn a report into settings for its machine: an env file and lines of code, each with its measured gain. Pure."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from tfbuild.bench import current_settings, findings
from tfbuild.bench.current_settings import CurrentSettings, common_env
from tfbuild.bench.gains import Advice, ArmComparison, gains
from tfbuild.measure import experiments
from tfbuild.measure.evaluate import Verdict, compare_arms
from tfbuild.measure.experiments import AdviceKind
from tfbuild.measure.intervals import inverse
from tfbuild.measure.records import FASTER, SLOWER, ArmResult, BenchReport, CaseResult, ExperimentResult

# A setting holds for all work on a machine, so one that may make any of it a tenth slower is not advised.
RISK = 0.9
# _settings chooses these before the lines of code, because each depends on those before it.
ENVIRONMENT: tuple[AdviceKind, ...] = ("setting", "image")
# Headings of every form of a report.
CHANGE, IN_PLACE = "What to change", "Already in place"


def advise(report: BenchReport) -> tuple[Advice, ...]:
    """Return the settings with a measured gain and no regression, and then those that are in place already.

    The largest gain is first. A line of code may also have regressions, since it can be used only where it gains; of
    several lines for one model only the best is returned.
    """
    current = current_settings.read_settings(report)
    advices = _settings(report, current)
    # Cases in another environment than the advised one show nothing about it.
    current = current.updated({name: value for one in advices if not one.in_place for name, value in one.env.items()})
    for row in report.experiments:
        for kind in experiments.purpose(row.name).advises:
            if kind not in ENVIRONMENT:
                advices += LINES[kind](row, current)
    return tuple(sorted(advices, key=lambda advice: (bool(advice.in_place), -advice.best)))


def no_change(advices: Sequence[Advice]) -> str:
    """Say that there is nothing to change; `advices`: what is in place already."""
    return f"No change has a measured gain{' over the current settings' if advices else ''}."


# --- settings of the environment -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Change:
    """Variables with new values ("": not set), and all comparisons that show the effect, in any experiment."""

    arm: ArmResult
    new: dict[str, str]
    comparisons: tuple[ArmComparison, ...]

    @property
    def gains(self) -> list[ArmComparison]:
        """Return the comparisons in which the new values were faster."""
        return [one for one in self.comparisons if one.verdict.effect == FASTER]

    @property
    def losses(self) -> list[ArmComparison]:
        """Return those in which they were slower, or computed something else."""
        return [
            one for one in self.comparisons if one.verdict.effect == SLOWER or False in (one.arm.same, one.other.same)
        ]

    @property
    def best(self) -> float:
        """Return the largest gain, as a ratio; 0 if there is none."""
        return max((one.median for one in self.gains), default=0.0)

    @property
    def safe(self) -> bool:
        """Whether it gained somewhere, lost nowhere, and cannot have lost much anywhere."""
        risky = any(one.ratio is not None and one.ratio.low < RISK for one in self.comparisons)
        return bool(self.gains) and not self.losses and not risky


def _settings(report: BenchReport, current: CurrentSettings) -> list[Advice]:
    advices: list[Advice] = []
    for row in _advising(report, "setting"):
        for advice in _setting(row, report, current):
            if not any(advice.env.keys() & before.env.keys() for before in advices):
                advices.append(advice)
                current = current if advice.in_place else current.updated(advice.env)
    for row in _advising(report, "image"):
        settled = {name for advice in advices for name in advice.env}
        for advice in _setting(row, report, current):
            if advice.in_place:
                advices.append(advice)
            elif not advice.env.keys() & settled:
                # An env file can empty a variable but not unset it, which is what was measured.
                advices.append(replace(advice, env={}))
    return advices


def _advising(report: BenchReport, kind: AdviceKind) -> list[ExperimentResult]:
    """Return the experiments with this kind of advice, in the order of their rows' `setting_order`."""
    rows = {row.name: row for row in report.experiments}
    purposes = {name: experiments.purpose(name) for name in rows}
    chosen = [name for name, purpose in purposes.items() if kind in purpose.advises]
    return [rows[name] for name in sorted(chosen, key=lambda name: purposes[name].setting_order)]


def _setting(row: ExperimentResult, report: BenchReport, current: CurrentSettings) -> Iterator[Advice]:
    """Advise the best change from what is in place; else what is in place, if that gained."""
    cases = [case for case in row.cases if case.arms and current.holds(common_env(case))]
    changes: dict[str, Change] = {}
    for case in cases:
        reference = _in_place(case, current) or case.arms[0]
        for arm in case.arms:
            if arm is not reference and _work(arm) == _work(reference):
                changes.setdefault(arm.name, _change(reference, arm, report, current))
    best = max((change for change in changes.values() if change.safe), key=lambda change: change.best, default=None)
    if best:
        yield _advice(row, best)
    elif any(_in_place(case, current) for case in cases):
        yield from _keep(row, cases, report, current)
    else:
        yield from _set_baseline(row, cases, report, current)


def _keep(
    row: ExperimentResult, cases: Sequence[CaseResult], report: BenchReport, current: CurrentSettings
) -> Iterator[Advice]:
    """Judge what is in place against the baseline, or if it is the baseline, against the first other arm."""
    for case in cases:
        arm = _in_place(case, current)
        other = next((each for each in case.arms if arm and each is not arm and _work(each) == _work(arm)), None)
        if arm is None or other is None:
            continue
        change = _change(other, arm, report, current)
        env = {name: current.values.get(name, "") for name in change.new}
        if change.gains and all(env.values()):
            env |= _bare_names(arm, env)
            yield replace(_advice(row, change), env=env, code="", in_place=current.why(env))
            return


def _set_baseline(
    row: ExperimentResult, cases: Sequence[CaseResult], report: BenchReport, current: CurrentSettings
) -> Iterator[Advice]:
    """Advise the baseline's setting if it is unknown what is in place and all other arms lost to it."""
    for case in cases:
        base, *others = case.arms
        changes = [_change(other, base, report, current) for other in others if _work(other) == _work(base)]
        if changes and all(change.safe for change in changes) and all(base.env.get(name) for name in changes[0].new):
            best = max(changes, key=lambda change: change.best)
            yield _advice(row, best)
            return


def _change(old: ArmResult, new: ArmResult, report: BenchReport, current: CurrentSettings) -> Change:
    """Return the change of environment between two arms, with all pairs in the report that differ only in it."""
    names = _differ(old, new, current)
    before, after = _values(old, names, current), _values(new, names, current)
    comparisons = [
        ArmComparison(row=row, case=case, arm=arm, other=other, verdict=compare_arms(case, arm, other))
        for row in report.experiments
        for case in row.cases
        for other in case.arms
        for arm in case.arms
        if arm is not other and _work(arm) == _work(other) and _differ(other, arm, current) == names
        if _same(_values(other, names, current), before) and _same(_values(arm, names, current), after)
        if current.holds({name: value for name, value in arm.env.items() if name not in names})
    ]
    measured = tuple(one for one in comparisons if one.ratio is not None)
    return Change(arm=new, new={name: new.env.get(name, "") for name in names}, comparisons=measured)


def _in_place(case: CaseResult, current: CurrentSettings) -> ArmResult | None:
    """Return the first arm with the image's settings: it leaves alone what other arms set, or sets the same."""
    names = {name for arm in case.arms for name in arm.env} - common_env(case).keys()
    for arm in case.arms:
        own = {name: value for name, value in arm.env.items() if name in names}
        if own.keys() <= current.values.keys() and current.holds(own):
            return arm
    return None


def _values(arm: ArmResult, names: Iterable[str], current: CurrentSettings) -> dict[str, str]:
    return {name: current.value(arm.env, name) for name in names}


def _differ(first: ArmResult, second: ArmResult, current: CurrentSettings) -> frozenset[str]:
    names = first.env.keys() | second.env.keys()
    ours, theirs = _values(first, names, current), _values(second, names, current)
    return frozenset(name for name in names if not current_settings.alike(name, ours[name], theirs[name]))


def _same(first: dict[str, str], second: dict[str, str]) -> bool:
    return all(current_settings.alike(name, value, second[name]) for name, value in first.items())


def _work(arm: ArmResult) -> tuple[object, ...]:
    return arm.workload, arm.params, arm.image


def _bare_names(arm: ArmResult, names: Iterable[str]) -> dict[str, str]:
    """Return the arm's values. Of a list of paths, only the last counts: the others are the benchmark's own."""
    return {name: arm.env[name].rpartition(":")[2] for name in names if name in arm.env}


def _advice(row: ExperimentResult, change: Change) -> Advice:
    env = {**change.new, **_bare_names(change.arm, change.new)}
    code = change.arm.code or _assigned(env)
    return Advice(experiment=row.name, env=env, code=code, gains=gains(change.gains), losses=gains(change.losses))


def _assigned(env: dict[str, str]) -> str:
    """Return code that sets the variables which TensorFlow reads. (The loader reads LD_PRELOAD before a program.)"""
    lines = [f'os.environ["{name}"] = "{value}"' for name, value in sorted(env.items()) if name.startswith("TF_")]
    return "; ".join(lines) + "  # before TensorFlow is imported" if lines else ""


# --- text ------------------------------------------------------------------------------------------------------------


def env_file(advices: tuple[Advice, ...]) -> str:
    """Return a file for `docker run --env-file`."""
    return _below_measurements(
        (advice, [f"{name}={value}" for name, value in sorted(advice.env.items())]) for advice in advices
    )


def lines_of_code(advices: tuple[Advice, ...]) -> str:
    """Return the lines of code that people add to their own program."""
    return _below_measurements((advice, [advice.code] if advice.code else []) for advice in advices)


def _below_measurements(parts: Iterable[tuple[Advice, list[str]]]) -> str:
    """Return the lines of each advice below the measurements behind it; what is in place already is a comment."""
    text = ""
    for advice, lines in parts:
        if lines:
            before = f"# in place already, {advice.in_place}: " if advice.in_place else ""
            text += "".join(f"{line}\n" for line in [*_why(advice), *(before + line for line in lines)])
    return text


def _why(advice: Advice) -> Iterator[str]:
    own = advice.experiment
    yield from (f"# {own}: {_elsewhere(gain.experiment, own)}{gain.text}" for gain in advice.gains)
    yield from (f"# {own}: but slower here: {_elsewhere(loss.experiment, own)}{loss.text}" for loss in advice.losses)
    yield from (f"# {own}: {note}" for note in advice.notes)


def _elsewhere(experiment: str, own: str) -> str:
    return "" if experiment == own else f"{experiment}: "


# --- lines of code: for each model the one that gained most ----------------------------------------------------------

# The name of a value in the finding on batch sizes.
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
            yield ArmComparison(row=row, case=case, arm=arm, other=alike[0], verdict=compare_arms(case, arm, alike[0]))


def _baseline_line(row: ExperimentResult, current: CurrentSettings) -> Iterator[Advice]:
    """Advise the baseline's own line if each other arm that was measured lost somewhere and gained nowhere."""
    cases = [case for case in row.cases if case.arms and case.arms[0].code and current.holds(common_env(case))]
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

    cpu, wall = (ratio and inverse(ratio) for ratio in (arm.cpu, arm.wall))
    return Verdict(cpu=cpu, wall=wall, effect=FASTER)


def _batch_sizes(row: ExperimentResult, _: CurrentSettings) -> Iterator[Advice]:
    """Advise each size for the models of which it is the smallest with 90 % of the best rate.

    It must be shown to be faster than the smallest one.
    """
    comparisons: dict[str, list[ArmComparison]] = {}
    notes: dict[str, list[str]] = {}
    for case in row.cases:
        # Derived again, because older reports claim more; what was observed beside the rounds is only in the report.
        derived = findings.derive("batch_size", [case])
        observed = [one for one in row.findings if one.text.startswith(f"{case.name}:") and KNEE not in one.values]
        size = next((int(one.values[KNEE]) for one in derived if KNEE in one.values), 0)
        arm = next((arm for arm in case.arms if arm.items == size and arm.effect == FASTER), None)
        if arm:
            verdict = compare_arms(case, arm, case.arms[0])
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
