"""edit.py TREE EDITS: replaces text in the tree's files; fails if an edit changes no file.

EDITS is a JSON list of {"fix", "files", "find", "replace"}. Each edit replaces every occurrence in every file that
matches the pattern. Runs in the builder, on any Python 3.
"""

import json
import sys
from pathlib import Path


def edit(tree, files, find, replace):
    """Return how many files contained the text."""
    count = 0
    for path in sorted(Path(tree).glob(files)):
        if not path.is_file() or path.is_symlink():
            continue
        content = path.read_bytes()
        if find.encode() in content:
            path.write_bytes(content.replace(find.encode(), replace.encode()))
            count += 1
    return count


def main(tree, edits):
    with open(edits, encoding="utf-8") as file:
        rows = json.load(file)
    for row in rows:
        count = edit(tree, row["files"], row["find"], row["replace"])
        if not count:
            sys.exit("tfbuild: the fix {} does not apply to this tree".format(row["fix"]))
        print("tfbuild: the fix {} changed {} files".format(row["fix"], count))


if __name__ == "__main__":
    main(*sys.argv[1:])
