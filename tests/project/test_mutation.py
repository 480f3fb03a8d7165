"""Planted defects: which there are, and that a test which notices one is told from tests that do not."""

import re
from pathlib import Path

import pytest

from benchmarks import mutation
from tests.checkout import ROOT
from tests.rows import each

SAMPLED = [path.stem for path in sorted(mutation.FOLDER.glob("*.json"))]

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


def report(room: str, *diffs: str) -> mutation.Report:
    return mutation.Report(
        room=room, created="2026-01-02T03:04:05+00:00", commit="0123456789ab", seed=7, planted=20,
        survivors=tuple(mutation.Survivor(diff=diff) for diff in diffs),
    )  # fmt: skip


def test_why_a_defect_is_equivalent_stays_while_the_same_change_survives(tmp_path: Path) -> None:
    same, other = "a.py\n@@ -1 +1 @@\n-1\n+2", "a.py\n@@ -1 +1 @@\n-1\n+3"
    mutation.write(tmp_path, report("cpu", same, other))
    # As a developer writes it, by hand.
    path = tmp_path / "cpu.json"
    path.write_text(path.read_text().replace('"equivalent": ""', '"equivalent": "every caller gives it"', 1))
    mutation.write(tmp_path, report("cpu", other, same.replace("-1 +1", "-9 +9")))
    kept = mutation.read(tmp_path, "cpu")
    assert kept is not None
    assert [row.equivalent for row in kept.survivors] == ["", "every caller gives it"]


@each("room", SAMPLED)
def test_every_survivor_of_a_committed_sample_is_explained_or_found_by_a_test_since(room: str) -> None:
    committed = mutation.read(mutation.FOLDER, room)
    assert committed is not None
    assert re.fullmatch("[0-9a-f]{12}", committed.commit), "a sample of files that no commit has"
    for row in committed.survivors:
        assert bool(row.equivalent) != bool(row.killed_by), row.diff
        if row.killed_by:
            file, _, name = row.killed_by.partition("::")
            assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), row.killed_by
