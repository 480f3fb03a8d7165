"""Bars of what compiles gained, operation by operation: the rows of tfbuild/facts/gains.toml."""

import re
from itertools import groupby
from pathlib import Path
from typing import Any

from jinja2 import Template

from tfbuild.bench import gain
from tfbuild.bench.gain import Gain
from tfbuild.measure import experiments

# Each picture in docs/pictures/, and its report in benchmarks/results/. An operation has a bar for each set that was
# measured.
PICTURES = {"compiled.svg": "compiled-2.22.0.dev", "compiled-2.14.1.svg": "compiled-2.14.1"}
# By the sets' order in the facts; dark enough on white and light enough on black to be read on both.
COLOURS = ("#3a86c8", "#2e9e5b")
# Of a bar that shows no difference.
FAINT = 0.4
TEXT = "#77808c"
# Pixels; a phone shows all of it: the room of the bars, of one bar, and between two operations.
WIDTH, BAR, GAP = 155, 9, 4
# Of a letter of any usual font, so that no name is cut off; of a line of the legend.
LETTER, LINE = 7.0, 15
MOST_ROWS = 12
# What follows an operation's name: ", training, 8x28x28x64", " 768x768", " of 375x500".
SIZE = re.compile(r",.*| \(.*| (?:of |to )?\d+x\d+(?=$|[ ,])(?: \(.*)?")


def pages() -> dict[Path, str]:
    """Return each picture of bars, by its path in the repository."""
    measured = gain.measured_gains()
    return {
        Path("docs") / "pictures" / name: to_svg([row for row in measured if row.report == report])
        for name, report in PICTURES.items()
    }


def rows(measured: list[Gain]) -> list[dict[str, Any]]:
    """Return the ratio and the interval of each operation and set: the models first, then the largest gain."""
    models = {case.name for row in experiments.known_experiments() for case in row.case if row.work(case) == "model"}
    found: dict[str, list[dict[str, Any]]] = {}
    for report in measured:
        for operations, opacity in (((*report.faster, *report.slower), 1), (report.equal, FAINT)):
            for operation in operations:
                short, (median, low, high) = SIZE.sub("", operation.name), operation.ratio
                bar = {"name": short, "set": report.cpu, "opacity": opacity, "median": median, "low": low, "high": high}
                found.setdefault(short, []).append({**bar, "model": operation.name in models})
    ordered = sorted(found.values(), key=lambda bars: (not bars[0]["model"], -max(bar["median"] for bar in bars)))
    return [bar for bars in ordered for bar in bars]


def to_svg(measured: list[Gain]) -> str:
    """Draw the bars with their intervals, faint where no difference is shown; a line marks the official wheel."""
    every = rows(measured)
    names = [*dict.fromkeys(row["name"] for row in every)]
    found = [row for row in every if row["name"] in names[:MOST_ROWS]]
    rest = [row["median"] for row in every if row["name"] in names[MOST_ROWS:]]
    left = round(LETTER * max(map(len, names[:MOST_ROWS])))
    colours = dict(zip(dict.fromkeys(row["set"] for row in found), COLOURS, strict=False))
    most = max(row["high"] for row in found)

    def x(ratio: float) -> float:
        return float(round(left + WIDTH * ratio / most, 1))

    top = LINE * len(colours) + 10
    groups, y = [], float(top)
    for name, bars in groupby(found, key=lambda row: row["name"]):
        drawn = []
        for bar in bars:
            place = {"y": y, "middle": y + BAR / 2, "width": round(x(bar["median"]) - left, 1)}
            ends = {"low": x(bar["low"]), "high": x(bar["high"]), "number": f"{bar['median']:.2f}"}
            drawn.append({**place, **ends, "colour": colours[bar["set"]], "opacity": bar["opacity"]})
            y += BAR
        groups.append((name, (drawn[0]["y"] + y) / 2 + 4, drawn))
        y += GAP
    ticks = [(x(half / 2), f"{half / 2:g}") for half in range(int(2 * most) + 1)]
    template = Template(Path(__file__).with_name("bars.svg.j2").read_text(), trim_blocks=True, autoescape=True)
    svg: str = template.render(
        groups=groups, sets=colours.items(), ink=TEXT, left=left, top=top, bottom=y, line=LINE,
        width=left + WIDTH + 30, height=y + 50, thickness=BAR - 1, one=x(1), ticks=ticks,
        rest=f"{len(names[MOST_ROWS:])} other operations: {min(rest):.2f} to {max(rest):.2f}",
    )  # fmt: skip
    return f"{svg}\n"
