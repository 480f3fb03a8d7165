"""Charts of ratios: what is drawn is what was measured, and texts have room."""

import html
import math
import re
from xml.etree import ElementTree

import pytest

from tfbuild import pages
from tfbuild.measure.records import Interval


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
        pages.Line(
            label=str(m), ratio=Interval(median=m, low=m / 1.1, high=m * 1.1, coverage=0.95), effect=effect, band=band
        )
        for m, effect in zip(medians, effects, strict=True)
    )
    page = pages.ratios("x", [("case", lines)])
    drawn = [ElementTree.fromstring(track) for track in re.findall(r'<div class="track".*?</div>', page)]
    signs = [track.find("b") for track in drawn]
    places = [percents(sign)["left"] for sign in signs if sign is not None]
    scale = (places[-1] - places[0]) / math.log(medians[-1] / medians[0])
    for place, ratio in zip(places, medians, strict=True):
        assert place - places[0] == pytest.approx(scale * math.log(ratio / medians[0]), abs=0.02)
    assert [place for place in places if not (0 <= place <= 100)] == []
    shown = [(sign.get("class"), sign.text) for sign in signs if sign is not None]
    assert shown == [("slower", "◀"), ("quiet", "●"), ("quiet", "●"), ("faster", "▶"), ("faster", "▶")]
    for track, place, (style, _) in zip(drawn, places, shown, strict=True):
        behind, one, interval = [mark for mark in track.findall("i") if mark.get("class") != "tick"]
        assert (behind.get("class"), one.get("class"), interval.get("class")) == ("band", "one", f"interval {style}")
        assert percents(one)["left"] == pytest.approx(places[2], abs=0.02), "the mark of 1"
        at = percents(interval)
        assert at["left"] < place < at["left"] + at["width"]
        assert at["width"] == pytest.approx(scale * math.log(1.21), abs=0.02)
        assert percents(behind)["width"] == pytest.approx(scale * math.log(1.06 / 0.95), abs=0.02)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.9, 1.1, [0.9, 1, 1.1]), (0.99, 1.01, [1]), (0.5, 2.0, [0.5, 1, 2]), (0.75, 1.9, [1, 1.5]),
        (0.8, 1.25, [1, 1.2]), (0.5, 4.0, [0.5, 1, 2]), (0.9, 60.0, [1, 3, 10, 50]), (0.01, 300.0, [0.01, 1, 100]),
        (1e-9, 1e9, [1e-9, 1, 1e5]),
    ],
)  # fmt: skip
def test_ticks_are_round_apart_and_hold_1(low: float, high: float, expected: list[float]) -> None:
    assert pages.ticks(low, high) == expected
