"""The rooms of docs/architecture.md: each is there, and imports only rooms below it."""

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest
from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

from tests import checkout

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "tfbuild"
MOST_LINES = 400
# Above and below all rooms.
MODULES = ("__main__", "errors")


def rooms() -> set[str]:
    return {folder.name for folder in PACKAGE.iterdir() if (folder / "__init__.py").is_file()}


def test_imports_go_downward_and_in_no_circle() -> None:
    assert lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True) == EXIT_STATUS_SUCCESS


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkout.copy(tmp_path_factory.mktemp("rooms") / "copy", "tfbuild/", "pyproject.toml")


@pytest.mark.parametrize(
    ("planted", "broken"),
    [
        ({"util/terminal.py": "tfbuild.plan.build"}, "a room imports only rooms below it BROKEN"),
        ({"fleet/__init__.py": "tfbuild.ci.matrix"}, "a room imports only rooms below it BROKEN"),
        (
            {"util/terminal.py": "tfbuild.util.quantities", "util/quantities.py": "tfbuild.util.terminal"},
            "no circles inside a room BROKEN",
        ),
        ({"context/labels.py": "tfbuild.facts.releases"}, "no step after the plan asks the facts BROKEN"),
        ({"pipeline/run.py": "tfbuild.facts"}, "no step after the plan asks the facts BROKEN"),
        ({"plan/build.py": "docker"}, "only engine/ talks to Docker BROKEN"),
        ({"in_container/smoke/judge.py": "tfbuild.facts"}, "what runs inside images imports nothing of ours BROKEN"),
    ],
)
def test_a_planted_import_is_refused(planted: dict[str, str], broken: str, copy: Path) -> None:
    checkout.git(copy, "checkout", "--quiet", ".")
    for name, module in planted.items():
        with (copy / "tfbuild" / name).open("a", encoding="utf-8") as file:
            # Inside a function, where a circle could hide.
            file.write(f"\n\ndef planted() -> None:\n    import {module}  # noqa: F401\n")
    code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    done = subprocess.run([sys.executable, "-c", code], cwd=copy, capture_output=True, text=True, check=False)
    assert done.returncode != EXIT_STATUS_SUCCESS
    assert broken in done.stdout


def test_a_class_name_stands_for_one_thing() -> None:
    names = Counter(
        node.name
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_no_module_takes_the_name_of_a_standard_one_or_is_too_long() -> None:
    modules = {path: path.read_text(encoding="utf-8") for path in PACKAGE.rglob("[!_]*.py")}
    assert {path.stem for path in modules} & sys.stdlib_module_names == set()
    code = {name: re.findall(r"^ *[^\s#].*$", text, re.MULTILINE) for name, text in modules.items()}
    # With docstrings.
    assert {name: len(lines) for name, lines in code.items() if len(lines) > MOST_LINES} == {}


def test_each_room_has_its_rule_in_the_manual_in_the_order_of_the_layers() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+)` \| .+ \|$", text, re.MULTILINE)
    assert set(listed) == rooms()
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    layers = [set(line.split(" | ")) for line in config["contracts"][0]["layers"] if line not in MODULES]
    left = iter(listed)
    assert [{next(left) for _ in layer} for layer in layers] == layers


def test_the_root_of_the_package_has_no_modules_of_its_own() -> None:
    assert {path.name for path in PACKAGE.glob("*.py")} == {"__init__.py", *(f"{name}.py" for name in MODULES)}
