"""edit.py TREE EDITS: replaces text in the tree's files; fails if an edit changes no file.

EDITS is a JSON list of {"fix", "files", "find", "replace"}. Each edit replaces every occurrence in every file that
matches the pattern.
"""

import json
import sys
from pathlib import Path

tree, edits = map(Path, sys.argv[1:])
for row in json.loads(edits.read_text(encoding="utf-8")):
    find, replace, count = row["find"].encode(), row["replace"].encode(), 0
    for path in sorted(tree.glob(row["files"])):
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        if find in content:
            path.write_bytes(content.replace(find, replace))
            count += 1
    if not count:
        sys.exit(f"tfbuild: the fix {row['fix']} does not apply to this tree")
    print(f"tfbuild: the fix {row['fix']} changed {count} files")
