"""HTML pages that work offline, without JavaScript, on phones and in dark mode, and charts in their colours.

All text of reports is escaped. Ratios are drawn as HTML, curves as SVG.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from tfbuild import util
from tfbuild.errors import fit
from tfbuild.measure.evaluate import interval_text
from tfbuild.measure.records import FASTER, NO_DIFFERENCE, SLOWER, Interval
from tfbuild.util.quantities import counted

TEMPLATES = util.templates()


def render(template: str, **names: object) -> str:
    """Render `template` ("bench/report.html") as one page that loads nothing else."""
    return _environment().get_template(f"{template}.j2").render(**names)


def prose(text: str) -> Markup:
    """Return a sentence for a page, with `code` as an element and verbs as they are typed here; the rest is escaped."""
    parts = [escape(part) for part in util.as_typed(text).split("`")]
    if len(parts) % 2 == 0:
        return Markup("`").join(parts)
    coded = (Markup("<code>{}</code>").format(part) if number % 2 else part for number, part in enumerate(parts))
    return Markup().join(coded)


@cache
def _environment() -> Environment:
    jinja = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    jinja.filters |= {"prose": prose, "counted": counted, "fit": fit}
    return jinja


# --- charts ----------------------------------------------------------------------------------------------------------

# Pixels; a phone shows them one to one.
WIDTH, TICK_DISTANCE = 350, 40
# No measurement gives a ratio below this, or above its inverse.
LEAST = 1e-9
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
            number=interval_text(line.ratio),
            effect=line.effect if line.effect in STYLES else NO_DIFFERENCE,
            spans=tuple(spans),
            sign=(style, sign, position(line.ratio.median)),
        )

    marks = [(position(tick), f"×{tick:g}") for tick in ticks(low, high)]
    rows = [(heading, [row(line) for line in lines]) for heading, lines in groups]
    return Markup(render("pages/chart.html", title=title, groups=rows, ticks=marks))


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

HEIGHT = 150
# The plot within the drawing, and the least room of a label on the axes.
LEFT, RIGHT, TOP, BOTTOM, LABEL = 42, 334, 27, 122, 32


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Rates by size, two or more; `fitted`: the rate at any size, if known; `marks`: texts above a size."""

    points: tuple[tuple[int, Interval], ...]
    fitted: Callable[[float], float] | None
    marks: Mapping[int, str]


def curves(title: str, drawn: Sequence[tuple[str, Curve]]) -> Markup:
    """Draw items a second over the items in a batch, one drawing with a heading for each curve."""
    plots = [(head, _plot(curve)) for head, curve in drawn]
    return Markup(render("pages/curves.html", title=title, drawn=plots, width=WIDTH, height=HEIGHT))


def _plot(curve: Curve) -> dict[str, Any]:
    """Return what the template draws, in its coordinates: sizes on a logarithmic axis, rates from 0."""
    sizes = [size for size, _ in curve.points]
    low, high = min(sizes) / 1.2, max(sizes) * 1.2
    between = [min(sizes) * (max(sizes) / min(sizes)) ** (step / 40) for step in range(41)] if curve.fitted else []
    fitted = [(size, curve.fitted(size)) for size in between] if curve.fitted else []
    top = max([rate.high for _, rate in curve.points] + [rate for _, rate in fitted]) * 1.1

    def x(size: float) -> float:
        return round(LEFT + (RIGHT - LEFT) * math.log(size / low) / math.log(high / low), 1)

    def y(rate: float) -> float:
        return round(BOTTOM - (BOTTOM - TOP) * rate / top, 1)

    labelled: list[int] = []
    for size in sizes:
        if not labelled or x(size) - x(labelled[-1]) >= LABEL:
            labelled.append(size)
    step = round_step(top)
    return {
        "frame": (LEFT, RIGHT, TOP, BOTTOM),
        "sizes": [(x(size), f"{size:d}" if size in labelled else "") for size in sizes],
        "rates": [(y(step * number), short(step * number)) for number in range(int(top / step) + 1)],
        # In two rows, because neighbours would touch.
        "marks": [(x(size), TOP - 4 - 11 * (row % 2), text) for row, (size, text) in enumerate(curve.marks.items())],
        "line": " ".join(f"{x(size)},{y(rate)}" for size, rate in fitted),
        "points": [(x(size), y(rate.median), y(rate.low), y(rate.high)) for size, rate in curve.points],
        "text": "; ".join(f"batch {size}: {rate.median:.4g} items a second" for size, rate in curve.points),
    }


def round_step(top: float) -> float:
    """Return 1, 2 or 5 times a power of ten that divides an axis from 0 to `top` into two to five parts."""
    power = 10.0 ** math.floor(math.log10(top / 2))
    return next(factor * power for factor in (5, 2, 1) if factor * power <= top / 2)


def short(number: float) -> str:
    """Format a number of an axis with three digits at most: "0.5", "200", "1.5k", "20M"."""
    for factor, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= factor:
            return f"{number / factor:.3g}{unit}"
    return f"{number:.3g}"
