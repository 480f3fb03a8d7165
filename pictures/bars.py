"""Bars of what AVX-512 gains, operation by operation, from the committed report benchmarks/results/isa.json."""

import json
import re
from pathlib import Path
from typing import Any

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
    import altair
    import vl_convert

    def values(rows: list[dict[str, Any]]) -> Any:
        return altair.InlineData(values=rows)

    names = altair.Y("name:N", sort=None, title=None, axis=altair.Axis(labelLimit=320, ticks=False, domain=False))
    colours = altair.Scale(domain=["faster", "slower", "no difference shown"], range=[FASTER, SLOWER, SAME])
    base = altair.Chart(values(rows(root))).encode(y=names)
    speed = altair.X("median:Q", title="speed by CPU time; 1 is the official wheel", scale=altair.Scale(zero=True))
    bars = base.mark_bar().encode(
        x=speed, color=altair.Color("effect:N", scale=colours, legend=altair.Legend(title=None, orient="top"))
    )
    whiskers = base.mark_rule(color=TEXT, strokeWidth=1.5).encode(x="low:Q", x2="high:Q")
    figures = base.mark_text(align="left", dx=4, color=TEXT).encode(
        x="high:Q", text=altair.Text("median:Q", format=".2f")
    )
    one = altair.Chart(values([{"x": 1}])).mark_rule(color=TEXT, strokeDash=[4, 3]).encode(x="x:Q")
    chart = (
        (bars + whiskers + figures + one)
        .properties(
            width=WIDTH,
            height={"step": BAR},
            background="transparent",
            padding={"left": 30, "top": 5, "right": 5, "bottom": 5},
        )
        .configure_view(stroke=None)
        .configure_axis(
            labelColor=TEXT,
            titleColor=TEXT,
            gridColor=TEXT,
            gridOpacity=0.2,
            labelFontSize=12,
            titleFontWeight="normal",
        )
        .configure_legend(labelColor=TEXT, labelFontSize=12)
    )
    return str(vl_convert.vegalite_to_svg(chart.to_json(), allowed_base_urls=[])) + "\n"
