"""Charts for pages, in the colours of their CSS variables: ratios and bars as HTML, curves as SVG by Vega-Lite.

Names in a report are data: they are never markup, fields or expressions.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

from markupsafe import Markup

from tfbuild.measure import intervals
from tfbuild.measure.records import FASTER, NO_DIFFERENCE, SLOWER, Interval
from tfbuild.pages import rendering

# A chart or a part of it, in Vega-Lite's own form (vega.github.io/vega-lite/docs/spec.html), in this version.
Spec = dict[str, Any]
VEGA_LITE = "6.4"
# Pixels; a phone shows them one to one.
WIDTH, TICK_DISTANCE = 350, 40
# No measurement gives a ratio below this, or above its inverse.
LEAST = 1e-9
SVG = "http://www.w3.org/2000/svg"
# The CSS class and the sign of each effect.
STYLES = {FASTER: ("faster", "▶"), SLOWER: ("slower", "◀"), NO_DIFFERENCE: ("quiet", "●")}


@dataclass(frozen=True, kw_only=True)
class Line:
    """An interval with its name; `effect` is its colour and shape, `band` the baseline against itself, behind it."""

    label: str
    ratio: Interval
    effect: str
    band: Interval | None = None


@dataclass(frozen=True, kw_only=True)
class Row:
    """A name with its number; `spans`: CSS class, begin and width of what is drawn, in percent; `sign`: one on top."""

    label: str
    number: str
    spans: tuple[tuple[str, float, float], ...]
    effect: str = ""
    sign: tuple[str, str, float] | None = None


def drawable(ratio: Interval | None) -> Interval | None:
    """Return the ratio if a logarithmic axis can show it, else None."""
    return ratio if ratio and LEAST < ratio.low <= ratio.median <= ratio.high < 1 / LEAST else None


def ratios(title: str, groups: Sequence[tuple[str, Sequence[Line]]]) -> Markup:
    """Draw intervals, in groups with headings, on one logarithmic axis with 1 marked; faster is to the right."""
    shown = [at for _, lines in groups for line in lines for at in (line.ratio, line.band) if at]
    low, high = min(1 / 1.1, *(at.low for at in shown)) / 1.03, max(1.1, *(at.high for at in shown)) * 1.03

    def position(value: float) -> float:
        return round(100 * math.log(value / low) / math.log(high / low), 2)

    def span(style: str, at: Interval) -> tuple[str, float, float]:
        return style, position(at.low), round(position(at.high) - position(at.low), 2)

    def row(line: Line) -> Row:
        style, sign = STYLES.get(line.effect, STYLES[NO_DIFFERENCE])
        spans = [span("band", line.band)] if line.band else []
        spans += [("one", position(1), 0), span(f"interval {style}", line.ratio)]
        return Row(
            label=line.label,
            number=intervals.interval_text(line.ratio),
            effect=line.effect if line.effect in STYLES else NO_DIFFERENCE,
            spans=tuple(spans),
            sign=(style, sign, position(line.ratio.median)),
        )

    marks = [(position(tick), f"×{tick:g}") for tick in ticks(low, high)]
    return chart(title, [(heading, [row(line) for line in lines]) for heading, lines in groups], marks)


def bars(title: str, groups: Sequence[tuple[str, Sequence[tuple[str, float]]]], unit: str) -> Markup:
    """Draw a bar from 0 for each name with its value, in groups with headings."""
    most = max(value for _, lines in groups for _, value in lines)
    rows = [
        (
            heading,
            [
                Row(label=name, number=f"{value:.0f} {unit}", spans=(("bar", 0, round(100 * value / most, 2)),))
                for name, value in lines
            ],
        )
        for heading, lines in groups
    ]
    return chart(title, rows)


def chart(title: str, groups: Sequence[tuple[str, Sequence[Row]]], ticks: Sequence[tuple[float, str]] = ()) -> Markup:
    """Render rows in groups with headings, above an axis with `ticks`: their position in percent, and their text."""
    return Markup(rendering.render("pages/chart.html", title=title, groups=groups, ticks=ticks))


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


# --- curves ----------------------------------------------------------------------------------------------------------


def number(field: str, **settings: Any) -> Spec:
    """Return the encoding of a field with numbers."""
    return {"field": field, "type": "quantitative", **settings}


def name(field: str, **settings: Any) -> Spec:
    """Return the encoding of a field with names."""
    return {"field": field, "type": "nominal", **settings}


def marks(rows: Sequence[Spec], kind: str, encoding: Spec, **style: Any) -> Spec:
    """Return a layer with a mark for each row."""
    return {"data": {"values": rows}, "mark": {"type": kind, **style}, "encoding": encoding}


def curves(title: str, drawn: Sequence[tuple[str, Spec, str]]) -> Markup:
    """Draw specifications one below the other, each with a heading and a description for screen readers."""
    shown = [(heading, _svg(spec), description) for heading, spec, description in drawn]
    return Markup(rendering.render("pages/curves.html", title=title, drawn=shown))


def _svg(spec: Spec) -> Markup:
    """Draw a specification, without its size and Vega's own ARIA attributes."""
    import vl_convert

    quiet = {"labelColor": "var(--muted)", "titleColor": "var(--muted)", "titleFontWeight": "normal"}
    lines = {"gridColor": "var(--grid)", "tickColor": "var(--grid)", "domainColor": "var(--grid)"}
    config = {
        "background": "transparent",
        "aria": False,
        "view": {"stroke": None},
        "axis": {"labelFontSize": 11, "titleFontSize": 11, **quiet, **lines},
    }
    # No address is allowed: a chart loads nothing.
    whole = {**spec, "padding": 2, "config": config}
    drawn = vl_convert.vegalite_to_svg(whole, vl_version=VEGA_LITE, allowed_base_urls=[])
    ElementTree.register_namespace("", SVG)
    root = ElementTree.fromstring(drawn)
    for element in root.iter():
        for attribute in [one for one in element.attrib if one == "role" or one.startswith("aria-")]:
            del element.attrib[attribute]
    for attribute in ("width", "height", "version"):
        root.attrib.pop(attribute, None)
    root.set("aria-hidden", "true")
    return Markup(ElementTree.tostring(root, encoding="unicode"))
