"""Which batch size is enough: the knee of the measured rates, and a line through the times of the steps. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from tfbuild.measure.evaluate import TIMES, counted, interval
from tfbuild.measure.records import CaseResult, Finding

SHARES = (0.8, 0.9, 0.95)
# A line that misses its points by more predicts nothing.
OFF_THE_LINE = 0.25
# The line is refuted if a batch is faster than its limit for endless batches by more than this.
BEYOND = 0.05


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Seconds of a step = a + b * n; `error`: the median relative error."""

    a: float
    b: float
    error: float

    def batch(self, share: float) -> float:
        """Return the items in a step for `share` of the rate of an endless batch."""
        return share / (1 - share) * self.a / self.b


def fit(points: Sequence[tuple[int, float]]) -> Fit | None:
    """Fit the line of least relative error through (items, seconds of a step); None if the points are not on a line."""
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
    error = median(abs(a + b * n - t) / t for n, t in points)
    return Fit(a=a, b=b, error=error) if error <= OFF_THE_LINE else None


def knee(points: Sequence[tuple[int, float]], share: float) -> int:
    """Return the smallest measured n with `share` of the best measured rate."""
    best = max(n / seconds for n, seconds in points)
    return min(n for n, seconds in points if n / seconds >= share * best)


def _knees(case: CaseResult, share: float, middle: int) -> tuple[int, int]:
    """Return the smallest n that may have the `share` by its interval, and the smallest that surely has it.

    Rates of the same round are compared; `middle`, the knee by the medians, lies between the two.
    """
    time = TIMES[case.metric]
    timed = [arm for arm in case.arms if arm.seconds]
    best = min(timed, key=lambda arm: arm.seconds or 0.0)
    may, must = [middle], [best.items]
    for arm in timed:
        rounds = [row.samples for row in counted(case.rounds) if {arm.name, best.name} <= row.samples.keys()]
        units = arm.items / best.items
        ratio = interval([units * time(samples[best.name]) / time(samples[arm.name]) for samples in rounds])
        if ratio and ratio.high >= share:
            may.append(arm.items)
        if ratio and ratio.low >= share:
            must.append(arm.items)
    return min(may), max(middle, min(must))


def derive(case: CaseResult) -> list[Finding]:
    """Say which batches give which shares of the best rate; nothing if fewer than three were timed."""
    points = [(arm.items, arm.seconds * arm.items) for arm in case.arms if arm.seconds]
    if len(points) < 3:
        return []
    knees = {share: knee(points, share) for share in SHARES}
    ranges = {share: _knees(case, share, n) for share, n in knees.items()}
    largest = max(n for n, _ in points)
    shares = [f"batch {n}{_range(*ranges[share])} gives {share:.0%}" for share, n in knees.items()]
    text = f"{case.name}: {', '.join(shares)} of the best rate measured (up to {largest})"
    values = {f"measured_{share:.0%}": float(n) for share, n in knees.items()}
    values |= {f"measured_{share:.0%}_low": float(low) for share, (low, _) in ranges.items()}
    values |= {f"measured_{share:.0%}_high": float(high) for share, (_, high) in ranges.items()}
    if ends := [f"{share:.0%}" for share, n in knees.items() if n == largest]:
        text += f"; {_listed(ends)} only at the end of the sweep: the rate may still be growing there"
    line = fit(points)
    if line and all(seconds >= (1 - BEYOND) * line.b * n for n, seconds in points):
        text += (
            f"; a step takes {line.a * 1e3:.3g} ms + {line.b * 1e6:.3g} µs an item (off by {line.error:.0%}), by which "
            f"{_listed([f'{line.batch(share):.0f}' for share in SHARES])} items give "
            f"{_listed([f'{share:.0%}' for share in SHARES])} of an endless batch's rate"
        )
        values |= {"a": line.a, "b": line.b, "error": line.error}
        values |= {f"fitted_{share:.0%}": line.batch(share) for share in SHARES}
    elif line:
        text += "; no line a + b * n fits: the largest batches are faster than its limit for endless batches"
    return [Finding(text=text, values=values)]


def _range(low: int, high: int) -> str:
    return f" ({low} to {high})" if low != high else ""


def _listed(items: Sequence[str]) -> str:
    return f"{', '.join(items[:-1])} and {items[-1]}" if len(items) > 1 else items[0]
