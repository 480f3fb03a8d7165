"""What two reports measured alike, as ratios, and what only one of them did, with the reason. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from tfbuild.measure import intervals, means, records
from tfbuild.measure.evaluate import TIMES, interval, undisturbed
from tfbuild.measure.records import ArmResult, BenchReport, CaseResult, Interval, Sample

TOO_FEW, DISTURBED = "too few rounds", "disturbed"
NOT_THERE = "not measured"
OTHER_WORK = "other work of the same name"
OTHER_RESULT = "computes something else than its baseline"


@dataclass(frozen=True, kw_only=True)
class TimedArm:
    """What was timed in a report's own image."""

    experiment: str
    case: CaseResult
    arm: ArmResult

    @property
    def key(self) -> tuple[str, str, str]:
        return self.experiment, self.case.name, self.arm.name


@dataclass(frozen=True, kw_only=True)
class Lack:
    """What one report has and the other lacks; `broken`: it was tried there and failed, or computed something else."""

    experiment: str
    case: str
    arm: str
    why: str
    broken: bool = False


@dataclass(frozen=True, kw_only=True)
class Shared:
    """`both`: the same work in the first report and in the second; `lacks`, `more`: only in the first, the second."""

    both: tuple[tuple[TimedArm, TimedArm], ...]
    lacks: tuple[Lack, ...]
    more: tuple[Lack, ...]


@dataclass(frozen=True, kw_only=True)
class ArmRatio:
    """One arm in both reports: the first's time per item over the second's, by the clock and of CPU time.

    `cpu`: None where it used none; `left_out`: why it counts in no total, else empty; `held`: both were held against
    this image in their own rounds, so that the machine's drift is not in the ratio.
    """

    experiment: str
    case: str
    arm: str
    wall: Interval
    cpu: Interval | None
    left_out: str = ""
    held: str = ""


def shared(first: BenchReport, second: BenchReport) -> Shared:
    ours, theirs = timed(first), timed(second)
    both, lacks = [], []
    for key, one in ours.items():
        other = theirs.get(key)
        if other is None:
            why, broken = _absent(second, key)
            lacks.append(_lack(one, why, broken=broken))
        elif work(one.arm) != work(other.arm):
            lacks.append(_lack(one, OTHER_WORK))
        elif other.arm.same is False and one.arm.same is not False:
            lacks.append(_lack(one, OTHER_RESULT, broken=True))
        else:
            both.append((one, other))
    more = [_lack(other, _absent(first, key)[0]) for key, other in theirs.items() if key not in ours]
    return Shared(both=tuple(both), lacks=tuple(lacks), more=tuple(more))


def timed(report: BenchReport) -> dict[tuple[str, str, str], TimedArm]:
    """By experiment, case and arm. An arm of --against's image says nothing of the report's own."""
    found = [
        TimedArm(experiment=row.name, case=case, arm=arm)
        for row in report.experiments
        for case in row.cases
        for arm in case.arms
        if arm.seconds is not None
        and arm.status != records.FAILED
        and arm.image == report.image.id
        and any(arm.name in one.samples for one in case.rounds)
    ]
    return {one.key: one for one in found}


def work(arm: ArmResult) -> tuple[str, bytes]:
    """What an arm's name stands for may differ between two versions of tfbuild."""
    return arm.workload, msgspec.json.encode(arm.params, order="sorted")


def _lack(one: TimedArm, why: str, *, broken: bool = False) -> Lack:
    experiment, case, arm = one.key
    return Lack(experiment=experiment, case=case, arm=arm, why=why, broken=broken)


def _absent(report: BenchReport, key: tuple[str, str, str]) -> tuple[str, bool]:
    """Why `report` has no time for it, by the nearest that says so, and whether it failed there."""
    rows = [row for row in report.experiments if row.name == key[0]]
    cases = [case for row in rows for case in row.cases if case.name == key[1]]
    arms = [arm for case in cases for arm in case.arms if arm.name == key[2]]
    for found in (arms, cases, rows):
        if told := _why(found):
            return told
    return NOT_THERE, False


def _why(found: Sequence[records.ArmResult | records.CaseResult | records.ExperimentResult]) -> tuple[str, bool] | None:
    for one in found:
        if one.status != records.MEASURED:
            return f"{one.status}: {one.reason}" if one.reason else one.status, one.status == records.FAILED
    return None


# --- ratios ----------------------------------------------------------------------------------------------------------


def row(first: BenchReport, second: BenchReport, ours: TimedArm, theirs: TimedArm) -> ArmRatio | None:
    """None where the clock gives no ratio, as out of a single round."""
    held = _reference(first, second, ours, theirs)

    def ratio(metric: str) -> Interval | None:
        above, below = (_times(one, held, TIMES[metric]) for one in (ours, theirs))
        return means.quotient(above, below) if above and below and min(above.low, below.low) > 0 else None

    wall = ratio("wall")
    if wall is None:
        return None
    quiet = all(len(undisturbed(one.case.rounds)) >= intervals.FEWEST for one in (ours, theirs))
    few = wall.coverage < intervals.CONFIDENCE
    return ArmRatio(
        experiment=ours.experiment,
        case=ours.case.name,
        arm=ours.arm.name,
        wall=wall,
        cpu=ratio("cpu"),
        left_out=TOO_FEW if few else "" if quiet else DISTURBED,
        held=held.image if held else "",
    )


def _reference(first: BenchReport, second: BenchReport, ours: TimedArm, theirs: TimedArm) -> ArmResult | None:
    """What another image took for the same work in the same rounds, where it is the same in both reports.

    Between two kinds of machines it would take their own difference away.
    """
    if (first.host.cpu, first.host.cpus) != (second.host.cpu, second.host.cpus):
        return None
    known = {work(arm): arm for arm in ours.case.arms if arm.image != first.image.id and arm.seconds}
    for arm in theirs.case.arms:
        found = known.get(work(arm))
        if found and arm.image == found.image != second.image.id and arm.seconds and arm.name == found.name:
            return found
    return None


def _times(one: TimedArm, held: ArmResult | None, time: Callable[[Sample], float]) -> Interval | None:
    """Of the median of seconds per item, or of how many times `held`'s they are, over the undisturbed rounds.

    Of all rounds where those are too few, for reading only.
    """
    name, items, clean = one.arm.name, one.arm.items, undisturbed(one.case.rounds)
    used = clean if len(clean) >= intervals.FEWEST else one.case.rounds
    rounds = [row.samples for row in used if name in row.samples]
    if held is None:
        return interval([time(samples[name]) / items for samples in rounds])
    if not all(held.name in samples and time(samples[held.name]) > 0 for samples in rounds):
        return None
    return interval([time(samples[name]) / items * held.items / time(samples[held.name]) for samples in rounds])
