"""Charts of ratios as SVG inside a page, drawn without a browser and coloured by the page's CSS variables.

Text and width fit a phone; if there is room, the page puts charts beside their text. A chart is a specification in
Vega-Lite's own form (vega.github.io/vega-lite/docs/spec.html). Names in a report are data, never fields or expressions.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from textwrap import shorten
from typing import Any
from xml.etree import ElementTree

from tfbuild.errors import fit
from tfbuild.measure import intervals
from tfbuild.measure.records import FASTER, NO_DIFFERENCE, SLOWER, Interval

# A chart or a part of it, in the words of Vega-Lite, of which this is the version.
Spec = dict[str, Any]
VEGA_LITE = "6.4"
# Pixels; a phone shows them one to one.
WIDTH = 350
HEAD, LABEL, BAR, GAP = 20, 14, 13, 7
TICK_DISTANCE = 40
# Letters of a text; longer ones are cut, but the table has them whole.
LONGEST = 120
# Font sizes in pixels, and the widths of letters in DejaVu Sans, the widest of the usual fonts, in font sizes.
SMALL, BOLD = 11, 12
WIDTHS = {**dict.fromkeys("ijl|'!", 0.28), **dict.fromkeys(" ,.:;()[]-/frt", 0.39), **dict.fromkeys("mwMW%@=+<>", 0.95)}
LOWER, OTHER = 0.61, 0.7
# No measurement gives a ratio below this, or above its inverse.
LEAST = 1e-9
SVG = "http://www.w3.org/2000/svg"
EFFECTS = (FASTER, SLOWER, NO_DIFFERENCE)
COLOURS = ("var(--faster)", "var(--slower)", "var(--same)")
SHAPES = ("triangle-right", "triangle-left", "circle")


def available() -> bool:
    """Whether the package that draws is installed; it is an extra."""
    return find_spec("vl_convert") is not None


@dataclass(frozen=True, kw_only=True)
class Line:
    """An interval with its name; `effect` is its colour and shape, `band` the baseline against itself, behind it."""

    label: str
    ratio: Interval
    effect: str
    band: Interval | None = None


@dataclass(frozen=True, kw_only=True)
class LineGroup:
    """Lines under a heading."""

    title: str
    lines: tuple[Line, ...]


def drawable(ratio: Interval | None) -> Interval | None:
    """Return the ratio if a logarithmic axis can show it, else None."""
    return ratio if ratio and LEAST < ratio.low <= ratio.median <= ratio.high < 1 / LEAST else None


def width(text: str, size: int = SMALL) -> float:
    """Estimate how many pixels a text takes; bold letters are wider by an eighth."""
    letters = sum(WIDTHS.get(letter, LOWER if letter.islower() or letter.isdigit() else OTHER) for letter in text)
    return letters * size * (1.125 if size == BOLD else 1.0)


def wrapped(text: str, size: int = SMALL, beside: str = "") -> list[str]:
    """Break a text into rows that fit the chart, the first one beside a number.

    Control characters are left out: a NUL crashes vl-convert, and this process with it.
    """
    rows = [""]
    for word in shorten(fit(text), LONGEST, placeholder=" …").split():
        room = WIDTH - (width(f" {beside}") if beside and len(rows) == 1 else 0)
        longer = f"{rows[-1]} {word}".strip()
        if not rows[-1] or width(longer, size) <= room:
            rows[-1] = longer
        else:
            rows.append(word)
    return [_squeezed(row, size) for row in rows]


def _squeezed(row: str, size: int) -> str:
    """Cut a single word that is wider than the chart."""
    while width(row, size) > WIDTH:
        row = f"{row[:-2]}…"
    return row


# --- ratios ----------------------------------------------------------------------------------------------------------


def ratios(title: str, groups: Sequence[LineGroup]) -> str:
    """Draw intervals on one logarithmic axis with 1 marked; faster is to the right."""
    layout = _laid_out(groups)
    bands, lines, height = layout.bands, layout.lines, layout.height
    ends = [end for row in (*bands, *lines) for end in (row["low"], row["high"])]
    low, high = min(*ends, 1 / 1.1) / 1.03, max(*ends, 1.1) * 1.03
    across = {"type": "log", "domain": [low, high], "nice": False, "zero": False}
    axis = {"values": ticks(low, high), "format": "~g", "title": None, "labelExpr": "'×' + datum.label"}
    y, y2 = vertical(height), {"field": "y2"}
    span = {"x": number("low", scale=across), "x2": {"field": "high"}, "y": y}
    one, median = (number(field, scale=across, axis=axis) for field in ("one", "median"))
    colour, shape = (
        {"scale": {"domain": EFFECTS, "range": by_effect}, "legend": None} for by_effect in (COLOURS, SHAPES)
    )
    effect = {"color": name("effect", **colour), "shape": name("effect", **shape)}
    ones = [{"one": 1, "y": row["y"] - BAR / 2, "y2": row["y"] + BAR / 2} for row in lines]
    drawn = [
        marks(bands, "rect", {**span, "y2": y2}, color="var(--band)"),
        marks(ones, "rule", {"x": one, "y": y, "y2": y2}, color="var(--ink)", strokeDash=[2, 2]),
        marks(lines, "rule", {**span, "color": effect["color"]}, strokeWidth=3),
        marks(lines, "point", {"x": median, "y": y, **effect}, filled=True, size=90, opacity=1),
        *texts(layout.heads, layout.names, y),
    ]
    description = [f"{group.title}: {line.label}: {line_text(line)}" for group in groups for line in group.lines]
    return svg({"layer": drawn, "width": WIDTH, "height": height}, title, "; ".join(description))


def line_text(line: Line) -> str:
    return f"{line.effect or NO_DIFFERENCE} {intervals.interval_text(line.ratio)}"


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Headings, names, bands and lines with their distance from the top in pixels, and the whole height."""

    heads: list[dict[str, Any]]
    names: list[dict[str, Any]]
    bands: list[dict[str, Any]]
    lines: list[dict[str, Any]]
    height: int


def _laid_out(groups: Sequence[LineGroup]) -> Layout:
    names: list[dict[str, Any]] = []
    heads: list[dict[str, Any]] = []
    bands: list[dict[str, Any]] = []
    lines: list[dict[str, Any]] = []
    y = 0
    for group in groups:
        y = headed(heads, group.title, y)
        for line in group.lines:
            ratio, number = line.ratio, intervals.interval_text(line.ratio)
            y = named(names, line.label, number, y) + BAR
            lines.append(
                {
                    "low": ratio.low,
                    "median": ratio.median,
                    "high": ratio.high,
                    "y": y - BAR / 2,
                    "effect": line.effect if line.effect in EFFECTS else NO_DIFFERENCE,
                }
            )
            if line.band:
                bands.append({"low": line.band.low, "high": line.band.high, "y": y - BAR, "y2": y})
        y += GAP
    return Layout(heads=heads, names=names, bands=bands, lines=lines, height=y)


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


def headed(heads: list[dict[str, Any]], text: str, y: int) -> int:
    """Add the rows of a heading from `y` on; return where they end."""
    rows = wrapped(text, BOLD)
    heads += [{"text": row, "y": y + HEAD / 2 + LABEL * number} for number, row in enumerate(rows)]
    return y + HEAD + LABEL * (len(rows) - 1)


def named(names: list[dict[str, Any]], text: str, number: str, y: int) -> int:
    """Add the rows of a name from `y` on, with a number at the end of the first; return where they end."""
    for turn, row in enumerate(wrapped(text, beside=number)):
        names.append({"text": row, "number": "" if turn else number, "y": y + LABEL / 2})
        y += LABEL
    return y


# --- SVG -------------------------------------------------------------------------------------------------------------


def number(field: str, **settings: Any) -> Spec:
    """Return the encoding of a field with numbers."""
    return {"field": field, "type": "quantitative", **settings}


def name(field: str, **settings: Any) -> Spec:
    """Return the encoding of a field with names."""
    return {"field": field, "type": "nominal", **settings}


def vertical(height: float) -> Spec:
    """Return the encoding of the field "y", which has pixels from the top of a chart of that height."""
    return number("y", scale={"domain": [height, 0], "nice": False, "zero": False}, axis=None)


def marks(rows: Sequence[Spec], kind: str, encoding: Spec, **style: Any) -> Spec:
    """Return a layer with a mark for each row."""
    return {"data": {"values": rows}, "mark": {"type": kind, **style}, "encoding": encoding}


def texts(heads: Sequence[Spec], names: Sequence[Spec], y: Spec) -> list[Spec]:
    """Draw headings, names on the left and numbers on the right, at heights by `y`."""

    def text(rows: Sequence[Spec], x: int, field: str, **style: Any) -> Spec:
        encoding = {"x": {"value": x}, "y": y, "text": name(field)}
        return marks(rows, "text", encoding, baseline="middle", **style)

    numbered = [row for row in names if row["number"]]
    return [
        text(heads, 0, "text", align="left", color="var(--ink)", fontWeight="bold", fontSize=BOLD),
        text(names, 0, "text", align="left", color="var(--ink)", fontSize=SMALL),
        text(numbered, WIDTH, "number", align="right", color="var(--muted)", fontSize=SMALL),
    ]


def svg(chart: Spec, title: str, description: str) -> str:
    """Return the chart as an element for a page, with a title and a description for screen readers."""
    import vl_convert

    quiet = {"labelColor": "var(--muted)", "titleColor": "var(--muted)", "titleFontWeight": "normal"}
    lines = {"gridColor": "var(--grid)", "tickColor": "var(--grid)", "domainColor": "var(--grid)"}
    config = {
        "background": "transparent",
        "aria": False,
        "title": {"color": "var(--ink)", "fontSize": 12},
        "view": {"stroke": None},
        "axis": {"labelFontSize": 11, "titleFontSize": 11, **quiet, **lines},
    }
    # No address is allowed: a chart loads nothing.
    drawn = vl_convert.vegalite_to_svg(
        {**chart, "padding": 2, "config": config}, vl_version=VEGA_LITE, allowed_base_urls=[]
    )
    return _named(drawn, title, description)


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
