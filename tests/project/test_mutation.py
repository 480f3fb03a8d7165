"""Planted defects: which there are, and that a test which notices one is told from tests that do not."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import mutation
from tests.checkout import ROOT
from tests.rows import each
from tools import figures

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
    assert len(mutation.defects(ROOT, room)) > 100


def test_the_tests_that_name_a_module_run_first_and_each_once(tmp_path: Path) -> None:
    folder = tmp_path / "tests" / "oci"
    folder.mkdir(parents=True)
    for name, text in {"a": "tags", "b": "tags tags", "c": "tagsoup", "tags": "x"}.items():
        (folder / f"test_{name}.py").write_text(text)
    own, naming, others = ["oci/test_tags.py"], ["oci/test_b.py", "oci/test_a.py"], ["oci/test_c.py"]
    assert mutation.ordered(tmp_path, "oci", "tags") == [own, naming, others]
    assert mutation.ordered(tmp_path, "oci", "none") == [sorted([*own, *naming, *others])]


RUN = """
from pathlib import Path
from benchmarks import mutation
runner = mutation.Runner(copy=Path("copy").absolute(), log=Path("log").absolute())
print(runner.passes(["cpu"], 60))
file = runner.copy / "tfbuild/cpu/a.py"
before = file.read_text()
defects = {defect.text: defect for defect in mutation.of_file(runner.copy, Path("tfbuild/cpu/a.py"))}
print(*(runner.finds(defects[text], [["cpu"]]) for text in ("2", "3")))
print(file.read_text() == before, [*runner.unchanged] == [("cpu",)])
(runner.copy / "tests/cpu/test_b.py").write_text("def test_b(): assert False")
runner.seconds(["cpu/test_b.py"])
"""


@pytest.mark.nightly
def test_a_defect_is_found_if_a_test_fails_with_it_and_is_then_gone(tmp_path: Path) -> None:
    for name, text in {
        "tfbuild/cpu/a.py": "TESTED = 1\nUNTESTED = 2\n",
        "tests/cpu/test_a.py": "from tfbuild.cpu import a\n\ndef test_a():\n    assert a.TESTED == 1\n",
        **dict.fromkeys(("tests/__init__.py", "tests/cpu/__init__.py", "tfbuild/__init__.py"), ""),
        "pytest.ini": "[pytest]\nmarkers =\n",
    }.items():
        path = tmp_path / "copy" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    done = subprocess.run(
        [sys.executable, "-c", RUN], cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.stdout.split() == ["True", "True", "False", "True", "True"], done.stderr
    assert done.returncode == 1
    assert "cpu/test_b.py fail as they are:" in done.stderr, "they would find everything"


def report(room: str, *diffs: str) -> mutation.Report:
    return mutation.Report(
        room=room, created="2026-01-02T03:04:05+00:00", commit="0123456789ab", seed=7, planted=20,
        survivors=tuple(mutation.Survivor(diff=diff) for diff in diffs),
    )  # fmt: skip


def with_reason(folder: Path, room: str, reason: str) -> None:
    """What a developer writes into a report by hand, at its first survivor."""
    path = folder / f"{room}.json"
    path.write_text(path.read_text().replace('"equivalent": ""', f'"equivalent": "{reason}"', 1))


def test_why_a_defect_is_equivalent_stays_while_the_same_change_survives(tmp_path: Path) -> None:
    same, other = "a.py\n@@ -1 +1 @@\n-1\n+2", "a.py\n@@ -1 +1 @@\n-1\n+3"
    mutation.write(tmp_path, report("cpu", same, other))
    with_reason(tmp_path, "cpu", "every caller gives it")
    mutation.write(tmp_path, report("cpu", other, same.replace("-1 +1", "-9 +9")))
    kept = mutation.read(tmp_path, "cpu")
    assert kept is not None
    assert [row.equivalent for row in kept.survivors] == ["", "every caller gives it"]


def test_the_table_counts_an_equivalent_defect_and_one_that_was_killed_since_as_not_found(tmp_path: Path) -> None:
    mutation.write(tmp_path, report("plan", "a.py\n-1\n+2", "a.py\n-3\n+4", "a.py\n-5\n+6"))
    with_reason(tmp_path, "plan", "every caller gives it")
    path = tmp_path / "plan.json"
    killed = '"killed_by": "tests/plan/test_a.py::test_a"'
    path.write_text(killed.join(path.read_text().rsplit('"killed_by": ""', 2)))
    *_, line = figures.mutation_table(tmp_path).splitlines()
    assert line == "| `plan` | 17 of 20 (85%) | 1 | 2 | seed 7, commit 0123456789ab, 2026-01-02 |"


if SAMPLED:  # else there is nothing to test

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
