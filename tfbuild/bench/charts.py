"""Charts as SVG inside a page, drawn without a browser and coloured by the page's CSS variables.

Text and width fit a phone; if there is room, the page puts charts beside their tables. The names of a report's arms are
data to Vega-Lite, never fields or expressions.
"""

import hashlib
import io
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from textwrap import shorten
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from tfbuild.bench import batch_size, wording
from tfbuild.errors import fit
from tfbuild.measure import experiments, intervals
from tfbuild.measure.evaluate import seconds_per_item
from tfbuild.measure.experiments import ChartKind
from tfbuild.measure.records import FASTER, NO_DIFFERENCE, SLOWER, ArmResult, CaseResult, ExperimentResult, Interval

if TYPE_CHECKING:
    from altair import Chart, FacetChart, LayerChart

# Pixels; a phone shows them one to one.
WIDTH = 340
HEAD, LABEL, BAR, GAP = 20, 15, 15, 8
TICK_DISTANCE = 40
CURVE_HEIGHT = 200
# Letters of a line and of a heading; longer ones are cut, but the table has them whole.
LONGEST, LONGEST_HEAD = 52, 46
# No measurement gives a ratio below this, or above its inverse.
LEAST = 1e-9
SVG = "http://www.w3.org/2000/svg"
EFFECTS = (FASTER, SLOWER, NO_DIFFERENCE)
COLOURS = ("var(--faster)", "var(--slower)", "var(--same)")
SHAPES = ("triangle-right", "triangle-left", "circle")


@dataclass(frozen=True, kw_only=True)
class Line:
    """An interval with its name; `effect` is its colour and shape."""

    label: str
    ratio: Interval
    effect: str


@dataclass(frozen=True, kw_only=True)
class LineGroup:
    """Lines under a heading; `band`: the baseline against itself, drawn behind them."""

    title: str
    lines: tuple[Line, ...]
    band: Interval | None = None


@contextmanager
def _checked_as_a_whole() -> Iterator[None]:
    """Let Altair validate a chart only when it is saved, not each part when it is made."""
    from altair.utils import schemapi

    with schemapi.debug_mode(False):
        yield


def of(row: ExperimentResult) -> Iterator[str]:
    """Draw an experiment's charts, as elements for a page."""
    for kind in experiments.purpose(row.name).charts:
        yield from DRAWN[kind](row)


def _ratios(row: ExperimentResult) -> Iterator[str]:
    if groups := [group for case in row.cases if (group := _group(case)).lines]:
        yield ratios(f"{row.name}: ratios to the baseline", groups)


def _rates(row: ExperimentResult) -> Iterator[str]:
    """Draw a curve for each case; the ratios if no case has enough points."""
    curves = [curve for case in row.cases if (curve := rates(case))]
    yield from curves or _ratios(row)


def _memory(row: ExperimentResult) -> Iterator[str]:
    if any(arm.rss for case in row.cases for arm in case.arms):
        yield memory(row)


DRAWN: dict[ChartKind, Callable[[ExperimentResult], Iterator[str]]] = {
    "ratios": _ratios,
    "rates": _rates,
    "memory": _memory,
}


def _group(case: CaseResult) -> LineGroup:
    measured = [(arm, wording.judged(arm, case)) for arm in case.arms if arm.name != case.baseline]
    lines = (Line(label=_label(arm), ratio=at, effect=arm.effect) for arm, ratio in measured if (at := _drawn(ratio)))
    return LineGroup(title=case.name, lines=tuple(lines), band=_drawn(case.band))


def _label(arm: ArmResult) -> str:
    return arm.name + (" (computes something else)" if arm.same is False else "")


def _drawn(ratio: Interval | None) -> Interval | None:
    """Return the ratio if a logarithmic axis can show it, else None."""
    return ratio if ratio and LEAST < ratio.low <= ratio.median <= ratio.high < 1 / LEAST else None


def _cut(text: str, most: int) -> str:
    """Cut a text to its room, without control characters: a NUL crashes vl-convert, and this process with it."""
    return shorten(fit(text), most, placeholder=" …")


# --- ratios ----------------------------------------------------------------------------------------------------------


@_checked_as_a_whole()
def ratios(title: str, groups: Sequence[LineGroup]) -> str:
    """Draw intervals on one logarithmic axis with 1 marked; faster is to the right."""
    import altair as alt

    heads, bands, lines, height = _laid_out(groups)
    ends = [end for row in (*bands, *lines) for end in (row["low"], row["high"])]
    low, high = min(*ends, 1 / 1.1) / 1.03, max(*ends, 1.1) * 1.03
    across = alt.Scale(type="log", domain=[low, high], nice=False, zero=False)
    down = alt.Y("y:Q", scale=alt.Scale(domain=[height, 0], nice=False, zero=False), axis=None)
    axis = alt.Axis(values=ticks(low, high), format="~g", title=None, labelExpr="'×' + datum.label")
    colour = alt.Color("effect:N", scale=alt.Scale(domain=EFFECTS, range=COLOURS), legend=None)
    shape = alt.Shape("effect:N", scale=alt.Scale(domain=EFFECTS, range=SHAPES), legend=None)
    x = alt.X("low:Q", scale=across)
    names = [{**row, "y": row["y"] - LABEL} for row in lines]
    ones = [{"one": 1, "y": row["y"] - BAR / 2, "y2": row["y"] + BAR / 2} for row in lines]
    drawn = alt.layer(
        _marks(bands).mark_rect(color="var(--band)").encode(x, x2="high:Q", y=down, y2="y2:Q"),
        _marks(ones)
        .mark_rule(color="var(--ink)", strokeDash=[2, 2])
        .encode(alt.X("one:Q", scale=across, axis=axis), y=down, y2="y2:Q"),
        _marks(lines).mark_rule(strokeWidth=3).encode(x, x2="high:Q", y=down, color=colour),
        _marks(lines)
        .mark_point(filled=True, size=90, opacity=1)
        .encode(alt.X("median:Q", scale=across, axis=axis), y=down, color=colour, shape=shape),
        *_texts(heads, names, down),
    )
    description = [f"{group.title}: {line.label}: {spelled(line)}" for group in groups for line in group.lines]
    return _svg(drawn, height, title, "; ".join(description))


def spelled(line: Line) -> str:
    return f"{line.effect or NO_DIFFERENCE} {intervals.spelled(line.ratio)}"


def _laid_out(
    groups: Sequence[LineGroup],
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]], int]:
    """Return headings, bands and lines with their places in pixels from the top, and the whole height."""
    heads: list[dict[str, Any]] = []
    bands: list[dict[str, Any]] = []
    lines: list[dict[str, Any]] = []
    y = 0
    for group in groups:
        heads.append({"text": _cut(group.title, LONGEST_HEAD), "y": y + HEAD / 2})
        y += HEAD
        for line in group.lines:
            y += LABEL + BAR
            ratio, number = line.ratio, intervals.spelled(line.ratio)
            lines.append(
                {
                    "low": ratio.low,
                    "median": ratio.median,
                    "high": ratio.high,
                    "y": y - BAR / 2,
                    "text": _cut(line.label, max(12, LONGEST - len(number))),
                    "number": number,
                    "effect": line.effect if line.effect in EFFECTS else NO_DIFFERENCE,
                }
            )
            if group.band:
                bands.append({"low": group.band.low, "high": group.band.high, "y": y - BAR, "y2": y})
        y += GAP
    return heads, bands, lines, y


def ticks(low: float, high: float) -> list[float]:
    """Choose round numbers from `low` to `high`, including 1, whose labels do not touch on a logarithmic axis."""
    decades = [10.0**power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
    steps = ((1,), (2, 5), (1.5, 3, 7), (1.2, 1.1, 1.3, 1.4, 1.7, 8, 9), (1.05, 9.5))
    candidates = [1.0, *(float(f"{step * decade:.3g}") for group in steps for decade in decades for step in group)]
    chosen: list[float] = []
    room = math.log(high / low) * TICK_DISTANCE / WIDTH
    for tick in candidates:
        if low <= tick <= high and all(abs(math.log(tick / other)) >= room for other in chosen):
            chosen.append(tick)
    return sorted(chosen)


# --- batch sizes -----------------------------------------------------------------------------------------------------


@_checked_as_a_whole()
def rates(case: CaseResult) -> str:
    """Draw items a second over the batch size, with the curve for steps of a + b n seconds; "" if there is no curve."""
    import altair as alt

    points = _points(case)
    steps = [(arm.items, arm.seconds * arm.items) for arm in case.arms if arm.seconds and arm.items]
    if len(points) < 2 or len(steps) < 2:
        return ""
    sizes = sorted({n for n, _ in steps})
    across = alt.Scale(type="log", base=2, domain=[sizes[0] / 1.2, sizes[-1] * 1.2], nice=False)
    axis = alt.Axis(values=sizes, format="d", title="batch", labelOverlap=True)
    x = alt.X("n:Q", scale=across, axis=axis)
    line = batch_size.fit(steps)
    curve = [{"n": n, "rate": n / (line.a + line.b * n)} for n in _between(sizes[0], sizes[-1])] if line else []
    top = max([point["high"] for point in points] + [point["rate"] for point in curve]) * 1.1
    up = alt.Scale(domain=[0, top], nice=False)
    y = alt.Y("rate:Q", scale=up, axis=alt.Axis(title="items a second", format="~s", tickCount=5, grid=True))
    knees = [{"n": batch_size.knee(steps, share), "text": f"{share:.0%}", "y": top} for share in batch_size.SHARES]
    drawn = alt.layer(
        _marks(knees).mark_rule(color="var(--same)", strokeDash=[3, 3]).encode(x=x),
        _marks(_side_by_side(knees))
        .mark_text(baseline="bottom", align="right", fontSize=11, color="var(--muted)", dx=4, dy=-2)
        .encode(x=x, y=alt.value(0), text="text:N"),
        _marks(curve).mark_line(color="var(--same)").encode(x=x, y=y),
        _marks(points).mark_rule(strokeWidth=3, color="var(--faster)").encode(x, alt.Y("low:Q", scale=up), y2="high:Q"),
        _marks(points).mark_point(filled=True, size=50, opacity=1, color="var(--faster)").encode(x=x, y=y),
    )
    heading = alt.TitleParams(_cut(case.name, LONGEST_HEAD), anchor="start", offset=18)
    drawn = drawn.properties(title=heading)
    description = [f"batch {point['n']}: {point['rate']:.4g} items a second" for point in points]
    return _svg(drawn, CURVE_HEIGHT, f"{case.name}: items a second over the batch size", "; ".join(description))


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


# --- memory ----------------------------------------------------------------------------------------------------------


@_checked_as_a_whole()
def memory(row: ExperimentResult) -> str:
    """Draw the process's resident memory, a bar for each arm."""
    import altair as alt

    heads: list[dict[str, Any]] = []
    bars: list[dict[str, Any]] = []
    y = 0
    for case in row.cases:
        if shown := [arm for arm in case.arms if arm.rss]:
            heads.append({"text": _cut(case.name, LONGEST_HEAD), "y": y + HEAD / 2})
            y += HEAD
            for arm in shown:
                y += LABEL + BAR
                number = f"{arm.rss:.0f} MiB"
                name = _cut(arm.name, LONGEST - len(number))
                bars.append({"none": 0, "mib": arm.rss, "text": name, "number": number, "y": y - BAR / 2})
            y += GAP
    down = alt.Y("y:Q", scale=alt.Scale(domain=[y, 0], nice=False, zero=False), axis=None)
    across = alt.X("none:Q", axis=alt.Axis(title="MiB", tickCount=5, format="~d"), scale=alt.Scale(nice=False))
    names = [{**bar, "y": bar["y"] - LABEL} for bar in bars]
    drawn = alt.layer(
        _marks(bars).mark_rule(strokeWidth=8, color="var(--same)").encode(across, x2="mib:Q", y=down),
        *_texts(heads, names, down),
    )
    description = "; ".join(f"{bar['text']}: {bar['number']}" for bar in bars)
    return _svg(drawn, y, f"{row.name}: memory of the process", description)


# --- SVG -------------------------------------------------------------------------------------------------------------


def _marks(rows: Sequence[dict[str, Any]]) -> "Chart":
    import altair as alt

    return alt.Chart(alt.InlineData(values=list(rows)))


def _texts(heads: Sequence[dict[str, Any]], names: Sequence[dict[str, Any]], y: Any) -> list["Chart"]:
    """Draw headings, names on the left and numbers on the right, at places of `y`."""
    import altair as alt

    def text(rows: Sequence[dict[str, Any]], x: int, field: str, **style: Any) -> Any:
        return _marks(rows).mark_text(baseline="middle", **style).encode(x=alt.value(x), y=y, text=f"{field}:N")

    return [
        text(heads, 0, "text", align="left", color="var(--ink)", fontWeight="bold", fontSize=12),
        text(names, 0, "text", align="left", color="var(--ink)", fontSize=11),
        text(names, WIDTH, "number", align="right", color="var(--muted)", fontSize=11),
    ]


def _svg(chart: "LayerChart | FacetChart", height: int, title: str, description: str) -> str:
    quiet = {"labelColor": "var(--muted)", "titleColor": "var(--muted)", "titleFontWeight": "normal"}
    lines = {"gridColor": "var(--grid)", "tickColor": "var(--grid)", "domainColor": "var(--grid)"}
    done = chart.properties(width=WIDTH, height=height, padding=2).configure(background="transparent", aria=False)
    done = done.configure_title(color="var(--ink)", fontSize=12)
    buffer = io.StringIO()
    done.configure_view(stroke=None).configure_axis(labelFontSize=11, titleFontSize=11, **quiet, **lines).save(
        buffer, format="svg"
    )
    return _named(buffer.getvalue(), title, description)


def _named(text: str, title: str, description: str) -> str:
    """Remove the size and Vega's own ARIA attributes; add a title and a description for screen readers."""
    ElementTree.register_namespace("", SVG)
    root = ElementTree.fromstring(text)
    for element in root.iter():
        for name in [name for name in element.attrib if name == "role" or name.startswith("aria-")]:
            del element.attrib[name]
        for child in [child for child in element if child.get("class") in ("background", "foreground")]:
            element.remove(child)
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    own = f"chart-{hashlib.sha256(f'{title} {description}'.encode()).hexdigest()[:12]}"
    root.set("role", "img")
    root.set("aria-labelledby", f"{own}-title {own}-desc")
    for index, (tag, content) in enumerate((("title", title), ("desc", description))):
        element = ElementTree.Element(f"{{{SVG}}}{tag}", {"id": f"{own}-{tag}"})
        element.text = fit(content)
        root.insert(index, element)
    return ElementTree.tostring(root, encoding="unicode")
