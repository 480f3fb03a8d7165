"""Propose the rows of releases.toml for a new release, from its source tree.

    python -m tests.facts.propose FOLDER

Each row is to be read, and pasted behind the one that it ends; the last lines name facts of the newest release that the
tree no longer has. What a tree does not say (constraints, wheels, failures) stays to be looked up.
"""

import sys
from pathlib import Path

import msgspec

from tfbuild.facts import releases
from tfbuild.plan import tree as source_tree


def proposed(folder: Path) -> str:
    """Return TOML: a table for each fact that the tree says otherwise than the newest known release."""
    tree = source_tree.of_folder(folder)
    rows = source_tree.said(tree, tree.version)
    new = (f"# {row.file}\n[[{row.name}]]\n{_toml(row.row)}" for row in rows if row.row)
    gone = (f"# {row.file} has {row.what}: end the row {row.name} {row.key}".rstrip() for row in rows if not row.row)
    after = f"# {tree.version}, unlike {releases.nearest(tree.version)}; built with LLVM {tree.llvm or 'of its own'}"
    return "\n".join((after, *new, *gone)) + "\n"


def _toml(row: msgspec.Struct) -> str:
    default = {field.name: field.default for field in msgspec.structs.fields(row)}
    own = {name: value for name, value in msgspec.structs.asdict(row).items() if value != default[name]}
    names = {field.name: field.encode_name for field in msgspec.structs.fields(row)}
    return "".join(f"{names[name]} = {msgspec.json.encode(value).decode()}\n" for name, value in own.items())


if __name__ == "__main__":
    print(proposed(Path(sys.argv[1])), end="")
