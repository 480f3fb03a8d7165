"""The rooms of docs/architecture.md: each is there, and imports only rooms below it."""

import ast
import re
import sys
import tomllib
from collections import Counter
from pathlib import Path

from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "tfbuild"
MOST_LINES = 400
# Above and below all rooms.
MODULES = ("__main__", "errors")


def rooms() -> set[str]:
    return {folder.name for folder in PACKAGE.iterdir() if (folder / "__init__.py").is_file()}


def test_imports_go_downward_and_in_no_circle() -> None:
    assert lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True) == EXIT_STATUS_SUCCESS


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
