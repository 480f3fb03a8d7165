"""Find out how this tfbuild is installed: where its templates are, whether it is a clone, which command was typed."""

import json
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

PACKAGE = Path(__file__).parents[1]
# Inside the package where it was installed from a wheel (pyproject.toml maps them there).
INSIDE = PACKAGE / "templates"
COMMAND = "tfbuild"
# The name in pyproject.toml, by which pip knows the package.
DISTRIBUTION = "tensorflow-tfbuild"
# A verb or an option follows. Those that only a clone has stay as they are.
INVOKE = re.compile(r"\binvoke(?= (?!(?:dockerfiles|docs|generate|test)\b)[a-z-])")


def clone() -> Path | None:
    """Return the clone that this file is in; None for an installed package."""
    return None if INSIDE.is_dir() else PACKAGE.parent


def templates() -> Path:
    """Return the folder of the templates: beside the package in a clone, inside it where it is installed."""
    root = clone()
    return root / INSIDE.name if root else INSIDE


def adding(extra: str, packages: Sequence[str]) -> str:
    """Return the command that adds an extra, in the way and from the source by which this tfbuild was installed.

    It never names tfbuild's own package on an index, which does not exist.
    """
    prefix, python, source = Path(sys.prefix), shlex.quote(sys.executable), _installed_from()
    every = " ".join(packages)
    wanted = shlex.quote(f"{source}[{extra}]")
    if (prefix / "pipx_metadata.json").is_file():
        return f"pipx install --force {wanted}" if source else f"pipx inject {prefix.name} {every}"
    if (prefix / "uv-receipt.toml").is_file():
        return f"uv tool install --force {wanted}" if source else f"uv pip install --python {python} {every}"
    return f"{python} -m pip install {wanted if source else every}"


def _installed_from() -> str:
    """Return the folder or file that this package was installed from, if it is still there, else "" (PEP 610)."""
    from importlib.metadata import PackageNotFoundError, distribution  # slow, and errors alone need it

    try:
        record = json.loads(distribution(DISTRIBUTION).read_text("direct_url.json") or "")
    except (PackageNotFoundError, ValueError):
        return ""
    url = urlsplit(str(record.get("url", "")))
    path = unquote(url.path)
    return path if url.scheme == "file" and Path(path).exists() else ""


def command() -> str:
    """Return the command that runs verbs here: `invoke`, or the installed command by the name that was typed."""
    name = Path(sys.argv[0]).name
    # pipx and links may give it a suffix: tfbuild-2.
    return name if name.startswith(COMMAND) else "invoke" if clone() else COMMAND


def as_typed(text: str) -> str:
    """Replace `invoke`, which tfbuild's own texts name, by the command in use here."""
    return INVOKE.sub(lambda _: command(), text)
