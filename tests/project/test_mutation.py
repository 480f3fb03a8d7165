"""Planted defects: which there are, and that a test which notices one is told from tests that do not."""

from pathlib import Path

import pytest

from benchmarks import mutation
from tests.checkout import ROOT

CODE = '''"""A room's file."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os


class Kept(frozen=True):
    limit: int


def most(values: "list[int]", limit: int = 3) -> int:
    """Return it."""
    if not values or max(values) >= limit:
        raise ValueError(f"{values} with words")
    return values[0] + limit
'''


def test_every_place_that_decides_has_a_defect_that_python_takes(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(CODE)
    defects = list(mutation.of_file(tmp_path, Path("a.py")))
    assert {defect.text for defect in defects} == {
        "4", "(not values and max(values) >= limit)", "(values)", "(max(values) > limit)", "(min(values))", "pass",
        "return None", "(values[0] - limit)", "1",
    }  # fmt: skip
    assert len(defects) == 9
    for defect in defects:
        compile(defect.planted(), "a.py", "exec")
        assert defect.planted() != CODE


@pytest.mark.parametrize("room", mutation.ROOMS)
def test_every_room_can_be_sampled(room: str) -> None:
    assert [*mutation.ordered(ROOT, room, "x"), *mutation.RELATED.get(room, ())], "no test would find a defect"
    assert len(mutation.defects(ROOT, room)) > 50
