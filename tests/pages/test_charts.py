"""Charts of ratios: what is drawn is what was measured, and texts have room."""

import html
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


def tracks(text: str) -> list[ElementTree.Element]:
    """Return what is drawn for each row of the charts in a page."""
    return [ElementTree.fromstring(track) for track in re.findall(r'<div class="track".*?</div>', text)]


def texts(text: str) -> list[str]:
    """Return the headings and names of the charts in a page."""
    return [html.unescape(one) for one in re.findall(r'<div class="(?:title|name)">(?:<span>)?([^<]*)<', text)]


def percents(element: ElementTree.Element) -> dict[str, float]:
    return {name: float(value) for name, value in re.findall(r"(\w+): ([-\d.]+)%", element.get("style", ""))}


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
    drawn = tracks(charts.ratios("x", [("case", lines)]))
    signs = [track.find("b") for track in drawn]
    places = [percents(sign)["left"] for sign in signs if sign is not None]
    scale = (places[-1] - places[0]) / math.log(medians[-1] / medians[0])
    for place, ratio in zip(places, medians, strict=True):
        assert place - places[0] == pytest.approx(scale * math.log(ratio / medians[0]), abs=0.02)
    assert all(0 <= place <= 100 for place in places)
    shown = [(sign.get("class"), sign.text) for sign in signs if sign is not None]
    assert shown == [("slower", "◀"), ("quiet", "●"), ("quiet", "●"), ("faster", "▶"), ("faster", "▶")]
    for track, place, (style, _) in zip(drawn, places, shown, strict=True):
        behind, one, interval = track.findall("i")
        assert (behind.get("class"), one.get("class"), interval.get("class")) == ("band", "one", f"interval {style}")
        assert percents(one)["left"] == pytest.approx(places[2], abs=0.02), "the mark of 1"
        at = percents(interval)
        assert at["left"] < place < at["left"] + at["width"]
        assert at["width"] == pytest.approx(scale * math.log(1.21), abs=0.02)
        assert percents(behind)["width"] == pytest.approx(scale * math.log(1.06 / 0.95), abs=0.02)


def test_bars_are_as_long_as_their_values() -> None:
    text = charts.bars("memory", [("one", [("a", 200.0), ("b", 50.0)]), ("other", [("c", 100.0)])], "MiB")
    lengths = [percents(bar)["width"] for track in tracks(text) for bar in track.findall("i")]
    assert lengths == [100, 25, 50]
    assert texts(text) == ["one", "a", "b", "other", "c"]
    assert re.findall(r"\d+ MiB", text)[:3] == ["200 MiB", "50 MiB", "100 MiB"]


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
