"""Charts of ratios: what is drawn is what was measured, and texts have room."""

import math
import re
from collections.abc import Iterator
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from tfbuild.measure.records import Interval
from tfbuild.pages import charts


def drawings(text: str) -> Iterator[ElementTree.Element]:
    for drawing in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        yield ElementTree.fromstring(drawing)


def shift(element: ElementTree.Element) -> tuple[float, float]:
    x, y = re.fullmatch(r"translate\(([-\d.e]+),([-\d.e]+)\)", element.get("transform", "")).groups()  # type: ignore[union-attr]
    return float(x), float(y)


def marked(drawing: ElementTree.Element, kind: str) -> list[ElementTree.Element]:
    """Return the marks of the layers of `kind` in the order in which they were drawn."""
    groups = [e for e in drawing.iter() if f"mark-{kind} role-mark" in e.get("class", "")]
    return [mark for group in groups for mark in group]


def test_a_chart_s_places_are_the_logarithms_of_its_ratios() -> None:
    medians = [0.5, 0.9, 1.0, 2.0, 8.0]
    effects = ["slower", "no difference shown", "no difference shown", "faster", "faster"]
    band = Interval(median=1.0, low=0.95, high=1.06, coverage=0.95)
    lines = tuple(
        charts.Line(
            label=str(m),
            ratio=Interval(median=m, low=m / 1.1, high=m * 1.1, coverage=0.95),
            effect=effect,
            band=band,
        )
        for m, effect in zip(medians, effects, strict=True)
    )
    (drawing,) = drawings(charts.ratios("x", [charts.LineGroup(title="case", lines=lines)]))
    points = marked(drawing, "symbol")
    places = [shift(point)[0] for point in points]
    scale = (places[-1] - places[0]) / math.log(medians[-1] / medians[0])
    for place, ratio in zip(places, medians, strict=True):
        assert place - places[0] == pytest.approx(scale * math.log(ratio / medians[0]), abs=0.01)
    assert [point.get("fill") for point in points] == [
        "var(--slower)",
        "var(--same)",
        "var(--same)",
        "var(--faster)",
        "var(--faster)",
    ]
    assert all(0 <= place <= charts.WIDTH for place in places)
    down = [shift(point)[1] for point in points]
    assert down == sorted(down)
    spans = [
        (shift(rule)[0], float(rule.get("x2", "0")))
        for rule in marked(drawing, "rule")
        if rule.get("stroke") in charts.COLOURS
    ]
    assert len(spans) == len(medians)
    for (begin, length), place in zip(spans, places, strict=True):
        assert min(begin, begin + length) < place < max(begin, begin + length)
        assert abs(length) == pytest.approx(scale * math.log(1.21), abs=0.01)
    assert len(marked(drawing, "rect")) == len(medians), "the band lies behind each of them"


def test_a_long_name_takes_more_rows_and_keeps_clear_of_its_number() -> None:
    name = "whole pipeline, one thread: 8 to 100 % crops, resize to 128x128, batch 16"
    rows = charts.wrapped(name, beside="x2.06 [2.02, 2.20]")
    assert len(rows) == 2
    assert " ".join(rows) == name
    assert charts.width(rows[0]) + charts.width(" x2.06 [2.02, 2.20]") <= charts.WIDTH
    assert len(charts.wrapped("short", beside="x2.06 [2.02, 2.20]")) == 1
    (word,) = charts.wrapped("W" * 90)
    assert word.endswith("…")
    assert charts.width(word) <= charts.WIDTH
    assert charts.wrapped("words " * 40)[-1].endswith("…")


@pytest.mark.parametrize(
    ("low", "high"), [(0.9, 1.1), (0.99, 1.01), (0.5, 2.0), (0.01, 300.0), (0.2, 1.1), (0.9, 40.0), (1e-9, 1e9)]
)
def test_ticks_are_round_apart_and_hold_1(low: float, high: float) -> None:
    ticks = charts.ticks(low, high)
    assert 1.0 in ticks
    assert all(low <= tick <= high for tick in ticks)
    places = [math.log(tick / low) / math.log(high / low) * charts.WIDTH for tick in ticks]
    assert all(after - before >= charts.TICK_DISTANCE - 0.01 for before, after in pairwise(places))
    assert all(float(f"{tick:.3g}") == tick for tick in ticks)
