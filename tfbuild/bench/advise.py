"""A report as settings for its machine: an env file and lines of code, each with its measured gain. Nothing without."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from tfbuild.bench import findings, inplace, wording
from tfbuild.bench.inplace import InPlace
from tfbuild.measure import experiments, intervals
from tfbuild.measure.evaluate import Verdict, against
from tfbuild.measure.experiments import AdviceKind
from tfbuild.measure.records import FASTER, SLOWER, ArmResult, BenchReport, CaseResult, ExperimentResult, Interval

# Of findings.py's values.
KNEE = "measured_90%"
# A setting holds for a whole machine: what may cost a tenth of it somewhere is none.
RISK = 0.9
BASELINE = "unless a program says otherwise"


@dataclass(frozen=True, kw_only=True)
class Advice:
    """`env`: what to set ("": to leave empty); `code`: a line instead; `gains`: where it was seen, and how sure.

    `losses`: where it was slower; `in_place`: why there is nothing to change, or nothing.
    """

    experiment: str
    env: dict[str, str]
    code: str
    gains: tuple[str, ...]
    losses: tuple[str, ...] = ()
    in_place: str = ""


def advise(report: BenchReport) -> tuple[Advice, ...]:
    """What gained somewhere and lost nowhere, with what is in place already; where it is a line of code, which can be
    put in one place, with the cases in which it lost. In the report's order."""
    place = inplace.of(report)
    found = _settings(report, place)
    # Cases of another environment than the advised one show nothing of it.
    place = place.and_({name: value for one in found if not one.in_place for name, value in one.env.items()})
    for row in report.experiments:
        for kind in experiments.purpose(row.name).advises:
            if kind not in ENVIRONMENT:
                found += LINES[kind](row, place)
    order = {row.name: number for number, row in enumerate(report.experiments)}
    return tuple(sorted(found, key=lambda one: order[one.experiment]))


# --- settings of the environment -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Seen:
    """`arm` against `other`, in one case of a row: they differ in what is judged, and in nothing else."""

    row: ExperimentResult
    case: CaseResult
    arm: ArmResult
    other: ArmResult
    verdict: Verdict

    @property
    def ratio(self) -> Interval | None:
        return self.verdict.cpu if self.case.metric == "cpu" else self.verdict.wall


@dataclass(frozen=True, kw_only=True)
class Change:
    """Variables from one value to another ("": not set), and what was seen of it, in whichever experiment."""

    arm: ArmResult
    new: dict[str, str]
    seen: tuple[Seen, ...]

    @property
    def gained(self) -> list[Seen]:
        return [one for one in self.seen if one.verdict.effect == FASTER]

    @property
    def lost(self) -> list[Seen]:
        return [one for one in self.seen if one.verdict.effect == SLOWER or False in (one.arm.same, one.other.same)]

    @property
    def best(self) -> float:
        return max((one.ratio.median for one in self.gained if one.ratio), default=0.0)

    @property
    def safe(self) -> bool:
        """It gained, and nowhere did it lose, or may it have lost much."""
        risky = any(one.ratio is not None and one.ratio.low < RISK for one in self.seen)
        return bool(self.gained) and not self.lost and not risky


def _settings(report: BenchReport, place: InPlace) -> list[Advice]:
    found: list[Advice] = []
    for row in _advising(report, "setting"):
        for one in _setting(row, report, place):
            if not any(one.env.keys() & before.env.keys() for before in found):
                found.append(one)
                place = place if one.in_place else place.and_(one.env)
    for row in _advising(report, "image"):
        settled = {name for one in found for name in one.env}
        for one in _setting(row, report, place):
            if one.in_place:
                found.append(one)
            elif not one.env.keys() & settled:
                # An env file can empty a variable, but not take it away, which is what was measured.
                found.append(replace(one, env={}))
    return found


def _advising(report: BenchReport, kind: AdviceKind) -> list[ExperimentResult]:
    """The experiments that advise this, in the order of their rows' `setting_order`."""
    rows = {row.name: row for row in report.experiments}
    purposes = {name: experiments.purpose(name) for name in rows}
    chosen = [name for name, purpose in purposes.items() if kind in purpose.advises]
    return [rows[name] for name in sorted(chosen, key=lambda name: purposes[name].setting_order)]


def _setting(row: ExperimentResult, report: BenchReport, place: InPlace) -> Iterator[Advice]:
    """The best change from what is in place; else what is in place, where that gained."""
    cases = [case for case in row.cases if case.arms and _holds(_shared(case), place)]
    changes: dict[str, Change] = {}
    for case in cases:
        reference = _in_place(case, place) or case.arms[0]
        for arm in case.arms:
            if arm is not reference and _work(arm) == _work(reference):
                changes.setdefault(arm.name, _change(reference, arm, report, place))
    best = max((one for one in changes.values() if one.safe), key=lambda one: one.best, default=None)
    if best:
        yield _advice(row, best, _code_of(best))
    elif any(_in_place(case, place) for case in cases):
        yield from _keep(row, cases, report, place)
    else:
        yield from _off(row, cases, report, place)


def _keep(row: ExperimentResult, cases: Sequence[CaseResult], report: BenchReport, place: InPlace) -> Iterator[Advice]:
    """What is in place against the baseline; where it is the baseline itself, against the first other arm."""
    for case in cases:
        arm = _in_place(case, place)
        other = next((one for one in case.arms if arm and one is not arm and _work(one) == _work(arm)), None)
        if arm is None or other is None:
            continue
        change = _change(other, arm, report, place)
        env = {name: place.values.get(name, "") for name in change.new}
        if change.gained and all(env.values()):
            told = _advice(row, change, "")
            yield replace(told, env={**env, **_named(arm, env)}, in_place=place.why(env))
            return


def _off(row: ExperimentResult, cases: Sequence[CaseResult], report: BenchReport, place: InPlace) -> Iterator[Advice]:
    """The baseline's own setting, where nobody knows what is in place and each other arm lost to it."""
    for case in cases:
        base, *others = case.arms
        changes = [_change(other, base, report, place) for other in others if _work(other) == _work(base)]
        if changes and all(one.safe for one in changes) and all(base.env.get(name) for name in changes[0].new):
            best = max(changes, key=lambda one: one.best)
            yield _advice(row, best, _code_of(best))
            return


def _change(old: ArmResult, new: ArmResult, report: BenchReport, place: InPlace) -> Change:
    """From the one's environment to the other's, with all cases of the report that differ in nothing else."""
    names = _differ(old, new, place)
    before, after = _values(old, names, place), _values(new, names, place)
    seen = [
        Seen(row=row, case=case, arm=arm, other=other, verdict=against(case, arm, other))
        for row in report.experiments
        for case in row.cases
        for other in case.arms
        for arm in case.arms
        if arm is not other and _work(arm) == _work(other) and _differ(other, arm, place) == names
        if _same(_values(other, names, place), before) and _same(_values(arm, names, place), after)
        if _holds({name: value for name, value in arm.env.items() if name not in names}, place)
    ]
    measured = tuple(one for one in seen if one.ratio is not None)
    return Change(arm=new, new={name: new.env.get(name, "") for name in names}, seen=measured)


def _shared(case: CaseResult) -> dict[str, str]:
    """What the case sets for all of its arms."""
    first, *others = (arm.env for arm in case.arms)
    return {name: value for name, value in first.items() if all(env.get(name) == value for env in others)}


def _holds(env: dict[str, str], place: InPlace) -> bool:
    """It is the environment that is in place, or advised, as far as that is known."""
    return all(inplace.alike(name, value, place.values.get(name, value)) for name, value in env.items())


def _in_place(case: CaseResult, place: InPlace) -> ArmResult | None:
    """The first arm that has what the image has: it leaves alone what the others set, or sets the same."""
    names = {name for arm in case.arms for name in arm.env} - _shared(case).keys()
    for arm in case.arms:
        mine = {name: value for name, value in arm.env.items() if name in names}
        if mine.keys() <= place.values.keys() and _holds(mine, place):
            return arm
    return None


def _values(arm: ArmResult, names: Iterable[str], place: InPlace) -> dict[str, str]:
    return {name: place.value(arm.env, name) for name in names}


def _differ(first: ArmResult, second: ArmResult, place: InPlace) -> frozenset[str]:
    names = first.env.keys() | second.env.keys()
    one, other = _values(first, names, place), _values(second, names, place)
    return frozenset(name for name in names if not inplace.alike(name, one[name], other[name]))


def _same(first: dict[str, str], second: dict[str, str]) -> bool:
    return all(inplace.alike(name, value, second[name]) for name, value in first.items())


def _work(arm: ArmResult) -> tuple[object, ...]:
    return arm.workload, arm.params, arm.image


def _named(arm: ArmResult, names: Iterable[str]) -> dict[str, str]:
    """As the arm sets them. Where a value is a list of places to look in, the benchmark's own come first."""
    return {name: arm.env[name].rpartition(":")[2] for name in names if name in arm.env}


def _advice(row: ExperimentResult, change: Change, code: str) -> Advice:
    def told(seen: Sequence[Seen]) -> tuple[str, ...]:
        return tuple(("" if one.row is row else f"{one.row.name}: ") + _seen(one) for one in seen)

    env = {**change.new, **_named(change.arm, change.new)}
    return Advice(experiment=row.name, env=env, code=code, gains=told(change.gained), losses=told(change.lost))


def _code_of(change: Change) -> str:
    return change.arm.code or _assigned({**change.new, **_named(change.arm, change.new)})


def _assigned(env: dict[str, str]) -> str:
    """The same in a program, where TensorFlow is what reads it: the loader reads LD_PRELOAD before any program runs."""
    lines = [f'os.environ["{name}"] = "{value}"' for name, value in sorted(env.items()) if name.startswith("TF_")]
    return "; ".join(lines) + "  # before TensorFlow is imported" if lines else ""


# --- lines of code ---------------------------------------------------------------------------------------------------


def _code(row: ExperimentResult, place: InPlace) -> Iterator[Advice]:
    yield from _best_lines(row, place)
    yield from _baseline(row, place)


def _best_lines(row: ExperimentResult, place: InPlace) -> Iterator[Advice]:
    """For each case the line that gained most there, with all cases in which it gained and in which it lost."""
    compared = [one for case in row.cases for one in _lines(row, case, place)]
    chosen: dict[str, None] = {}
    for case in row.cases:
        better = [one for one in compared if one.case is case and one.arm.code and one.verdict.effect == FASTER]
        if better:
            chosen[max(better, key=lambda one: one.ratio.median if one.ratio else 0.0).arm.code] = None
    for code in chosen:
        # A case may leave the line out, not what it is called.
        names = {one.arm.name for one in compared if one.arm.code == code}
        mine = [one for one in compared if one.arm.code == code or (not one.arm.code and one.arm.name in names)]
        yield Advice(
            experiment=row.name,
            env={},
            code=code,
            gains=tuple(_seen(one) for one in mine if one.verdict.effect == FASTER),
            losses=tuple(_seen(one) for one in mine if one.verdict.effect == SLOWER),
        )


def _lines(row: ExperimentResult, case: CaseResult, place: InPlace) -> Iterator[Seen]:
    """Its arms against the first one of the same environment: what the environment gains is none of a line's doing."""
    for arm in case.arms[1:]:
        alike = [one for one in case.arms if one is not arm and (one.env, one.image) == (arm.env, arm.image)]
        if arm.effect and arm.same is not False and alike and _holds(arm.env, place):
            yield Seen(row=row, case=case, arm=arm, other=alike[0], verdict=against(case, arm, alike[0]))


def _baseline(row: ExperimentResult, place: InPlace) -> Iterator[Advice]:
    """The baseline's own line, where each other arm that was measured lost somewhere and none of them won."""
    cases = [case for case in row.cases if case.arms and case.arms[0].code and _holds(_shared(case), place)]
    others = [(case, arm) for case in cases for arm in case.arms[1:] if arm.effect]
    lost = [(case, arm) for case, arm in others if arm.effect == SLOWER]
    losers = {arm.name for _, arm in lost}
    if lost and all(arm.effect != FASTER and arm.name in losers for _, arm in others):
        seen = [
            Seen(row=row, case=case, arm=case.arms[0], other=arm, verdict=_turned(arm))
            for case, arm in lost
            if case.arms[0].code == cases[0].arms[0].code
        ]
        gains = tuple(_seen(one) for one in seen)
        yield Advice(experiment=row.name, env={}, code=cases[0].arms[0].code, gains=gains, in_place=BASELINE)


def _turned(arm: ArmResult) -> Verdict:
    """The baseline against an arm that lost to it."""

    def over(ratio: Interval | None) -> Interval | None:
        return ratio and Interval(
            median=1 / ratio.median, low=1 / ratio.high, high=1 / ratio.low, coverage=ratio.coverage
        )

    return Verdict(cpu=over(arm.cpu), wall=over(arm.wall), effect=FASTER)


def _batch_sizes(row: ExperimentResult, _: InPlace) -> Iterator[Advice]:
    """The smallest batch with nine tenths of the best rate, where it is shown to be faster than the smallest one."""
    for case in row.cases:
        # Worked out anew, for older reports say less carefully what follows; what was seen beside the rounds is theirs.
        told = findings.of("batch_size", [case])
        beside = [one for one in row.findings if one.text.startswith(f"{case.name}:") and KNEE not in one.values]
        size = next((int(one.values[KNEE]) for one in told if KNEE in one.values), 0)
        found = next((arm for arm in case.arms if arm.items == size and arm.effect == FASTER), None)
        if found:
            verdict = against(case, found, case.arms[0])
            seen = Seen(row=row, case=case, arm=found, other=case.arms[0], verdict=verdict)
            end = size == max(arm.items for arm in case.arms if arm.seconds)
            code = f"batch_size = {size}" + ("  # the largest one tried: more may be faster still" if end else "")
            gains = (_seen(seen), *(one.text for one in (*told, *beside)))
            yield Advice(experiment=row.name, env={}, code=code, gains=gains)


LINES: dict[AdviceKind, Callable[[ExperimentResult, InPlace], Iterator[Advice]]] = {
    "code": _code,
    "batch_size": _batch_sizes,
}
# Chosen all together before the lines, by _settings: each depends on those before it.
ENVIRONMENT: tuple[AdviceKind, ...] = ("setting", "image")


# --- words -----------------------------------------------------------------------------------------------------------


def _seen(one: Seen) -> str:
    """ "arm x1.39 [1.36, 1.41] in CPU time: case (how sure)"; by the clock too, where that does not show it."""
    case, verdict = one.case, one.verdict
    other = "" if one.other.name == case.arms[0].name else f" against {one.other.name}"
    clock = ""
    if case.metric == "cpu" and verdict.wall and verdict.wall.low <= 1 <= verdict.wall.high:
        clock = f" (by the clock {intervals.spelled(verdict.wall)})"
    time = "CPU time" if case.metric == "cpu" else "wall time"
    return f"{one.arm.name} {intervals.spelled(one.ratio)}{other} in {time}{clock}: {case.name} ({_sure(case)})"


def _sure(case: CaseResult) -> str:
    return wording.caveat(case) or f"{case.clean} of {len(case.rounds)} rounds undisturbed"


def env_file(found: tuple[Advice, ...]) -> str:
    """For `docker run --env-file`, which takes whole lines as comments; what is in place already is one of them."""
    lines: list[str] = []
    for advice in found:
        if advice.env:
            lines += _why(advice)
            before = f"# in place already, {advice.in_place}: " if advice.in_place else ""
            lines += [f"{before}{name}={value}" for name, value in sorted(advice.env.items())]
    return "\n".join(lines) + ("\n" if lines else "")


def lines_of_code(found: tuple[Advice, ...]) -> str:
    lines: list[str] = []
    for advice in found:
        if advice.code:
            before = f"# in place already, {advice.in_place}: " if advice.in_place else ""
            lines += [*_why(advice), before + advice.code]
    return "\n".join(lines) + ("\n" if lines else "")


def _why(advice: Advice) -> Iterator[str]:
    yield from (f"# {advice.experiment}: {gain}" for gain in advice.gains)
    yield from (f"# {advice.experiment}: but it was slower there: {loss}" for loss in advice.losses)
