"""What follows from an experiment's numbers beyond a ratio, and how sure it is. Pure."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tfbuild.bench import batch_size, wording
from tfbuild.bench.batch_size import OFF_THE_LINE
from tfbuild.measure import intervals
from tfbuild.measure.evaluate import against, counted, interval, seconds_per_item, sure, wall
from tfbuild.measure.experiments import FindingKind
from tfbuild.measure.records import FASTER, SLOWER, ArmResult, CaseResult, Finding, Interval, Sample

# Step on the real pipeline over step alone (the tf.data guide's question, with limits that held in measurements).
COMPUTE_BOUND, INPUT_BOUND = 1.1, 1.3
# What both at once may save of the time that one after the other takes, and still be no gain: both are the processors'.
SHARED = 1.1
# MB/s of the guide's disks, and classes by range, for caches and hosts behind a virtual disk blur them.
GUIDE = (50, 150, 500, 2000)
PHOTOGRAPH = 63
# Bytes of a number.
WIDTHS = {"float32": 4, "bfloat16": 2, "int8": 1}
BOUNDS = ("compute-bound", "balanced", "input-bound")
DISKS = ((200.0, "a spinning disk's"), (700.0, "a SATA SSD's"), (1500.0, "between a SATA SSD's and an NVMe's"))


def of(kind: FindingKind, cases: Sequence[CaseResult]) -> tuple[Finding, ...]:
    """Say what follows by an experiment's `finding`; nothing where too little was measured."""
    derive = DERIVED.get(kind)
    return tuple(_with_caveat(found, case) for case in cases if case.rounds for found in derive(case)) if derive else ()


def _with_caveat(found: Finding, case: CaseResult) -> Finding:
    """What spoils the case's numbers spoils what follows from them."""
    caveat = wording.caveat(case)
    return replace(found, text=f"{found.text} ({caveat})") if caveat else found


def bound(slower: float, low: float = 0.0, high: float = 0.0) -> str:
    """What limits a training whose step takes `slower` times as long as the step alone; `low` and `high` are the ends
    of that number's interval, where it has one: both must say the same."""
    first, last = (_bound(end or slower) for end in (low, high))
    if first == last:
        return BOUNDS[first]
    return f"not sure, from {BOUNDS[first]} to {BOUNDS[last]}"


def _bound(slower: float) -> int:
    return (slower >= COMPUTE_BOUND) + (slower > INPUT_BOUND)


# A tensor or two of the optimiser's choosing, an arena that doubles: less is no growth to draw a line through.
LEAST_GROWTH = 128.0


def memory(name: str, points: Sequence[tuple[int, float]], limit: float) -> Finding | None:
    """What a batch needs by (items, MiB at most so far), and which one fills `limit` MiB; None where no line shows."""
    if len(points) < 2:
        return None
    (first, base), (last, most) = points[0], points[-1]
    if most - base < LEAST_GROWTH:
        return None
    each = (most - base) / (last - first)
    grown = [(n, mib - base) for n, mib in points if mib - base >= LEAST_GROWTH / 2]
    if any(abs(each * (n - first) - more) > OFF_THE_LINE * more for n, more in grown):
        return None
    rest = base - each * first
    largest = _two_digits((limit - rest) / each)
    text = (
        f"{name}: an item of a batch takes {each * 1024:.3g} KiB beside {rest:.0f} MiB (seen up to batch {last}); the "
        f"{limit:.0f} MiB of memory here are full at batch {largest:,}"
    )
    values = {"mib_per_item": each, "mib_beside": rest, "mib_limit": limit, "memory_limit": float(largest)}
    return Finding(text=text, values=values)


def peaks(name: str, found: Mapping[str, float]) -> Finding | None:
    """What each arm took by the MiB that a process of its own had at most; None where that holds nothing together."""
    if len(found) < 2:
        return None
    told = ", ".join(f"{arm} {mib:.0f} MiB" for arm, mib in found.items())
    text = f"{name}, the most that a process of its own took, seen once: {told}"
    return Finding(text=text, values={f"peak of {arm}": mib for arm, mib in found.items()})


def _two_digits(number: float) -> int:
    return int(float(f"{max(0.0, number):.1e}"))


def _input_bound(case: CaseResult) -> list[Finding]:
    """The baseline is the step alone: what a pipeline at no cost would give. An arm's input alone is the one with the
    same parameters but for the step."""
    found = []
    base = case.arms[0]
    alone = {_knobs(arm): arm for arm in case.arms if arm.workload == "pipeline" and not arm.params.get("step")}
    for arm in case.arms[1:]:
        if arm.wall is None or not arm.params.get("step") or not _rate(arm):
            continue
        slower, low, high = 1 / arm.wall.median, 1 / arm.wall.high, 1 / arm.wall.low
        given = alone.get(_knobs(arm))
        word = _limit(arm, arm.wall)
        values = {"real_over_synthetic": slower, "low": low, "high": high}
        rates = ""
        if given and _rate(base) and _rate(given):
            word = _together(case, arm, given, word)
            rates = f" ({_rate(base):.0f} items/s computed, {_rate(given):.0f} read, {_rate(arm):.0f} both)"
            values |= {"compute_rate": _rate(base), "input_rate": _rate(given), "combined_rate": _rate(arm)}
        text = f"{arm.name}: {slower:.2f} [{low:.2f}, {high:.2f}] times the step alone: {word}{rates}"
        found.append(Finding(text=text, values=values))
    return found


def _together(case: CaseResult, arm: ArmResult, given: ArmResult, word: str) -> str:
    """What limits the arm where its input and its step together take as long as one after the other.

    A pipeline that prefetches does both at once: then it is the processors that they share, and whatever takes less
    of them helps. One that does not waits by its own making.
    """
    base = case.arms[0]
    both = [row.samples for row in counted(case.rounds) if {base.name, arm.name, given.name} <= row.samples.keys()]

    def item(arm: ArmResult, taken: Mapping[str, Sample]) -> float:
        return wall(taken[arm.name]) / arm.items

    saved = interval([(item(base, taken) + item(given, taken)) / item(arm, taken) for taken in both])
    if word == BOUNDS[0] or saved is None or not sure(saved) or saved.high > SHARED:
        return word
    if not arm.params.get("prefetch"):
        return f"{word}: input and step take turns, for nothing is prefetched"
    step, read = 1 / _rate(base), 1 / _rate(given)
    larger, share = ("the step", step) if step >= read else ("the input", read)
    return (
        f"the processors are the limit: input and step share them; {larger} is the larger part of their time "
        f"({share / (step + read):.0%}), and the one to make cheaper first"
    )


def _limit(arm: ArmResult, ratio: Interval) -> str:
    """What limits the arm, as far as its rounds show it."""
    if not sure(ratio):
        return "too few rounds to say what limits it"
    word = bound(1 / ratio.median, 1 / ratio.high, 1 / ratio.low)
    if word == BOUNDS[-1] and arm.effect != SLOWER:
        return "not sure, the step alone differs from itself as much"
    return word


def _rate(arm: ArmResult) -> float:
    """Items a second by the clock, for reading; 0 where it was not measured."""
    return 1 / arm.seconds if arm.seconds else 0.0


def _knobs(arm: ArmResult) -> str:
    return repr(sorted((name, value) for name, value in arm.params.items() if name != "step"))


def _items_per_second(case: CaseResult) -> list[Finding]:
    """tf_cnn_benchmarks' "images/sec" by the clock, with the memory that it took in a process of its own."""
    timed = [arm for arm in case.arms if arm.seconds]
    if not timed:
        return []
    unit = "images/s" if case.arms[0].params.get("application") else "sequences/s"
    # Arms that nothing in the environment sets apart take turns in one process.
    shared = any((arm.env, arm.image) == (case.arms[0].env, case.arms[0].image) for arm in case.arms[1:])
    memory = {arm.name: f" in {arm.rss:.0f} MiB" for arm in timed if arm.rss and not shared}
    told = ", ".join(f"{arm.name} {_rate(arm):.3g} {unit}{memory.get(arm.name, '')}" for arm in timed)
    return [Finding(text=f"{case.name}: {told}", values={arm.name: _rate(arm) for arm in timed})]


def _disk_speed(case: CaseResult) -> list[Finding]:
    arm = case.arms[0]
    if arm.workload != "disk" or not arm.seconds:
        return []
    speed = _megabytes(arm.seconds)
    taken = seconds_per_item(case, arm)
    low, high = (_megabytes(taken.high), _megabytes(taken.low)) if taken else (speed, speed)
    text = (
        f"this disk reads {speed:.0f} MB/s [{low:.0f}, {high:.0f}] past the page cache, {_disk(low, high)} "
        f"(a host's cache may lie behind it): {speed * 1e3 / PHOTOGRAPH:.0f} photographs of {PHOTOGRAPH} KB a second"
    )
    return [Finding(text=text, values={"mb_per_second": speed, "low": low, "high": high})]


def _bandwidth(case: CaseResult) -> list[Finding]:
    """How fast memory was read: numbers of each width, where nothing else held them up, as fast as of any other."""
    speeds = {
        arm.name: _gigabytes(taken, WIDTHS[str(arm.params["dtype"])])
        for arm in case.arms
        if arm.workload == "bandwidth" and (taken := seconds_per_item(case, arm))
    }
    if len(speeds) < 2:
        return []
    told = ", ".join(f"{name} at {one.median:.1f} [{one.low:.1f}, {one.high:.1f}] GB/s" for name, one in speeds.items())
    shared = max(one.low for one in speeds.values()) <= min(one.high for one in speeds.values())
    limit = "memory is what they wait for" if shared else "more than memory sets them apart"
    values = {name: one.median for name, one in speeds.items()}
    return [Finding(text=f"{case.name}: {told}: {limit}", values=values)]


def _gigabytes(taken: Interval, width: int) -> Interval:
    """GB/s out of seconds for 1 Mi numbers of `width` bytes."""
    low, middle, high = (_megabytes(one) / 1e3 * width for one in (taken.high, taken.median, taken.low))
    return replace(taken, median=middle, low=low, high=high)


def _megabytes(seconds: float) -> float:
    """MB/s out of seconds a MiB."""
    return 2**20 / 1e6 / seconds


def _disk(low: float, high: float) -> str:
    """The class of disk, and the guide's, where both ends of the interval have the same; else from one to the other."""
    first, last = _class(low), _class(high)
    slow, fast = _nearest(low), _nearest(high)
    classes = f"{first} range" if first == last else f"anything from {first} range to {last}"
    guide = f"{slow} MB/s" if slow == fast else f"{slow} to {fast} MB/s"
    return f"{classes} and nearest to the guide's {guide}"


def _page_faults(case: CaseResult) -> list[Finding]:
    """What a ratio of times does not show: pages that the kernel had to give again, and memory that was kept."""
    told = [(arm.name, arm.faults, arm.rss) for arm in case.arms if arm.faults is not None and arm.rss is not None]
    if len(told) < 2:
        return []
    text = ", ".join(f"{name} {faults:.0f} faults and {rss:.0f} MiB" for name, faults, rss in told)
    values = {f"faults of {name}": faults for name, faults, _ in told} | {
        f"MiB of {name}": rss for name, _, rss in told
    }
    return [Finding(text=f"{case.name}, page faults a call and memory: {text}", values=values)]


def _class(speed: float) -> str:
    return next((word for limit, word in DISKS if speed < limit), "an NVMe's")


def _nearest(speed: float) -> int:
    return min(GUIDE, key=lambda known: abs(math.log(known / speed)))


def _first_calls(case: CaseResult) -> list[Finding]:
    """What the first call of each arm takes, beside the baseline's: tracing and, for XLA, compiling."""
    base, *others = case.arms
    told = [arm for arm in others if arm.seconds is not None]
    if base.seconds is None or not told:
        return []
    text = ", ".join(f"{arm.name} {arm.first:.2f} s{_nodes(arm)}" for arm in (base, *told))
    values = {f"first call of {arm.name}": arm.first for arm in (base, *told)}
    return [Finding(text=f"{case.name}, the first call, seen once: {text}", values=values)]


def _nodes(arm: ArmResult) -> str:
    return f" ({arm.nodes} nodes)" if arm.nodes else ""


def _against_default(case: CaseResult) -> list[Finding]:
    timed = sorted((arm for arm in case.arms[1:] if arm.wall), key=_gain, reverse=True)
    better = [arm for arm in timed if arm.effect == FASTER]
    if better:
        told = ", ".join(f"{arm.name} {intervals.spelled(arm.wall)}" for arm in better)
        return [Finding(text=f"{case.name}: faster than the default: {told}", values={"gain": _gain(better[0])})]
    known = [arm for arm in timed if sure(arm.wall)]
    if not known:
        return [Finding(text=f"{case.name}: too few rounds to say whether a setting beats the default", values={})]
    told = (
        f"{known[0].name} {intervals.spelled(known[0].wall)}, the default against itself {intervals.spelled(case.band)}"
    )
    return [Finding(text=f"{case.name}: no setting is shown to beat the default (the best: {told})", values={})]


def _gain(arm: ArmResult) -> float:
    return arm.wall.median if arm.wall else 0.0


def _fused(case: CaseResult) -> list[Finding]:
    """The fused one against the unfused one in each layout but the baseline's, of which the table tells."""
    return [
        _pair(case, arm, other)
        for other in case.arms[1:]
        for arm in case.arms[1:]
        if arm.params.get("fused") and other.params == arm.params | {"fused": False} and _measured(arm, other)
    ]


def _map_and_batch(case: CaseResult) -> list[Finding]:
    """map_and_batch against map, then batch, with as many calls."""
    return [
        _pair(case, arm, other)
        for arm in case.arms
        for other in case.arms
        if arm.params.get("map_and_batch") and _without(arm, "map_and_batch") == _without(other, "map_and_batch")
        if arm is not other and _measured(arm, other)
    ]


def _measured(*arms: ArmResult) -> bool:
    return all(arm.seconds for arm in arms)


def _without(arm: ArmResult, name: str) -> tuple[object, ...]:
    return arm.workload, arm.env, {key: value for key, value in arm.params.items() if key != name}


def _pair(case: CaseResult, arm: ArmResult, other: ArmResult) -> Finding:
    """An arm against another one than the baseline, in the same rounds."""
    verdict = against(case, arm, other)
    ratio, time = (verdict.cpu, "CPU time") if case.metric == "cpu" else (verdict.wall, "wall time")
    word = verdict.effect if sure(ratio) else wording.TOO_FEW
    text = f"{case.name}: {arm.name} against {other.name}: {word}, {intervals.spelled(ratio)} in {time}"
    return Finding(text=text, values={"median": ratio.median, "low": ratio.low, "high": ratio.high} if ratio else {})


DERIVED: dict[FindingKind, Callable[[CaseResult], list[Finding]]] = {
    "against_default": _against_default,
    "bandwidth": _bandwidth,
    "batch_size": batch_size.derive,
    "disk": _disk_speed,
    "first_call": _first_calls,
    "fused": _fused,
    "input_bound": _input_bound,
    "items_per_second": _items_per_second,
    "map_and_batch": _map_and_batch,
    "page_faults": _page_faults,
}
