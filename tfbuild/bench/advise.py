"""What to change, by a report: settings and lines of code that gained somewhere and lost nowhere. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import geometric_mean

from tfbuild import facts
from tfbuild.bench import findings, wording
from tfbuild.errors import TfbuildError
from tfbuild.facts import releases
from tfbuild.facts.release_table import table
from tfbuild.measure import records
from tfbuild.measure.evaluate import Verdict, compare_arms, interval_text, used_rounds
from tfbuild.measure.records import FASTER, SLOWER, ArmResult, BenchReport, CaseResult, ExperimentResult, Interval
from tfbuild.plan.rules import find_release

ONEDNN, PRELOAD = "TF_ENABLE_ONEDNN_OPTS", "LD_PRELOAD"
# TensorFlow reads these words as well, in upper case too (ReadBoolFromEnvVar).
SWITCH = {"true": "1", "false": "0"}
UNKNOWN_DEFAULT = "TensorFlow may have it on already: its default on this CPU is not known"
# A setting holds for all work on a machine, so one that may make any of it a tenth slower is not advised.
RISK = 0.9
# Workloads that read and decode, which is a part of a program's time.
INPUT = {"decode", "reading", "remote"}


@dataclass(frozen=True, kw_only=True)
class ArmComparison:
    """`arm` compared with `other` in one case of an experiment; they differ only in what is judged."""

    experiment: str
    case: CaseResult
    arm: ArmResult
    other: ArmResult
    verdict: Verdict

    @property
    def ratio(self) -> Interval | None:
        """Return the ratio in the case's metric."""
        return wording.judged_ratio(self.verdict, self.case)

    @property
    def median(self) -> float:
        """Return how many times as fast as the other the arm was; 0 if it was not measured."""
        return self.ratio.median if self.ratio else 0.0

    @property
    def computes(self) -> bool:
        """Whether the arm is a step or an operation, not input alone."""
        input_alone = self.arm.workload == "pipeline" and not self.arm.params.get("step")
        return not input_alone and self.arm.workload not in INPUT

    @property
    def gained(self) -> bool:
        return self.verdict.effect == FASTER and not self._differs

    @property
    def lost(self) -> bool:
        return self.verdict.effect == SLOWER or self._differs or self.arm.status == records.FAILED

    @property
    def risky(self) -> bool:
        """Whether its interval does not exclude a loss of a tenth, or the time was too short for one."""
        return self.lost or self.arm.status == records.TRUNCATED or (self.ratio is not None and self.ratio.low < RISK)

    @property
    def _differs(self) -> bool:
        return False in (self.arm.same, self.other.same)

    @property
    def certainty(self) -> str:
        """Return the interval's confidence and the rounds that it is made of: "97%, 6 rounds"."""
        return f"{self.ratio.coverage:.0%}, {len(used_rounds(self.case.rounds))} rounds" if self.ratio else ""

    @property
    def basis(self) -> str:
        """Return what is compared: "CPU time, over baseline"."""
        return f"{wording.METRICS[self.case.metric]}, over {self.other.name}"

    @property
    def doubt(self) -> str:
        """Return the reasons to doubt the gain, and the error that it costs; "" if there are none."""
        wall = self.verdict.wall if self.case.metric == "cpu" else None
        unseen = f"in wall time {interval_text(wall)}" if wall and wall.low <= 1 else ""
        cost = f"error {self.arm.error:.1e}" if self.arm.error else ""
        return wording.join(unseen, cost, wording.caveat(self.case))


@dataclass(frozen=True, kw_only=True)
class Advice:
    """A `line` to type, variables or code, with a `remark` on it, and the `gains`, the largest first.

    `expected`: what a program may gain: first the mean over all cases in which a step computes, with and without gain.
    """

    experiment: str
    line: str
    remark: str
    gains: tuple[ArmComparison, ...]
    expected: tuple[bool, float]

    @property
    def basis(self) -> str:
        """Return what the gains compare; "" if it is not the same for all."""
        bases = {gain.basis for gain in self.gains}
        return bases.pop() if len(bases) == 1 else ""


def advise(report: BenchReport) -> tuple[Advice, ...]:
    """Return what gained and never lost, first what a program can expect most of, and batch sizes last."""
    current = CurrentSettings(image=report.image.env or {}, onednn=onednn_default(report))
    advices = [*_settings(report, current)]
    for row in report.experiments:
        advices += _lines(row, current)
    advices.sort(key=lambda advice: advice.expected, reverse=True)
    return (*advices, *(advice for row in report.experiments for advice in _batch_size(row)))


def _advice(line: str, remark: str, compared: Iterable[ArmComparison], gained: Iterable[ArmComparison]) -> Advice:
    """Return the advice for what `gained`, among all that was `compared`."""
    gains = tuple(sorted(gained, key=lambda one: -one.median))
    computed = [one.median for one in compared if one.median and one.computes]
    expected = bool(computed), geometric_mean(computed or [one.median for one in gains])
    return Advice(experiment=gains[0].experiment, line=line, remark=remark, gains=gains, expected=expected)


# --- settings: changes of the environment ----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class CurrentSettings:
    """The variables that the image sets; `onednn`: TensorFlow's own choice on this CPU, where nothing is set."""

    image: Mapping[str, str]
    onednn: str

    def value(self, name: str, env: Mapping[str, str]) -> str:
        """Return a variable's value with `env` added to the image's; for a list of libraries, the last one's name."""
        value = env.get(name, self.image.get(name, ""))
        if name == PRELOAD:
            return value.rpartition(":")[2].rpartition("/")[2].partition(".so")[0]
        return (SWITCH.get(value.lower(), value) or self.onednn) if name == ONEDNN else value

    def holds(self, env: Mapping[str, str]) -> bool:
        """Whether a process with `env` has the settings that are in place."""
        return all(self.value(name, env) == self.value(name, {}) for name in env)

    def change(self, old: ArmResult, new: ArmResult) -> frozenset[tuple[str, str]]:
        """Return the variables that differ, with their new values."""
        names = old.env.keys() | new.env.keys()
        values = ((name, self.value(name, new.env)) for name in names)
        return frozenset((name, value) for name, value in values if value != self.value(name, old.env))


def onednn_default(report: BenchReport) -> str:
    """Return TensorFlow's default of TF_ENABLE_ONEDNN_OPTS, by the facts on its release; "" if they do not say."""
    try:
        release = find_release(report.software.tensorflow, newer=True)
        rows = releases.rows(table().onednn, release, report.host.machine)
    except TfbuildError:
        return ""
    known = {facts.squeeze(flag) for flag in report.host.flags}
    if len(rows) != 1 or not rows[0].compiled:
        return ""
    return "1" if any(facts.squeeze(name) in known for name in rows[0].on_with) else "0"


def _settings(report: BenchReport, current: CurrentSettings) -> Iterator[Advice]:
    """Advise, for each variable, the change that gained most, unless it lost in a case of any experiment."""
    changes: dict[frozenset[tuple[str, str]], list[ArmComparison]] = {}
    for row in report.experiments:
        for case in row.cases:
            for change, comparison in _changes(row, case, current):
                changes.setdefault(change, []).append(comparison)
    good = [own for own in changes.values() if any(one.gained for one in own) and not any(one.risky for one in own)]
    taken: set[str] = set()
    for own in sorted(good, key=lambda own: -max(one.median for one in own)):
        arm = own[0].arm
        # All that differs from what is in place: an image may have an allocator that no arm has.
        names = {name for name, _ in current.change(replace(arm, env={}), arm)}
        if not names & taken:
            taken |= names
            line = " ".join(f"{name}={arm.env.get(name, '')}" for name in sorted(names))
            unknown = UNKNOWN_DEFAULT if ONEDNN in names and not current.value(ONEDNN, {}) else ""
            remark = wording.join(arm.code.removeprefix("# "), unknown)
            yield _advice(line, remark, own, [one for one in own if one.gained])


def _changes(
    row: ExperimentResult, case: CaseResult, current: CurrentSettings
) -> Iterator[tuple[frozenset[tuple[str, str]], ArmComparison]]:
    """Compare the arms with what is in place, or with the baseline if no arm has that; nothing in other settings."""
    if not case.arms or not current.holds(dict(set.intersection(*({*arm.env.items()} for arm in case.arms)))):
        return
    reference = next((arm for arm in case.arms if current.holds(arm.env)), case.arms[0])
    for arm in case.arms:
        change = current.change(reference, arm)
        if change and (arm.workload, arm.params, arm.image) == (reference.workload, reference.params, reference.image):
            yield change, _comparison(row, case, arm, reference)


def _comparison(row: ExperimentResult, case: CaseResult, arm: ArmResult, other: ArmResult) -> ArmComparison:
    verdict = compare_arms(case, arm, other)
    return ArmComparison(experiment=row.name, case=case, arm=arm, other=other, verdict=verdict)


# --- lines of code ---------------------------------------------------------------------------------------------------


def _lines(row: ExperimentResult, current: CurrentSettings) -> Iterator[Advice]:
    """Advise each line for the cases in which no other line gained more, unless it lost in a case."""
    # In some cases an arm has no `code`, but always its name.
    codes = {arm.name: arm.code for case in row.cases for arm in case.arms if arm.code}
    lines: dict[str, list[ArmComparison]] = {}
    for case in row.cases:
        for arm in case.arms[1:]:
            # The first arm in the same environment, so that a gain is not the environment's.
            other = next(each for each in case.arms if (each.env, each.image) == (arm.env, arm.image))
            code = arm.code or codes.get(arm.name, "")
            if code and other is not arm and current.holds(arm.env):
                lines.setdefault(code, []).append(_comparison(row, case, arm, other))
    good = {code: own for code, own in lines.items() if not any(one.lost for one in own)}
    gains = [(code, one) for code, own in good.items() for one in own if one.gained]
    best: dict[str, list[ArmComparison]] = {}
    for name in {one.case.name: None for _, one in gains}:
        code, most = max(((code, one) for code, one in gains if one.case.name == name), key=lambda pair: pair[1].median)
        best.setdefault(code, []).append(most)
    for code, own in best.items():
        line, _, remark = code.partition("  # ")
        yield _advice(line, remark, good[code], own)


def _batch_size(row: ExperimentResult) -> Iterator[Advice]:
    """Advise the smallest size that is large enough for all models; nothing if each needs another one."""
    swept = [case for case in row.cases if findings.sweeps_batches(case) and findings.enough(case)]
    size = min(set.intersection(*({*findings.enough(case)} for case in swept)), default=0) if swept else 0
    own = [_comparison(row, case, arm, case.arms[0]) for case in swept for arm in case.arms if arm.items == size]
    gained = [one for one in own if one.gained]
    if gained and not any(one.lost for one in own):
        ends = [case.name for case in swept if size == max(arm.items for arm in case.arms if arm.seconds)]
        remark = f"the largest one tried for {' and '.join(ends)}; more may be faster" if ends else ""
        yield _advice(f"batch_size = {size}", remark, own, gained)
