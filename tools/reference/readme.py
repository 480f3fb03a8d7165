"""Generate the README's support table: a short form of docs/support.md."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

from tfbuild.facts import targets
from tfbuild.plan import support
from tfbuild.plan.support import Combination
from tfbuild.util.files import with_section
from tfbuild.util.installation import clone

FILE = Path("README.md")
BEGIN, END = "<!-- support -->\n", "<!-- end of support -->\n"
OWN, OTHER = "linux/amd64", "linux/arm64"
# What was done beyond planning, and how the table says it. Whatever was compiled was verified too.
STEPS = {"compiled": "compiled", "wheel": "verified"}


def to_markdown() -> str:
    """Return the README with its table made again; only a clone has one."""
    root = clone()
    assert root is not None
    text = (root / FILE).read_text(encoding="utf-8")
    return with_section(text, BEGIN, END, table(support.rows()))


def table(combinations: Iterable[Combination]) -> str:
    """Return a line for each span of releases with the same Pythons and targets."""
    by_release = [(name, list(rows)) for name, rows in groupby(combinations, key=lambda row: row.release)]
    columns = ("TensorFlow", "Python", *(f"`{name}`" for name in targets.names()), OTHER)
    text = f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}\n"
    for _, group in groupby(by_release, key=lambda pair: _alike(pair[1])):
        releases = list(group)
        names = [name for name, _ in releases]
        rows = [row for _, some in releases for row in some]
        span = names[0] if len(names) == 1 else f"{names[-1]} to {names[0]}"
        cells = (span, _pythons(rows), *(_cell(rows, target) for target in targets.names()), _elsewhere(rows))
        text += f"| {' | '.join(cells)} |\n"
    return text


def _alike(rows: list[Combination]) -> tuple[object, ...]:
    """Return what releases in one line have in common."""
    return (_pythons(rows), _elsewhere(rows), *(_planned(rows, OWN, target) for target in targets.names()))


def _of(rows: Iterable[Combination], platform: str, target: str) -> Iterator[Combination]:
    return (row for row in rows if (row.platform, row.target) == (platform, target))


def _planned(rows: Iterable[Combination], platform: str, target: str) -> str:
    row = next(_of(rows, platform, target))
    return "no" if row.build is None else "own base" if row.own_base else "planned"


def _pythons(rows: Iterable[Combination]) -> str:
    names = list(dict.fromkeys(row.python for row in rows))
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"


def _cell(rows: list[Combination], target: str) -> str:
    """Return "planned", and the releases of which more was done."""
    done: dict[str, str] = {}
    for row in _of(rows, OWN, target):
        steps = {one.step for one in row.evidence}
        if found := next((name for step, name in STEPS.items() if step in steps), ""):
            done[row.release] = found
    parts = [
        f"**{name}** {', '.join(release for release, step in done.items() if step == name)}"
        for name in STEPS.values()
        if name in done.values()
    ]
    return "; ".join((_planned(rows, OWN, target), *parts))


def _elsewhere(rows: list[Combination]) -> str:
    """Return which targets can be planned for the other platform."""
    names = [name for name in targets.names() if _planned(rows, OTHER, name) != "no"]
    return "all targets" if len(names) == len(targets.names()) else ", ".join(f"`{name}`" for name in names) or "no"
