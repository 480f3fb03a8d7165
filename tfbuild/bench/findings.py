"""What follows from an experiment's numbers beyond a ratio. Pure."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from tfbuild.bench.results import FASTER, ArmResult, CaseResult, Finding

SHARES = (0.8, 0.9, 0.95)
# Step on the real pipeline over step alone (the tf.data guide's question, with limits that held in measurements).
COMPUTE_BOUND, INPUT_BOUND = 1.1, 1.3
# MB/s of the guide's disks, and classes by range, for caches and hosts behind a virtual disk blur them.
GUIDE = (50, 150, 500, 2000)
PHOTOGRAPH = 63
DISKS = ((200.0, "a spinning disk's"), (700.0, "a SATA SSD's"), (1500.0, "between a SATA SSD's and an NVMe's"))


def of(name: str, cases: Sequence[CaseResult]) -> tuple[Finding, ...]:
    """What follows in the experiment `name`; nothing where too little was measured."""
    derive = DERIVED.get(name)
    return tuple(finding for case in cases if case.rounds for finding in derive(case)) if derive else ()


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Step seconds = a + b * n; `error`: the median relative one."""

    a: float
    b: float
    error: float

    def batch(self, share: float) -> float:
        """Items a step for `share` of the rate that endless steps would have."""
        return share / (1 - share) * self.a / self.b


def fit(points: Sequence[tuple[int, float]]) -> Fit | None:
    """The line of least relative error through (items, seconds of a step); None where the points give no such line."""
    weights = [1 / seconds**2 for _, seconds in points]
    total = sum(weights)
    mean_n = sum(w * n for w, (n, _) in zip(weights, points, strict=True)) / total
    mean_t = sum(w * t for w, (_, t) in zip(weights, points, strict=True)) / total
    spread = sum(w * (n - mean_n) ** 2 for w, (n, _) in zip(weights, points, strict=True))
    if len(points) < 3 or spread == 0:
        return None
    b = sum(w * (n - mean_n) * (t - mean_t) for w, (n, t) in zip(weights, points, strict=True)) / spread
    a = mean_t - b * mean_n
    if a <= 0 or b <= 0:
        return None
    return Fit(a=a, b=b, error=median(abs(a + b * n - t) / t for n, t in points))


def knee(points: Sequence[tuple[int, float]], share: float) -> int:
    """The smallest measured n whose rate is `share` of the best measured one."""
    best = max(n / seconds for n, seconds in points)
    return min(n for n, seconds in points if n / seconds >= share * best)


def _batch_size(case: CaseResult) -> list[Finding]:
    points = [(arm.items, arm.seconds * arm.items) for arm in case.arms if arm.seconds is not None]
    if len(points) < 3:
        return []
    knees = {share: knee(points, share) for share in SHARES}
    largest = max(n for n, _ in points)
    text = f"{case.name}: " + ", ".join(f"batch {n} gives {share:.0%}" for share, n in knees.items())
    text += f" of the best rate measured (up to {largest})"
    values = {f"measured_{share:.0%}": float(n) for share, n in knees.items()}
    if line := fit(points):
        text += (
            f"; a step takes {line.a * 1e3:.3g} ms + {line.b * 1e6:.3g} µs an item (off by {line.error:.0%}), by which "
            f"{_listed([f'{line.batch(share):.0f}' for share in SHARES])} items give "
            f"{_listed([f'{share:.0%}' for share in SHARES])} of an endless batch's rate"
        )
        values |= {"a": line.a, "b": line.b, "error": line.error}
        values |= {f"fitted_{share:.0%}": line.batch(share) for share in SHARES}
    return [Finding(text=text, values=values)]


def bound(slower: float) -> str:
    """What limits a training whose step takes `slower` times as long as the step alone."""
    return "compute-bound" if slower < COMPUTE_BOUND else "input-bound" if slower > INPUT_BOUND else "balanced"


def _listed(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} and {words[-1]}"


# A tensor or two of the optimiser's choosing, an arena that doubles: less is no growth to draw a line through.
LEAST_GROWTH = 128.0
OFF_THE_LINE = 0.25


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


def _two_digits(number: float) -> int:
    return int(float(f"{max(0.0, number):.1e}"))


def _bottleneck(case: CaseResult) -> list[Finding]:
    """The baseline is the step alone: what a pipeline at no cost would give. An arm's input alone is the one with the
    same parameters but for the step."""
    found = []
    step = _rate(case.arms[0])
    alone = {_knobs(arm): _rate(arm) for arm in case.arms if arm.workload == "pipeline" and not arm.params.get("step")}
    for arm in case.arms[1:]:
        both = _rate(arm)
        if arm.wall is None or not arm.params.get("step") or not both:
            continue
        slower = 1 / arm.wall.median
        text, values = (
            f"{arm.name}: {slower:.2f} times the step alone: {bound(slower)}",
            {"real_over_synthetic": slower},
        )
        given = alone.get(_knobs(arm))
        if step and given:
            text += f" ({step:.0f} items/s computed, {given:.0f} read, {both:.0f} both)"
            values |= {"compute_rate": step, "input_rate": given, "combined_rate": both}
        found.append(Finding(text=text, values=values))
    return found


def _rate(arm: ArmResult) -> float:
    """Items a second by the clock, for reading; 0 where it was not measured."""
    return 1 / arm.seconds if arm.seconds else 0.0


def _knobs(arm: ArmResult) -> str:
    return repr(sorted((name, value) for name, value in arm.params.items() if name != "step"))


def _models(case: CaseResult) -> list[Finding]:
    """tf_cnn_benchmarks' "images/sec", with the memory that it took."""
    rates = {arm.name: (_rate(arm), arm.rss or 0.0) for arm in case.arms if arm.seconds}
    if not rates:
        return []
    unit = "images/s" if case.arms[0].params.get("application") else "sequences/s"
    told = ", ".join(f"{name} {rate:.3g} {unit} in {rss:.0f} MiB" for name, (rate, rss) in rates.items())
    return [Finding(text=f"{case.name}: {told}", values={name: rate for name, (rate, _) in rates.items()})]


def _files(case: CaseResult) -> list[Finding]:
    arm = case.arms[0]
    if arm.workload != "disk" or not arm.seconds:
        return []
    speed = 2**20 / 1e6 / arm.seconds
    word = next((word for limit, word in DISKS if speed < limit), "an NVMe's")
    nearest = min(GUIDE, key=lambda known: abs(math.log(known / speed)))
    text = (
        f"this disk reads {speed:.0f} MB/s past the page cache, {word} range and nearest to the guide's {nearest} MB/s "
        f"(a host's cache may lie behind it): {speed * 1e3 / PHOTOGRAPH:.0f} photographs of {PHOTOGRAPH} KB a second"
    )
    return [Finding(text=text, values={"mb_per_second": speed})]


def _allocator(case: CaseResult) -> list[Finding]:
    """What a ratio of times does not show: pages that the kernel had to give again, and memory that was kept."""
    told = [(arm.name, arm.faults, arm.rss) for arm in case.arms if arm.faults is not None and arm.rss is not None]
    if len(told) < 2:
        return []
    text = ", ".join(f"{name} {faults:.0f} faults and {rss:.0f} MiB" for name, faults, rss in told)
    values = {f"faults of {name}": faults for name, faults, _ in told} | {
        f"MiB of {name}": rss for name, _, rss in told
    }
    return [Finding(text=f"{case.name}, page faults a call and memory: {text}", values=values)]


def _first_calls(case: CaseResult) -> list[Finding]:
    """What the first call of each arm takes, beside the baseline's: tracing and, for XLA, compiling."""
    base, *others = case.arms
    told = [arm for arm in others if arm.seconds is not None]
    if base.seconds is None or not told:
        return []
    text = ", ".join(f"{arm.name} {arm.first:.2f} s{_nodes(arm)}" for arm in (base, *told))
    values = {f"first call of {arm.name}": arm.first for arm in (base, *told)}
    return [Finding(text=f"{case.name}, the first call: {text}", values=values)]


def _nodes(arm: ArmResult) -> str:
    return f" ({arm.nodes} nodes)" if arm.nodes else ""


def _threads(case: CaseResult) -> list[Finding]:
    better = [arm for arm in case.arms if arm.effect == FASTER and arm.wall]
    if not better:
        return [Finding(text=f"{case.name}: no setting beats the default", values={})]
    best = max(better, key=_gain)
    return [Finding(text=f"{case.name}: {best.name} is {_gain(best):.2f} times as fast", values={"gain": _gain(best)})]


def _gain(arm: ArmResult) -> float:
    return arm.wall.median if arm.wall else 0.0


DERIVED: dict[str, Callable[[CaseResult], list[Finding]]] = {
    "allocator": _allocator,
    "batchsize": _batch_size,
    "bottleneck": _bottleneck,
    "files": _files,
    "models": _models,
    "rnn": _first_calls,
    "threads": _threads,
    "xla": _first_calls,
}
