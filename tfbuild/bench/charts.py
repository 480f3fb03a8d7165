"""The charts of an experiment: of its ratios, its rates over the batch size, and its memory."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from tfbuild.bench import batch_size, wording
from tfbuild.measure import experiments
from tfbuild.measure.evaluate import seconds_per_item
from tfbuild.measure.experiments import ChartKind
from tfbuild.measure.records import ArmResult, CaseResult, ExperimentResult
from tfbuild.pages.charts import (
    BAR,
    BOLD,
    GAP,
    WIDTH,
    Line,
    LineGroup,
    checked_as_a_whole,
    drawable,
    headed,
    marks,
    named,
    ratios,
    svg,
    texts,
    wrapped,
)

if TYPE_CHECKING:
    from altair import FacetChart, LayerChart

CURVE_HEIGHT = 105


def of(row: ExperimentResult) -> Iterator[str]:
    """Draw an experiment's charts, as elements for a page."""
    for kind in experiments.purpose(row.name).charts:
        yield from DRAWN[kind](row)


def _ratios(row: ExperimentResult) -> Iterator[str]:
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


def _rates(row: ExperimentResult) -> Iterator[str]:
    """Draw a curve for each case, one below the other; the ratios if no case has enough points."""
    chart = rates(row)
    yield from [chart] if chart else _ratios(row)


def _memory(row: ExperimentResult) -> Iterator[str]:
    if any(arm.rss for case in row.cases for arm in case.arms):
        yield memory(row)


DRAWN: dict[ChartKind, Callable[[ExperimentResult], Iterator[str]]] = {
    "ratios": _ratios,
    "rates": _rates,
    "memory": _memory,
}


def _group(case: CaseResult) -> LineGroup:
    measured = [(arm, drawable(wording.judged(arm, case))) for arm in case.arms if arm.name != case.baseline]
    band = drawable(case.band)
    lines = (Line(label=_label(arm), ratio=at, effect=arm.effect, band=band) for arm, at in measured if at)
    return LineGroup(title=case.name, lines=tuple(lines))


def _label(arm: ArmResult) -> str:
    return arm.name + (" (computes something else)" if arm.same is False else "")


# --- batch sizes -----------------------------------------------------------------------------------------------------


@checked_as_a_whole()
def rates(row: ExperimentResult) -> str:
    """Draw items a second over the batch size for each case that has enough points; "" if none has."""
    import altair as alt

    drawn = [(case, curve) for case in row.cases if (curve := _curve(case))]
    if not drawn:
        return ""
    description = "; ".join(
        f"{case.name}, batch {point['n']}: {point['rate']:.4g} items a second"
        for case, _ in drawn
        for point in _points(case)
    )
    together = alt.vconcat(*(curve for _, curve in drawn), spacing=12)
    return svg(together, f"{row.name}: items a second over the batch size", description)


def _curve(case: CaseResult) -> "LayerChart | FacetChart | None":
    """Draw the points with the curve for steps of a + b n seconds; None if there are too few."""
    import altair as alt

    points = _points(case)
    steps = [(arm.items, arm.seconds * arm.items) for arm in case.arms if arm.seconds and arm.items]
    if len(points) < 2 or len(steps) < 2:
        return None
    sizes = sorted({n for n, _ in steps})
    across = alt.Scale(type="log", base=2, domain=[sizes[0] / 1.2, sizes[-1] * 1.2], nice=False)
    axis = alt.Axis(values=sizes, format="d", title="items in a batch", labelOverlap=True, labelSeparation=4)
    x = alt.X("n:Q", scale=across, axis=axis)
    line = batch_size.fit(steps)
    curve = [{"n": n, "rate": n / (line.a + line.b * n)} for n in _between(sizes[0], sizes[-1])] if line else []
    top = max([point["high"] for point in points] + [point["rate"] for point in curve]) * 1.1
    up = alt.Scale(domain=[0, top], nice=False)
    y = alt.Y("rate:Q", scale=up, axis=alt.Axis(title="items a second", format="~s", tickCount=4, grid=True))
    knees = [{"n": batch_size.knee(steps, share), "text": f"{share:.0%}", "y": top} for share in batch_size.SHARES]
    drawn = alt.layer(
        marks(knees).mark_rule(color="var(--same)", strokeDash=[3, 3]).encode(x=x),
        *(
            marks(labels)
            .mark_text(baseline="bottom", align=align, fontSize=11, color="var(--muted)", dx=dx, dy=-2)
            .encode(x=x, y=alt.value(0), text="text:N")
            for align, dx, labels in _aligned(_side_by_side(knees), sizes[-1])
        ),
        marks(curve).mark_line(color="var(--same)").encode(x=x, y=y),
        marks(points).mark_rule(strokeWidth=3, color="var(--faster)").encode(x, alt.Y("low:Q", scale=up), y2="high:Q"),
        marks(points).mark_point(filled=True, size=50, opacity=1, color="var(--faster)").encode(x=x, y=y),
    )
    heading = alt.TitleParams(wrapped(case.name, BOLD), anchor="start", offset=16)
    return drawn.properties(title=heading, width=WIDTH, height=CURVE_HEIGHT)


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


# --- memory ----------------------------------------------------------------------------------------------------------


@checked_as_a_whole()
def memory(row: ExperimentResult) -> str:
    """Draw the process's resident memory, a bar for each arm."""
    import altair as alt

    heads: list[dict[str, Any]] = []
    names: list[dict[str, Any]] = []
    bars: list[dict[str, Any]] = []
    y = 0
    for case in row.cases:
        if shown := [arm for arm in case.arms if arm.rss]:
            y = headed(heads, case.name, y)
            for arm in shown:
                y = named(names, arm.name, f"{arm.rss:.0f} MiB", y) + BAR
                bars.append({"none": 0, "mib": arm.rss, "y": y - BAR / 2})
            y += GAP
    down = alt.Y("y:Q", scale=alt.Scale(domain=[y, 0], nice=False, zero=False), axis=None)
    across = alt.X("none:Q", axis=alt.Axis(title="MiB", tickCount=5, format="~d"), scale=alt.Scale(nice=False))
    drawn = alt.layer(
        marks(bars).mark_rule(strokeWidth=8, color="var(--same)").encode(across, x2="mib:Q", y=down),
        *texts(heads, names, down),
    )
    description = "; ".join(f"{name['text']}: {name['number']}" for name in names)
    return svg(drawn.properties(width=WIDTH, height=y), f"{row.name}: memory of the process", description)
