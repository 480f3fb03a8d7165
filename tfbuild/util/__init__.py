"""What every room may use, and how this tfbuild is installed: where its templates are, and which command was typed."""

import re
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
# Inside the package where it was installed from a wheel (pyproject.toml maps them there); in a clone, beside it.
INSIDE = PACKAGE / "templates"
COMMAND = "tfbuild"
# A verb or an option follows. Those that only a clone has stay as they are.
INVOKE = re.compile(r"\binvoke(?= (?!(?:generate|test)\b)[a-z-])")


def templates() -> Path:
    """Return the folder of the templates."""
    return INSIDE if INSIDE.is_dir() else PACKAGE.parent / INSIDE.name


def command() -> str:
    """Return the command that runs verbs here: `invoke`, or the installed command by the name that was typed."""
    name = Path(sys.argv[0]).name
    # pipx and links may give it a suffix: tfbuild-2.
    return name if name.startswith(COMMAND) else COMMAND if INSIDE.is_dir() else "invoke"


def as_typed(text: str) -> str:
    """Replace `invoke`, which tfbuild's own texts name, by the command in use here."""
    return INVOKE.sub(lambda _: command(), text)
