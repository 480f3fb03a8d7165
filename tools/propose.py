"""Propose the rows of releases.toml for a new release, from its source tree: python -m tools.propose FOLDER

Each row is to be read, and pasted behind the one that it ends; the last lines name facts of the newest release that the
tree no longer has. What the tree does not say (failures, other compilers) stays to be looked up.
"""

import sys
from pathlib import Path

import msgspec

from tfbuild.errors import BadInput
from tfbuild.facts import releases
from tfbuild.plan import tree as source_tree


def proposed(folder: Path) -> str:
    """Return TOML: a table for each fact that the tree says otherwise than the newest known release."""
    tree = source_tree.read_folder(folder)
    if not tree.version:
        raise BadInput(f"{folder} does not say which release it is", hint="name the root of TensorFlow's tree")
    rows = tuple(source_tree.differences(tree, tree.version))
    new = (f"# {row.file}\n[[{row.table}]]\n{_toml(row.row)}" for row in rows if row.row)
    gone = (f"# {row.file} has {row.what}: end the row {row.table} {row.key}".rstrip() for row in rows if not row.row)
    after = f"# {tree.version}, unlike {releases.nearest(tree.version)}"
    return "\n".join((after, *new, *gone)) + "\n"


def _toml(row: msgspec.Struct) -> str:
    fields = [(field, getattr(row, field.name)) for field in msgspec.structs.fields(row)]
    own = [(field.encode_name, value) for field, value in fields if value != field.default]
    return "".join(f"{name} = {msgspec.json.encode(value).decode()}\n" for name, value in own)


if __name__ == "__main__":
    print(proposed(Path(sys.argv[1])), end="")
