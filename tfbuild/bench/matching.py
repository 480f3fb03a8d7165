"""Match the rows of two reports: a ratio for what both measured, a reason for what only one did. Pure."""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from tfbuild.measure import intervals, records
from tfbuild.measure.evaluate import TIMES, undisturbed_rounds
from tfbuild.measure.intervals import interval
from tfbuild.measure.records import ArmResult, BenchReport, CaseResult, ExperimentResult, Interval, Sample

TOO_FEW, DISTURBED = "too few rounds", "disturbed"
NOT_THERE = "not measured"
OTHER_WORK = "different work of the same name"
OTHER_RESULT = "result differs from its baseline's"


@dataclass(frozen=True, kw_only=True)
class TimedArm:
    """An arm that was timed in the report's own image."""

    case: CaseResult
    arm: ArmResult


@dataclass(frozen=True, kw_only=True)
class Lack:
    """A row that one report lacks. `broken`: it was tried there and failed, or its result differs."""

    experiment: str
    case: str
    arm: str
    why: str
    broken: bool = False


@dataclass(frozen=True, kw_only=True)
class ArmRatio:
    """An arm in both reports: the first's time per item over the second's, by the clock and in CPU time.

    `cpu`: None if it used no CPU time; `left_out`: why it counts in no total, else empty; `held`: the other image that
    both compare with in their own rounds, which takes the machine's drift out of the ratio.
    """

    experiment: str
    case: str
    arm: str
    wall: Interval
    cpu: Interval | None
    left_out: str = ""
    held: str = ""


@dataclass(frozen=True, kw_only=True)
class Matched:
    """`rows`: the same work in both reports; `lacks`: only in the first; `more`: only in the second."""

    rows: tuple[ArmRatio, ...]
    lacks: tuple[Lack, ...]
    more: tuple[Lack, ...]


# Experiment, case and arm.
Key = tuple[str, str, str]


def match(first: BenchReport, second: BenchReport) -> Matched:
    """Pair the arms that did the same work in both reports, and list the others with reasons."""
    ours, theirs = timed_arms(first), timed_arms(second)
    rows, lacks = [], []
    for key, own in ours.items():
        other = theirs.get(key)
        if other is None:
            why, broken = _absent(second, key)
            lacks.append(_lack(key, why, broken=broken))
        elif work(own.arm) != work(other.arm):
            lacks.append(_lack(key, OTHER_WORK))
        elif other.arm.same is False and own.arm.same is not False:
            lacks.append(_lack(key, OTHER_RESULT, broken=True))
        elif row := _arm_ratio(first, second, key, own, other):
            rows.append(row)
        else:
            lacks.append(_lack(key, TOO_FEW))
    more = [_lack(key, _absent(first, key)[0]) for key in theirs if key not in ours]
    return Matched(rows=tuple(rows), lacks=tuple(lacks), more=tuple(more))


def timed_arms(report: BenchReport) -> dict[Key, TimedArm]:
    """Return the timed arms, without those that ran in the image of --against."""
    return {
        (row.name, case.name, arm.name): TimedArm(case=case, arm=arm)
        for row in report.experiments
        for case in row.cases
        for arm in case.arms
        if arm.seconds is not None
        and arm.status != records.FAILED
        and arm.image == report.image.id
        and any(arm.name in row.samples for row in case.rounds)
    }


def work(arm: ArmResult) -> tuple[str, bytes]:
    """Identify the arm's work, since the same name may stand for other work in another version of tfbuild."""
    return arm.workload, msgspec.json.encode(arm.params, order="sorted")


def _lack(key: Key, why: str, *, broken: bool = False) -> Lack:
    experiment, case, arm = key
    return Lack(experiment=experiment, case=case, arm=arm, why=why, broken=broken)


def _absent(report: BenchReport, key: Key) -> tuple[str, bool]:
    """Return why `report` has no time for this arm, by the arm, its case or its experiment, and whether it failed."""
    rows = [row for row in report.experiments if row.name == key[0]]
    cases = [case for row in rows for case in row.cases if case.name == key[1]]
    arms = [arm for case in cases for arm in case.arms if arm.name == key[2]]
    results: list[ArmResult | CaseResult | ExperimentResult] = [*arms, *cases, *rows]
    for result in results:
        if result.status != records.MEASURED:
            why = f"{result.status}: {result.reason}" if result.reason else result.status
            return why, result.status == records.FAILED
    return NOT_THERE, False


# --- ratios ----------------------------------------------------------------------------------------------------------


def _arm_ratio(first: BenchReport, second: BenchReport, key: Key, ours: TimedArm, theirs: TimedArm) -> ArmRatio | None:
    """Return the ratio of an arm in both reports; None if there is none by the clock, as from a single round."""
    held = _reference(first, second, ours, theirs)

    def ratio(metric: str) -> Interval | None:
        above, below = (_times(each, held, TIMES[metric]) for each in (ours, theirs))
        return intervals.quotient(above, below) if above and below and min(above.low, below.low) > 0 else None

    wall = ratio("wall")
    if wall is None:
        return None
    quiet = all(len(undisturbed_rounds(each.case.rounds)) >= intervals.FEWEST for each in (ours, theirs))
    few = wall.coverage < intervals.CONFIDENCE
    experiment, case, arm = key
    return ArmRatio(
        experiment=experiment,
        case=case,
        arm=arm,
        wall=wall,
        cpu=ratio("cpu"),
        left_out=TOO_FEW if few else "" if quiet else DISTURBED,
        held=held.image if held else "",
    )


def _reference(first: BenchReport, second: BenchReport, ours: TimedArm, theirs: TimedArm) -> ArmResult | None:
    """Return the arm of another image with the same work in the same rounds, if both reports have that image.

    None for reports of different machines, because it would hide the difference between the machines.
    """
    if (first.host.cpu, first.host.cpus) != (second.host.cpu, second.host.cpus):
        return None
    known = {work(arm): arm for arm in ours.case.arms if arm.image != first.image.id and arm.seconds}
    for arm in theirs.case.arms:
        own = known.get(work(arm))
        if own and arm.image == own.image != second.image.id and arm.seconds and arm.name == own.name:
            return own
    return None


def _times(timed_arm: TimedArm, held: ArmResult | None, time: Callable[[Sample], float]) -> Interval | None:
    """Return the median of seconds per item, or of their ratio to `held`'s, over the undisturbed rounds.

    If these are too few, all rounds are used, for reading only.
    """
    name, items, clean = timed_arm.arm.name, timed_arm.arm.items, undisturbed_rounds(timed_arm.case.rounds)
    used = clean if len(clean) >= intervals.FEWEST else timed_arm.case.rounds
    rounds = [row.samples for row in used if name in row.samples]
    if held is None:
        return interval([time(samples[name]) / items for samples in rounds])
    if not all(held.name in samples and time(samples[held.name]) > 0 for samples in rounds):
        return None
    return interval([time(samples[name]) / items * held.items / time(samples[held.name]) for samples in rounds])
