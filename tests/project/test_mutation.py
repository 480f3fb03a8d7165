"""Planted defects: which there are, and that a test which notices one is told from tests that do not."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import mutation
from tests.checkout import ROOT

CODE = '''"""A room's file."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os


def most(values: "list[int]", limit: int = 3) -> int:
    """Return it."""
    if not values or max(values) >= limit:
        raise ValueError(f"{values} with words")
    return values[0] + limit
'''


def test_every_place_that_decides_has_a_defect_that_python_takes(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(CODE)
    defects = list(mutation.of_file(path))
    assert {defect.text for defect in defects} == {
        "4", "(not values and max(values) >= limit)", "(values)", "(max(values) > limit)", "(min(values))", "pass",
        "return None", "(values[0] - limit)", "1",
    }  # fmt: skip
    assert len(defects) == 9
    for defect in defects:
        compile(defect.planted(), "a.py", "exec")
        assert defect.planted() != CODE


@pytest.mark.parametrize("room", mutation.ROOMS)
def test_every_room_has_a_sample(room: str) -> None:
    assert (ROOT / "tests" / room).is_dir()
    assert len(mutation.defects(room)) > 100


def test_the_tests_that_name_a_module_run_first() -> None:
    assert mutation.nearest("oci", "referrers") == ["oci/test_referrers.py", "oci/test_untrusted.py"]
    assert mutation.nearest("oci", "no_such_module") == []


RUN = """
from pathlib import Path
from benchmarks import mutation
mutation.ROOT = Path("project").absolute()
runner = mutation.Runner(copy=Path("copy").absolute(), log=Path("log").absolute())
print(runner.passes(["cpu"], 60))
path = mutation.ROOT / "tfbuild/cpu/a.py"
defects = {defect.text: defect for defect in mutation.of_file(path)}
print(*(runner.finds(defects[text], [["cpu"]], 60) for text in ("2", "3")))
print((runner.copy / "tfbuild/cpu/a.py").read_text() == path.read_text())
"""


def test_a_defect_is_found_if_a_test_fails_with_it_and_is_then_gone(tmp_path: Path) -> None:
    for folder in ("project", "copy"):
        for name, text in {
            "tfbuild/cpu/a.py": "TESTED = 1\nUNTESTED = 2\n",
            "tests/cpu/test_a.py": "from tfbuild.cpu import a\n\ndef test_a():\n    assert a.TESTED == 1\n",
            **dict.fromkeys(("tests/__init__.py", "tests/cpu/__init__.py", "tfbuild/__init__.py"), ""),
            "pytest.ini": "[pytest]\nmarkers =\n",
        }.items():
            path = tmp_path / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    done = subprocess.run(
        [sys.executable, "-c", RUN], cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["True", "True", "False", "True"]
