"""What every room may use, and how this tfbuild is installed: where its templates are, and which command was typed."""

import re
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
# Inside the package where it was installed from a wheel (pyproject.toml maps them there).
INSIDE = PACKAGE / "templates"
COMMAND = "tfbuild"
# A verb or an option follows. Those that only a clone has stay as they are.
INVOKE = re.compile(r"\binvoke(?= (?!(?:generate|test)\b)[a-z-])")


def clone() -> Path | None:
    """Return the clone that this file is in; None for an installed package."""
    return None if INSIDE.is_dir() else PACKAGE.parent


def templates() -> Path:
    """Return the folder of the templates: beside the package in a clone, inside it where it is installed."""
    root = clone()
    return root / INSIDE.name if root else INSIDE


def command() -> str:
    """Return the command that runs verbs here: `invoke`, or the installed command by the name that was typed."""
    name = Path(sys.argv[0]).name
    # pipx and links may give it a suffix: tfbuild-2.
    return name if name.startswith(COMMAND) else "invoke" if clone() else COMMAND


def as_typed(text: str) -> str:
    """Replace `invoke`, which tfbuild's own texts name, by the command in use here."""
    return INVOKE.sub(lambda _: command(), text)
