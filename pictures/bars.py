"""Bars of what compiles gained, operation by operation: the rows of tfbuild/facts/operations.toml."""

import re
from typing import Any

from tfbuild.pages.charts import VEGA_LITE, marks, name, number
from tfbuild.plan import gain
from tfbuild.plan.gain import ReportRow

# Each picture's report, by its file in benchmarks/results/. An operation has a bar for each set that was measured.
REPORTS = {"compiled": "compiled-2.14.1"}
# By the sets' order in the facts; dark enough on white and light enough on black to be read on both.
COLOURS = ("#3a86c8", "#2e9e5b")
# Of a bar that shows no difference.
FAINT = 0.4
TEXT = "#77808c"
# With the names, 350 pixels: a phone shows all of it.
WIDTH, BAR = 155, 9
# What follows an operation's name: ", training, 8x28x28x64", " 768x768", " of 375x500".
SIZE = re.compile(r",.*| \(.*| (?:of |to )?\d+x\d+(?=$|[ ,])(?: \(.*)?")


def reports(picture: str) -> list[ReportRow]:
    """Return what a picture shows: one report for each instruction set."""
    return [row for row in gain.reports() if row.file == REPORTS[picture]]


def rows(measured: list[ReportRow]) -> list[dict[str, Any]]:
    """Return the ratio and the interval of each operation and set, the operations of the largest gain first."""
    found: dict[str, list[dict[str, Any]]] = {}
    for report in measured:
        for operations, opacity in (((*report.faster, *report.slower), 1), (report.equal, FAINT)):
            for operation in operations:
                short, (median, low, high) = SIZE.sub("", operation.name), operation.ratio
                bar = {"name": short, "set": report.cpu, "opacity": opacity, "median": median, "low": low, "high": high}
                found.setdefault(short, []).append(bar)
    by_gain = sorted(found.values(), key=lambda bars: -max(bar["median"] for bar in bars))
    return [bar for bars in by_gain for bar in bars]


def to_svg(picture: str) -> str:
    """Draw the bars with their intervals, faint where no difference is shown; a line marks the official wheel."""
    import vl_convert

    found = rows(reports(picture))
    sets = list(dict.fromkeys(row["set"] for row in found))
    axis = {"labelLimit": 320, "ticks": False, "domain": False}
    y = {"y": name("name", sort=None, title=None, axis=axis), "yOffset": name("set", sort=sets)}
    speed = number("median", title="speed; the official wheel is 1", scale={"zero": True}, stack=None)
    colours = {"domain": sets, "range": COLOURS[: len(sets)]}
    colour = name("set", scale=colours, legend={"title": None, "orient": "top"})
    opacity = number("opacity", scale=None, legend=None)
    span = {**y, "x": number("low"), "x2": {"field": "high"}}
    figure = {**y, "x": number("high"), "text": number("median", format=".2f")}
    layers = [
        marks(found, "bar", {**y, "x": speed, "color": colour, "opacity": opacity}),
        marks(found, "rule", span, color=TEXT, strokeWidth=1.5),
        marks(found, "text", figure, align="left", dx=4, color=TEXT, fontSize=8),
        marks([{"x": 1}], "rule", {"x": number("x")}, color=TEXT, strokeDash=[4, 3]),
    ]
    axes = {
        "labelColor": TEXT,
        "titleColor": TEXT,
        "gridColor": TEXT,
        "gridOpacity": 0.2,
        "labelFontSize": 11,
        "titleFontWeight": "normal",
    }
    chart = {
        "layer": layers,
        "width": WIDTH,
        "height": {"step": BAR, "for": "offset"},
        "background": "transparent",
        "padding": 5,
        "config": {"view": {"stroke": None}, "axis": axes, "legend": {"labelColor": TEXT, "labelFontSize": 11}},
    }
    return str(vl_convert.vegalite_to_svg(chart, vl_version=VEGA_LITE, allowed_base_urls=[])) + "\n"
