"""Conclusions from an experiment's numbers that go beyond a ratio, and how certain they are. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tfbuild.bench import wording
from tfbuild.measure.evaluate import (
    TIMES,
    compare_arms,
    interval,
    interval_text,
    ratios,
    seconds_per_item,
    used_rounds,
    wall,
)
from tfbuild.measure.records import FASTER, SLOWER, ArmResult, CaseResult, Finding, Interval, Sample

# Limits for the time of a step with its pipeline over the step alone (the tf.data guide's question); they held in
# measurements.
COMPUTE_BOUND, INPUT_BOUND = 1.1, 1.3
# Input and step share the CPUs if running both at once is faster than one after the other by no more than this.
SHARED = 1.1
# Widths are read equally fast if all ends of their speeds' intervals are within this factor, and not if two intervals
# are further apart: two copies of the same numbers were read 1.24 times as fast as each other.
ALIKE = 1.25
# Bytes of a number.
WIDTHS = {"float32": 4, "bfloat16": 2, "int8": 1}
BOUNDS = ("compute-bound", "balanced", "input-bound")


def derive(kind: str, cases: Sequence[CaseResult]) -> tuple[Finding, ...]:
    """Derive an experiment's findings by its `finding`; nothing if too little was measured."""
    conclude = DERIVED.get(kind)
    if conclude is None:
        return ()
    return tuple(_with_caveat(finding, case) for case in cases if case.rounds for finding in conclude(case))


def _with_caveat(finding: Finding, case: CaseResult) -> Finding:
    """Append the caveat on the case's numbers, which holds for the finding too."""
    caveat = wording.caveat(case)
    return replace(finding, text=f"{finding.text} ({caveat})") if caveat else finding


def bottleneck(low: float, high: float) -> str:
    """Say what limits a training whose step takes `low` to `high` times as long as the step alone; both must agree."""
    first, last = _bound(low), _bound(high)
    if first == last:
        return BOUNDS[first]
    return f"not sure, from {BOUNDS[first]} to {BOUNDS[last]}"


def _bound(slower: float) -> int:
    return (slower >= COMPUTE_BOUND) + (slower > INPUT_BOUND)


# A smaller growth in MiB may be a few temporary tensors or a doubled arena, and gives no line.
LEAST_GROWTH = 128.0
# A line that misses its points by more predicts nothing.
OFF_THE_LINE = 0.25


def memory(name: str, points: Sequence[tuple[int, float]], limit: float) -> Finding | None:
    """Say which batch fills `limit` MiB, by a line through (items, peak MiB); None if the points are not on a line."""
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
    largest = int(float(f"{max(0.0, (limit - rest) / each):.1e}"))
    text = (
        f"{name}: an item of a batch takes {_rounded(each * 1024)} KiB in addition to {rest:.0f} MiB (measured up to "
        f"batch {last}); the {limit:.0f} MiB of memory here are full at batch {largest:,}"
    )
    values = {"mib_per_item": each, "mib_beside": rest, "mib_limit": limit, "memory_limit": float(largest)}
    return Finding(text=text, values=values)


def _input_bound(case: CaseResult) -> list[Finding]:
    """Say what limits each training. The baseline is the step alone, as if its pipeline cost nothing; the arm with the
    same parameters but without the step is the input alone."""
    conclusions = []
    base = case.arms[0]
    inputs = {_options(arm): arm for arm in case.arms if arm.workload == "pipeline" and not arm.params.get("step")}
    for arm in case.arms[1:]:
        if arm.wall is None or not arm.params.get("step") or not _rate(arm):
            continue
        slower, low, high = 1 / arm.wall.median, 1 / arm.wall.high, 1 / arm.wall.low
        input_alone = inputs.get(_options(arm))
        limit = _limit(arm, arm.wall)
        values = {"real_over_synthetic": slower, "low": low, "high": high}
        rates = ""
        if input_alone and _rate(base) and _rate(input_alone):
            limit = _shared_limit(case, arm, input_alone, limit)
            rates = f" ({_rate(base):.0f} items/s computed, {_rate(input_alone):.0f} read, {_rate(arm):.0f} both)"
            values |= {"compute_rate": _rate(base), "input_rate": _rate(input_alone), "combined_rate": _rate(arm)}
        text = f"{arm.name}: {slower:.2f} [{low:.2f}, {high:.2f}] times the step alone: {limit}{rates}"
        conclusions.append(Finding(text=text, values=values))
    return conclusions


def _shared_limit(case: CaseResult, arm: ArmResult, input_alone: ArmResult, limit: str) -> str:
    """Say what limits the arm if its input and its step together take as long as one after the other.

    A pipeline that prefetches runs both at once, so they share the CPUs, and making either cheaper helps. Without
    prefetching they take turns. If one of the two is short, running both at once saves little even where nothing is
    shared; then nothing is said of sharing.
    """
    base = case.arms[0]
    names = {base.name, arm.name, input_alone.name}
    rounds = [row.samples for row in used_rounds(case.rounds) if names <= row.samples.keys()]

    def item(arm: ArmResult, samples: Mapping[str, Sample]) -> float:
        return wall(samples[arm.name]) / arm.items

    apart = [(item(base, row), item(input_alone, row)) for row in rounds]
    saved = interval([sum(both) / item(arm, row) for both, row in zip(apart, rounds, strict=True)])
    most = interval([sum(both) / max(both) for both in apart])
    if limit == BOUNDS[0] or saved is None or saved.high > SHARED:
        return limit
    if not arm.params.get("prefetch"):
        return f"{limit}: input and step take turns, because nothing is prefetched"
    if most is None or most.low <= SHARED:
        return limit
    step, read = 1 / _rate(base), 1 / _rate(input_alone)
    larger, share = ("the step", step) if step >= read else ("the input", read)
    return (
        f"the CPUs are the limit: input and step share them; {larger} takes the larger part of their time "
        f"({share / (step + read):.0%}) and should be made cheaper first"
    )


def _limit(arm: ArmResult, ratio: Interval) -> str:
    """Say what limits the arm, as far as its rounds show it."""
    limit = bottleneck(1 / ratio.high, 1 / ratio.low)
    if limit == BOUNDS[-1] and arm.effect != SLOWER:
        return "not sure: the step alone varies as much"
    return limit


def _rate(arm: ArmResult) -> float:
    """Return items a second by the clock, for reading only; 0 if it was not measured."""
    return 1 / arm.seconds if arm.seconds else 0.0


def _options(arm: ArmResult) -> str:
    return repr(sorted((name, value) for name, value in arm.params.items() if name != "step"))


def _items_per_second(case: CaseResult) -> list[Finding]:
    """List items a second by the clock, as tf_cnn_benchmarks' "images/sec", and the memory of separate processes."""
    timed = [arm for arm in case.arms if arm.seconds]
    if not timed:
        return []
    unit = "images/s" if case.arms[0].params.get("application") else "sequences/s"
    # Arms with the same environment share one process.
    shared = any((arm.env, arm.image) == (case.arms[0].env, case.arms[0].image) for arm in case.arms[1:])
    memory = {arm.name: f" in {arm.rss:.0f} MiB" for arm in timed if arm.rss and not shared}
    rates = ", ".join(f"{arm.name} {_rounded(_rate(arm))} {unit}{memory.get(arm.name, '')}" for arm in timed)
    return [Finding(text=f"{case.name}: {rates}", values={arm.name: _rate(arm) for arm in timed})]


def _rounded(number: float) -> str:
    """Format a number with three digits, or as a whole number: "12.3", "2,130"."""
    digits = float(f"{number:.3g}")
    return f"{digits:g}" if digits < 1000 else f"{digits:,.0f}"


def _bandwidth(case: CaseResult) -> list[Finding]:
    """Say how fast memory was read; if memory is the only limit, numbers of each width are read equally fast."""
    speeds = {
        arm.name: _gigabytes(seconds, WIDTHS[str(arm.params["dtype"])])
        for arm in case.arms
        if arm.workload == "bandwidth" and (seconds := seconds_per_item(case, arm))
    }
    if len(speeds) < 2:
        return []
    listed = ", ".join(f"{name} at {at.median:.1f} [{at.low:.1f}, {at.high:.1f}] GB/s" for name, at in speeds.items())
    lows, highs = [speed.low for speed in speeds.values()], [speed.high for speed in speeds.values()]
    limit = "memory bandwidth is the limit"
    if max(highs) > ALIKE * min(lows):
        sure_apart = max(lows) > ALIKE * min(highs)
        limit = "memory bandwidth is not the only limit" if sure_apart else f"not sure whether {limit}"
    values = {name: speed.median for name, speed in speeds.items()}
    return [Finding(text=f"{case.name}: {listed}: {limit}", values=values)]


def _gigabytes(seconds: Interval, width: int) -> Interval:
    """Convert seconds for 1 Mi numbers of `width` bytes to GB/s."""
    low, middle, high = (2**20 / 1e9 / end * width for end in (seconds.high, seconds.median, seconds.low))
    return replace(seconds, median=middle, low=low, high=high)


def _page_faults(case: CaseResult) -> list[Finding]:
    """List page faults and memory, which a ratio of times does not show."""
    arms = [(arm.name, arm.faults, arm.rss) for arm in case.arms if arm.faults is not None and arm.rss is not None]
    if len(arms) < 2:
        return []
    text = ", ".join(f"{name} {faults:.0f} faults and {rss:.0f} MiB" for name, faults, rss in arms)
    values = {f"faults of {name}": faults for name, faults, _ in arms}
    values |= {f"MiB of {name}": rss for name, _, rss in arms}
    return [Finding(text=f"{case.name}, page faults a call and memory: {text}", values=values)]


def _first_calls(case: CaseResult) -> list[Finding]:
    """List the seconds of each arm's first call, which traces and, with XLA, compiles."""
    base, *others = case.arms
    timed = [arm for arm in others if arm.seconds is not None]
    if base.seconds is None or not timed:
        return []
    nodes = {arm.name: f" ({arm.nodes} nodes)" for arm in timed if arm.nodes}
    text = ", ".join(f"{arm.name} {arm.first:.2f} s{nodes.get(arm.name, '')}" for arm in (base, *timed))
    values = {f"first call of {arm.name}": arm.first for arm in (base, *timed)}
    return [Finding(text=f"{case.name}, the first call, measured once: {text}", values=values)]


def _against_default(case: CaseResult) -> list[Finding]:
    timed = sorted((arm for arm in case.arms[1:] if arm.wall), key=_gain, reverse=True)
    better = [arm for arm in timed if arm.effect == FASTER]
    if better:
        listed = ", ".join(f"{arm.name} {interval_text(arm.wall)}" for arm in better)
        return [Finding(text=f"{case.name}: faster than the default: {listed}", values={"gain": _gain(better[0])})]
    if not timed:
        return []
    best = f"{timed[0].name} {interval_text(timed[0].wall)}"
    band = f"the default against itself {interval_text(case.band)}"
    return [Finding(text=f"{case.name}: no setting measurably beats the default (the best: {best}, {band})", values={})]


def _gain(arm: ArmResult) -> float:
    return arm.wall.median if arm.wall else 0.0


def _fused(case: CaseResult) -> list[Finding]:
    """Compare fused with unfused in each layout but the baseline's, which the table shows.

    An arm that computes something else is left out: up to TensorFlow 2.15, layouts that share a process may.
    """
    timed = [arm for arm in case.arms[1:] if arm.seconds and arm.same is not False]
    return [
        _pair(case, arm, other)
        for other in timed
        for arm in timed
        if arm.params.get("fused") and other.params == arm.params | {"fused": False}
    ]


def _pair(case: CaseResult, arm: ArmResult, other: ArmResult) -> Finding:
    """Compare an arm with an arm that is not the baseline, in the same rounds."""
    verdict = compare_arms(case, arm, other)
    ratio, time = wording.judged_ratio(verdict, case), wording.METRICS[case.metric]
    text = f"{case.name}: {arm.name} against {other.name}: {verdict.effect}, {interval_text(ratio)} in {time}"
    return Finding(text=text, values={"median": ratio.median, "low": ratio.low, "high": ratio.high} if ratio else {})


# --- batch sizes ------------------------------------------------------------------------------------------------------

# The share of the best rate with which a batch is large enough.
ENOUGH = 0.9


def sweeps_batches(case: CaseResult) -> bool:
    """Whether its arms differ in their batch size."""
    sizes = {arm.params.get("batch") for arm in case.arms}
    return len(sizes) > 1 and None not in sizes


def enough(case: CaseResult) -> list[int]:
    """Return the measured batches with ENOUGH of the best measured rate, the smallest first."""
    seconds = {arm.items: arm.seconds for arm in case.arms if arm.seconds}
    return sorted(items for items, each in seconds.items() if min(seconds.values()) >= ENOUGH * each)


def _batch_size(case: CaseResult) -> list[Finding]:
    """Say which batch is large enough; nothing if fewer than three were timed."""
    timed = [arm for arm in case.arms if arm.seconds]
    if len(timed) < 3:
        return []
    size, largest = enough(case)[0], max(arm.items for arm in timed)
    low, high = _range_of(case, timed, size)
    span = f" ({low} to {high})" if low != high else ""
    text = f"{case.name}: batch {size}{span} gives {ENOUGH:.0%} of the best rate measured (up to {largest})"
    text += "; the rate may still be growing there" if size == largest else ""
    each = {arm.items: arm.seconds or 0.0 for arm in timed}
    latency = wording.time(min(each) * each[min(each)])
    text += f"; batch {size}: {_rounded(1 / each[size])} items/s; batch {min(each)}: {latency} a call"
    return [Finding(text=text, values={"batch": float(size), "low": float(low), "high": float(high)})]


def _range_of(case: CaseResult, timed: Sequence[ArmResult], middle: int) -> tuple[int, int]:
    """Return the smallest batch that may be large enough by its interval, and the smallest that surely is.

    Rates of the same round are compared; `middle`, by the medians, lies between the two.
    """
    best = min(timed, key=lambda arm: arm.seconds or 0.0)
    may, must = [middle], [best.items]
    for arm in timed:
        items = {arm.name: arm.items, best.name: best.items}
        ratio = interval(ratios(used_rounds(case.rounds), items, arm.name, best.name, TIMES[case.metric]))
        if ratio and ratio.high >= ENOUGH:
            may.append(arm.items)
        if ratio and ratio.low >= ENOUGH:
            must.append(arm.items)
    return min(may), max(middle, min(must))


DERIVED: dict[str, Callable[[CaseResult], list[Finding]]] = {
    "against_default": _against_default,
    "bandwidth": _bandwidth,
    "batch_size": _batch_size,
    "first_call": _first_calls,
    "fused": _fused,
    "input_bound": _input_bound,
    "items_per_second": _items_per_second,
    "page_faults": _page_faults,
}
