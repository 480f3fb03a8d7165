"""Bars of what a compile gained, operation by operation: the rows of tfbuild/facts/operations.toml."""

import re
from typing import Any

from tfbuild.pages.charts import VEGA_LITE, marks, name, number
from tfbuild.plan import gain
from tfbuild.plan.gain import ReportRow

# Each picture's report, by its file in benchmarks/results/.
REPORTS = {"avx512": "isa", "compiled": "compiled-2.14.1"}
# Dark enough on white and light enough on black to be read on both.
FASTER, SLOWER, SAME = "#2e9e5b", "#d1584b", "#8590a0"
TEXT = "#77808c"
# With the names, 350 pixels: a phone shows all of it.
WIDTH, BAR = 155, 17
# What follows an operation's name: ", training, 8x28x28x64", " 768x768", " of 375x500".
SIZE = re.compile(r",.*| \(.*| (?:of |to )?\d+x\d+(?=$| )(?: \(.*)?")


def report(picture: str) -> ReportRow:
    """Return what a picture shows."""
    return next(row for row in gain.reports() if row.file == REPORTS[picture])


def rows(measured: ReportRow) -> list[dict[str, Any]]:
    """Return the ratio and the interval of each operation, the largest gain first."""
    effects = {"faster": measured.faster, "slower": measured.slower, "no difference shown": measured.equal}
    found = []
    for effect, operations in effects.items():
        for operation in operations:
            median, low, high = operation.ratio
            operation_name = SIZE.sub("", operation.name)
            found.append({"name": operation_name, "effect": effect, "median": median, "low": low, "high": high})
    return sorted(found, key=lambda row: -row["median"])


def to_svg(picture: str) -> str:
    """Draw the bars with their intervals; a line marks the official wheel's speed."""
    import vl_convert

    axis = {"labelLimit": 320, "ticks": False, "domain": False}
    y = name("name", sort=None, title=None, axis=axis)
    speed = number("median", title="speed; the official wheel is 1", scale={"zero": True})
    effects = {"domain": ["faster", "slower", "no difference shown"], "range": [FASTER, SLOWER, SAME]}
    colour = name("effect", scale=effects, legend={"title": None, "orient": "top"})
    span = {"y": y, "x": number("low"), "x2": {"field": "high"}}
    figure = {"y": y, "x": number("high"), "text": number("median", format=".2f")}
    found = rows(report(picture))
    layers = [
        marks(found, "bar", {"y": y, "x": speed, "color": colour}),
        marks(found, "rule", span, color=TEXT, strokeWidth=1.5),
        marks(found, "text", figure, align="left", dx=4, color=TEXT),
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
        "height": {"step": BAR},
        "background": "transparent",
        "padding": 5,
        "config": {"view": {"stroke": None}, "axis": axes, "legend": {"labelColor": TEXT, "labelFontSize": 11}},
    }
    return str(vl_convert.vegalite_to_svg(chart, vl_version=VEGA_LITE, allowed_base_urls=[])) + "\n"
