"""Charts of ratios as SVG inside a page, drawn without a browser and coloured by the page's CSS variables.

Text and width fit a phone; if there is room, the page puts charts beside their text. The names in a report are data to
Vega-Lite, never fields or expressions.
"""

import hashlib
import io
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from textwrap import shorten
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from tfbuild.errors import fit
from tfbuild.measure import intervals
from tfbuild.measure.records import FASTER, NO_DIFFERENCE, SLOWER, Interval

if TYPE_CHECKING:
    from altair import Chart, FacetChart, LayerChart, VConcatChart

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
    """Whether the packages that draw are installed; they are an extra."""
    return bool(find_spec("altair") and find_spec("vl_convert"))


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


@contextmanager
def checked_as_a_whole() -> Iterator[None]:
    """Let Altair validate a chart only when it is saved, not each part when it is made."""
    from altair.utils import schemapi

    with schemapi.debug_mode(False):
        yield


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


@checked_as_a_whole()
def ratios(title: str, groups: Sequence[LineGroup]) -> str:
    """Draw intervals on one logarithmic axis with 1 marked; faster is to the right."""
    import altair as alt

    layout = _laid_out(groups)
    bands, lines, height = layout.bands, layout.lines, layout.height
    ends = [end for row in (*bands, *lines) for end in (row["low"], row["high"])]
    low, high = min(*ends, 1 / 1.1) / 1.03, max(*ends, 1.1) * 1.03
    across = alt.Scale(type="log", domain=[low, high], nice=False, zero=False)
    down = alt.Y("y:Q", scale=alt.Scale(domain=[height, 0], nice=False, zero=False), axis=None)
    axis = alt.Axis(values=ticks(low, high), format="~g", title=None, labelExpr="'×' + datum.label")
    colour = alt.Color("effect:N", scale=alt.Scale(domain=EFFECTS, range=COLOURS), legend=None)
    shape = alt.Shape("effect:N", scale=alt.Scale(domain=EFFECTS, range=SHAPES), legend=None)
    x = alt.X("low:Q", scale=across)
    ones = [{"one": 1, "y": row["y"] - BAR / 2, "y2": row["y"] + BAR / 2} for row in lines]
    drawn = alt.layer(
        marks(bands).mark_rect(color="var(--band)").encode(x, x2="high:Q", y=down, y2="y2:Q"),
        marks(ones)
        .mark_rule(color="var(--ink)", strokeDash=[2, 2])
        .encode(alt.X("one:Q", scale=across, axis=axis), y=down, y2="y2:Q"),
        marks(lines).mark_rule(strokeWidth=3).encode(x, x2="high:Q", y=down, color=colour),
        marks(lines)
        .mark_point(filled=True, size=90, opacity=1)
        .encode(alt.X("median:Q", scale=across, axis=axis), y=down, color=colour, shape=shape),
        *texts(layout.heads, layout.names, down),
    )
    description = [f"{group.title}: {line.label}: {spelled(line)}" for group in groups for line in group.lines]
    return svg(drawn.properties(width=WIDTH, height=height), title, "; ".join(description))


def spelled(line: Line) -> str:
    return f"{line.effect or NO_DIFFERENCE} {intervals.spelled(line.ratio)}"


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Headings, names, bands and lines with their places in pixels from the top, and the whole height."""

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
            ratio, number = line.ratio, intervals.spelled(line.ratio)
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


def marks(rows: Sequence[dict[str, Any]]) -> "Chart":
    import altair as alt

    return alt.Chart(alt.InlineData(values=list(rows)))


def texts(heads: Sequence[dict[str, Any]], names: Sequence[dict[str, Any]], y: Any) -> list["Chart"]:
    """Draw headings, names on the left and numbers on the right, at places of `y`."""
    import altair as alt

    def text(rows: Sequence[dict[str, Any]], x: int, field: str, **style: Any) -> Any:
        return marks(rows).mark_text(baseline="middle", **style).encode(x=alt.value(x), y=y, text=f"{field}:N")

    return [
        text(heads, 0, "text", align="left", color="var(--ink)", fontWeight="bold", fontSize=BOLD),
        text(names, 0, "text", align="left", color="var(--ink)", fontSize=SMALL),
        text(
            [name for name in names if name["number"]],
            WIDTH,
            "number",
            align="right",
            color="var(--muted)",
            fontSize=SMALL,
        ),
    ]


def svg(chart: "LayerChart | FacetChart | VConcatChart", title: str, description: str) -> str:
    """Return the chart as an element for a page, with a title and a description for screen readers."""
    quiet = {"labelColor": "var(--muted)", "titleColor": "var(--muted)", "titleFontWeight": "normal"}
    lines = {"gridColor": "var(--grid)", "tickColor": "var(--grid)", "domainColor": "var(--grid)"}
    done = chart.properties(padding=2).configure(background="transparent", aria=False)
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
