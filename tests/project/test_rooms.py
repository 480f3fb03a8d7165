"""The rooms of docs/architecture.md: each is there, and imports only rooms below it."""

import re
import tomllib
from pathlib import Path

from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "tfbuild"
MOST_ROOMS = 24
# Below all rooms.
MODULES = ("errors",)


def rooms() -> set[str]:
    return {folder.name for folder in PACKAGE.iterdir() if (folder / "__init__.py").is_file()}


def test_imports_go_downward_and_in_no_circle() -> None:
    assert lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True) == EXIT_STATUS_SUCCESS


def test_each_room_has_its_rule_in_the_manual_in_the_order_of_the_layers() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+)` \| .+ \|$", text, re.MULTILINE)
    assert set(listed) == rooms()
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    layers = [set(line.split(" | ")) for line in config["contracts"][0]["layers"] if line not in MODULES]
    assert [set(listed[at : at + len(layer)]) for at, layer in places(layers)] == layers


def places(layers: list[set[str]]) -> list[tuple[int, set[str]]]:
    """Where each layer begins in a list of all rooms."""
    return [(sum(map(len, layers[:number])), layer) for number, layer in enumerate(layers)]


def test_the_root_of_the_package_has_no_modules_of_its_own() -> None:
    assert {path.name for path in PACKAGE.glob("*.py")} == {"__init__.py", *(f"{name}.py" for name in MODULES)}


def test_the_house_is_small_enough_to_know() -> None:
    assert sum(1 for folder in PACKAGE.rglob("__init__.py") if folder.parent != PACKAGE) <= MOST_ROOMS
