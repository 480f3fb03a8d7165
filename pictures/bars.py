"""Bars of what AVX-512 gains, operation by operation, from the committed report benchmarks/results/isa.json."""

import json
import re
from pathlib import Path
from typing import Any

from tfbuild.pages.charts import VEGA_LITE

REPORT = Path("benchmarks") / "results" / "isa.json"
# Dark enough on white and light enough on black to be read on both.
FASTER, SLOWER, SAME = "#2e9e5b", "#d1584b", "#8590a0"
TEXT = "#77808c"
WIDTH, BAR = 420, 17
# What follows an operation's name: ", training, 8x28x28x64", " 768x768", " of 375x500".
SIZE = re.compile(r",.*| \(.*| (?:of |to )?\d+x\d+(?=$| )(?: \(.*)?")


def rows(root: Path) -> list[dict[str, Any]]:
    """Return the ratio and the interval of each measured operation, the largest gain first."""
    report = json.loads((root / REPORT).read_text(encoding="utf-8"))
    found = []
    for case in report["experiments"][0]["cases"]:
        arm = case["arms"][-1]
        if case["status"] == "measured" and arm["cpu"] and not case["noisy"]:
            found.append({"name": SIZE.sub("", case["name"]), "effect": arm["effect"], **arm["cpu"]})
    return sorted(found, key=lambda row: -row["median"])


def to_svg(root: Path) -> str:
    """Draw the bars with their intervals; a line marks the official wheel's speed."""
    import vl_convert

    name = {"field": "name", "type": "nominal", "sort": None, "title": None}
    y = {**name, "axis": {"labelLimit": 320, "ticks": False, "domain": False}}
    high = {"field": "high", "type": "quantitative"}
    speed = {
        "field": "median",
        "type": "quantitative",
        "title": "speed by CPU time; 1 is the official wheel",
        "scale": {"zero": True},
    }
    colour = {
        "field": "effect",
        "type": "nominal",
        "scale": {"domain": ["faster", "slower", "no difference shown"], "range": [FASTER, SLOWER, SAME]},
        "legend": {"title": None, "orient": "top"},
    }
    bars = {"mark": {"type": "bar"}, "encoding": {"y": y, "x": speed, "color": colour}}
    whiskers = {
        "mark": {"type": "rule", "color": TEXT, "strokeWidth": 1.5},
        "encoding": {"y": y, "x": {"field": "low", "type": "quantitative"}, "x2": {"field": "high"}},
    }
    figures = {
        "mark": {"type": "text", "align": "left", "dx": 4, "color": TEXT},
        "encoding": {"y": y, "x": high, "text": {"field": "median", "type": "quantitative", "format": ".2f"}},
    }
    one = {
        "data": {"values": [{"x": 1}]},
        "mark": {"type": "rule", "color": TEXT, "strokeDash": [4, 3]},
        "encoding": {"x": {"field": "x", "type": "quantitative"}},
    }
    axis = {
        "labelColor": TEXT,
        "titleColor": TEXT,
        "gridColor": TEXT,
        "gridOpacity": 0.2,
        "labelFontSize": 12,
        "titleFontWeight": "normal",
    }
    chart = {
        "data": {"values": rows(root)},
        "layer": [bars, whiskers, figures, one],
        "width": WIDTH,
        "height": {"step": BAR},
        "background": "transparent",
        "padding": {"left": 30, "top": 5, "right": 5, "bottom": 5},
        "config": {"view": {"stroke": None}, "axis": axis, "legend": {"labelColor": TEXT, "labelFontSize": 12}},
    }
    return str(vl_convert.vegalite_to_svg(chart, vl_version=VEGA_LITE, allowed_base_urls=[])) + "\n"
