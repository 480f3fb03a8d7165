"""HTML pages that work offline, without JavaScript, on phones and in dark mode, and charts in their colours.

All text of reports is escaped. Ratios are drawn as HTML.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from tfbuild import util
from tfbuild.errors import fit
from tfbuild.measure.evaluate import interval_text
from tfbuild.measure.records import FASTER, NO_DIFFERENCE, SLOWER, Interval

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
    jinja.filters |= {"prose": prose, "fit": fit}
    return jinja


# --- charts ----------------------------------------------------------------------------------------------------------

# The least share of an axis between two labels.
LABEL = 0.25
# The CSS class and the sign of each effect.
STYLES = {FASTER: ("faster", "▶"), SLOWER: ("slower", "◀"), NO_DIFFERENCE: ("quiet", "●")}


@dataclass(frozen=True, kw_only=True)
class Line:
    """An interval with its name; `effect` is its colour and shape, `band` the baseline against itself, behind it."""

    label: str
    ratio: Interval
    effect: str
    band: Interval | None = None


def ratios(title: str, groups: Sequence[tuple[str, Sequence[Line]]]) -> Markup:
    """Draw intervals, in groups with headings, on one logarithmic axis with 1 marked; faster is to the right."""
    shown = [at for _, lines in groups for line in lines for at in (line.ratio, line.band) if at]
    low, high = min(1 / 1.1, *(at.low for at in shown)) / 1.03, max(1.1, *(at.high for at in shown)) * 1.03

    def position(value: float) -> float:
        return round(100 * math.log(value / low) / math.log(high / low), 2)

    def span(style: str, at: Interval) -> tuple[str, float, float]:
        return style, position(at.low), round(position(at.high) - position(at.low), 2)

    def row(line: Line) -> dict[str, object]:
        effect = line.effect if line.effect in STYLES else NO_DIFFERENCE
        style, sign = STYLES[effect]
        # CSS class, begin and width of what is drawn, in percent.
        spans = [span("band", line.band)] if line.band else []
        spans += [("one", position(1), 0), span(f"interval {style}", line.ratio)]
        shown = {"label": line.label, "number": interval_text(line.ratio), "effect": effect}
        return {**shown, "spans": spans, "sign": (style, sign, position(line.ratio.median))}

    marks = [(position(tick), f"×{tick:g}") for tick in ticks(low, high)]
    rows = [(heading, [row(line) for line in lines]) for heading, lines in groups]
    return Markup(render("pages/chart.html", title=title, groups=rows, ticks=marks))


def ticks(low: float, high: float) -> list[float]:
    """Choose round numbers from `low` to `high`, including 1, whose labels do not touch on a logarithmic axis."""
    decades = [10.0**power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
    steps = ((1,), (2, 5), (1.5, 3), (1.2,), (9, 1.1))
    candidates = [1.0, *(float(f"{step * decade:.3g}") for group in steps for decade in decades for step in group)]
    chosen: list[float] = []
    room = math.log(high / low) * LABEL
    for tick in candidates:
        if low <= tick <= high and all(abs(math.log(tick / other)) >= room for other in chosen):
            chosen.append(tick)
    return sorted(chosen)
