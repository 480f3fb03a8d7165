"""The charts of an experiment: of its ratios, its rates over the batch size, and its memory."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

from markupsafe import Markup

from tfbuild.bench import findings, wording
from tfbuild.measure import experiments
from tfbuild.measure.evaluate import seconds_per_item
from tfbuild.measure.experiments import ChartKind
from tfbuild.measure.records import ArmResult, CaseResult, ExperimentResult
from tfbuild.pages.charts import WIDTH, Line, LineGroup, Spec, bars, curves, drawable, marks, name, number, ratios

CURVE_HEIGHT = 105


def draw(row: ExperimentResult) -> Iterator[Markup]:
    """Draw an experiment's charts, as elements for a page."""
    for kind in experiments.purpose(row.name).charts:
        yield from DRAWN[kind](row)


def _ratios(row: ExperimentResult) -> Iterator[Markup]:
    groups = [group for case in row.cases if (group := _group(case)).lines]
    if groups:
        yield ratios(f"{row.name}: ratios to the baseline", _by_arm(groups) or groups)


def _by_arm(groups: Sequence[LineGroup]) -> list[LineGroup]:
    """Return one group with a line for each case, if all cases compare the same arm; it takes less room."""
    labels = [line.label for group in groups for line in group.lines]
    if len(labels) > len(groups) or len(set(labels)) > 1:
        return []
    lines = tuple(replace(group.lines[0], label=group.title) for group in groups)
    return [LineGroup(title=labels[0], lines=lines)]


def _rates(row: ExperimentResult) -> Iterator[Markup]:
    """Draw items a second over the batch size for each case with enough points; the ratios if no case has them."""
    drawn = [(case.name, curve, _rate_text(case)) for case in row.cases if (curve := _curve(case))]
    yield from [curves(f"{row.name}: items a second over the batch size", drawn)] if drawn else _ratios(row)


def _rate_text(case: CaseResult) -> str:
    return "; ".join(f"batch {point['n']}: {point['rate']:.4g} items a second" for point in _points(case))


def _memory(row: ExperimentResult) -> Iterator[Markup]:
    """Draw the process's resident memory, a bar for each arm."""
    groups = [(case.name, [(arm.name, arm.rss) for arm in case.arms if arm.rss]) for case in row.cases]
    if any(lines for _, lines in groups):
        yield bars(f"{row.name}: memory of the process", [group for group in groups if group[1]], "MiB")


DRAWN: dict[ChartKind, Callable[[ExperimentResult], Iterator[Markup]]] = {
    "ratios": _ratios,
    "rates": _rates,
    "memory": _memory,
}


def _group(case: CaseResult) -> LineGroup:
    measured = [(arm, drawable(wording.judged_ratio(arm, case))) for arm in case.arms if arm.name != case.baseline]
    band = drawable(case.band)
    lines = (Line(label=_label(arm), ratio=at, effect=arm.effect, band=band) for arm, at in measured if at)
    return LineGroup(title=case.name, lines=tuple(lines))


def _label(arm: ArmResult) -> str:
    return arm.name + (" (computes something else)" if arm.same is False else "")


# --- batch sizes -----------------------------------------------------------------------------------------------------


def _curve(case: CaseResult) -> Spec | None:
    """Draw the points with the curve for steps of a + b n seconds; None if there are too few."""
    points = _points(case)
    steps = [(arm.items, arm.seconds * arm.items) for arm in case.arms if arm.seconds and arm.items]
    if len(points) < 2 or len(steps) < 2:
        return None
    sizes = sorted({n for n, _ in steps})
    across = {"type": "log", "base": 2, "domain": [sizes[0] / 1.2, sizes[-1] * 1.2], "nice": False}
    axis = {"values": sizes, "format": "d", "title": "items in a batch", "labelOverlap": True, "labelSeparation": 4}
    x = number("n", scale=across, axis=axis)
    line = findings.fit(steps)
    curve = [{"n": n, "rate": n / (line.a + line.b * n)} for n in _between(sizes[0], sizes[-1])] if line else []
    top = max([point["high"] for point in points] + [point["rate"] for point in curve]) * 1.1
    up = {"domain": [0, top], "nice": False}
    y = number("rate", scale=up, axis={"title": "items a second", "format": "~s", "tickCount": 4, "grid": True})
    span = {"x": x, "y": number("low", scale=up), "y2": {"field": "high"}}
    knees = [{"n": findings.knee(steps, share), "text": f"{share:.0%}", "y": top} for share in findings.SHARES]
    label = {"baseline": "bottom", "fontSize": 11, "color": "var(--muted)", "dy": -2}
    drawn = [
        marks(knees, "rule", {"x": x}, color="var(--same)", strokeDash=[3, 3]),
        *(
            marks(labels, "text", {"x": x, "y": {"value": 0}, "text": name("text")}, align=align, dx=dx, **label)
            for align, dx, labels in _aligned(_side_by_side(knees), sizes[-1])
        ),
        marks(curve, "line", {"x": x, "y": y}, color="var(--same)"),
        marks(points, "rule", span, strokeWidth=3, color="var(--faster)"),
        marks(points, "point", {"x": x, "y": y}, filled=True, size=50, opacity=1, color="var(--faster)"),
    ]
    return {"layer": drawn, "width": WIDTH, "height": CURVE_HEIGHT}


def _points(case: CaseResult) -> list[dict[str, Any]]:
    points = []
    for arm in case.arms:
        seconds = seconds_per_item(case, arm)
        if seconds and seconds.low > 0:
            rates = {"rate": 1 / seconds.median, "low": 1 / seconds.high, "high": 1 / seconds.low}
            points.append({"n": arm.items, **rates})
    return points


def _between(low: float, high: float) -> list[float]:
    return [low * (high / low) ** (step / 40) for step in range(41)]


def _side_by_side(knees: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one label for all shares that the same batch reaches."""
    texts: dict[int, list[str]] = {}
    for knee in knees:
        texts.setdefault(knee["n"], []).append(knee["text"])
    return [{"n": n, "text": ", ".join(shares)} for n, shares in texts.items()]


def _aligned(
    labels: list[dict[str, Any]], largest: int
) -> list[tuple[Literal["left", "right"], int, list[dict[str, Any]]]]:
    """Part labels into those left of their lines, which are the first and that at the edge, and those right of them."""
    left = [label for label in labels if label is labels[0] or label["n"] == largest]
    right = [label for label in labels if label not in left]
    return [("right", 4, left), ("left", -4, right)]
