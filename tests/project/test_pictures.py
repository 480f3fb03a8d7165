"""The manual's pictures: made by the commands that they show, used, small, and without requests to elsewhere."""

import re
from pathlib import Path

import pytest

from tools.pictures import FOLDER, ROOT, shots

PICTURES = sorted(FOLDER.iterdir())
# Bytes of one picture.
MOST = 200_000


@pytest.mark.parametrize("name", ["explain", "fleet"])
def test_a_terminal_shows_what_its_command_prints(name: str, tmp_path: Path) -> None:
    for file, svg in shots.SHOTS[name].draw(name, tmp_path):
        assert (FOLDER / file).read_text(encoding="utf-8") == svg, f"python -m tools.pictures {name}"


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.name)
def test_a_picture_is_small_used_and_by_itself(picture: Path) -> None:
    assert picture.stat().st_size < MOST
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    assert any(f"pictures/{picture.name}" in page.read_text(encoding="utf-8") for page in pages)
    if picture.suffix == ".svg":
        addresses = re.findall(r"(?:https?:)?//[^\"'\s)]+", picture.read_text(encoding="utf-8"))
        assert set(addresses) <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
