"""The manual's pictures: made by the commands that they show, used, small, and without requests to elsewhere."""

import re
from pathlib import Path

import pytest

from tests.rows import each
from tools.pictures import FOLDER, ROOT, bars, shots

PICTURES = sorted(FOLDER.iterdir())
# Bytes of one picture.
MOST = 200_000


@pytest.mark.parametrize("name", ["explain", "fleet"])
def test_a_terminal_shows_what_its_command_prints(name: str, tmp_path: Path) -> None:
    for file, svg in shots.SHOTS[name].draw(name, tmp_path):
        assert (FOLDER / file).read_text(encoding="utf-8") == svg, f"python -m tools.pictures {name}"


@each("name", bars.REPORTS)
def test_the_bars_are_those_of_the_report(name: str) -> None:
    texts = re.findall(r"<text[^>]*>([^<]+)</text>", (FOLDER / f"{name}.svg").read_text(encoding="utf-8"))
    rows = bars.rows(bars.reports(name))
    names = list(dict.fromkeys(row["name"] for row in rows))[: bars.MOST_ROWS]
    rows = [row for row in rows if row["name"] in names]
    assert [text for text in texts if text in names] == names
    assert [text for text in texts if re.fullmatch(r"\d\.\d\d", text)] == [f"{row['median']:.2f}" for row in rows]


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.name)
def test_a_picture_is_small_used_and_by_itself(picture: Path) -> None:
    assert picture.stat().st_size < MOST
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    assert any(f"pictures/{picture.name}" in page.read_text(encoding="utf-8") for page in pages)
    if picture.suffix == ".svg":
        addresses = re.findall(r"(?:https?:)?//[^\"'\s)]+", picture.read_text(encoding="utf-8"))
        assert set(addresses) <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
