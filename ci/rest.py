"""ci/rest.py FOLDER: of the rows on stdin (strategy.matrix), those of whose names FOLDER has a file; "" where none is.

Runs before anything is installed: the standard library alone.
"""

import json
import sys
from pathlib import Path

folder = Path(sys.argv[1])
rows = [row for row in json.load(sys.stdin)["include"] if (folder / row["id"]).is_file()]
# GitHub takes a matrix without rows for an error.
print(json.dumps({"include": rows}, separators=(",", ":")) if rows else "")
