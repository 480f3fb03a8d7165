"""ci/todo.py: of the rows on stdin (`invoke matrix --format github` or `gitlab`), those that CI has to work on.

It asks ci/state.sh about each row, and leaves out what is published or yanked before a machine is started for it. A
row whose state cannot be read stays: its own job shows the error.

Needs the environment of ci/state.sh; the standard library alone.
"""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

STATE = Path(__file__).with_name("state.sh")
DONE = ("published", "yanked")
# The compiles that a run begins, 0 for all: GitHub keeps 10 GB of caches, and an unfinished compile of 2.22 needs 8.
MOST = int(os.environ.get("TFBUILD_MOST_COMPILES") or 0)


def state_of(row: dict[str, str]) -> str:
    if "id" in row:
        identifier, options = row["id"], row["options"]
    else:
        # GitLab would take a `$` for a variable's, so that its rows have two.
        identifier, options = row["TFBUILD_ID"], row["TFBUILD_OPTIONS"].replace("$$", "$")
    asked = subprocess.run([STATE, identifier, options], capture_output=True, text=True, check=False)
    state = asked.stdout.strip() or f"exit code {asked.returncode}: {asked.stderr.strip()}"
    print(f"{identifier}: {state}", file=sys.stderr)
    return state


def left(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        states = [*zip(rows, pool.map(state_of, rows), strict=True)]
    found = [(row, state) for row, state in states if state.split()[0] not in DONE]
    sources = [(row, state) for row, state in found if row.get("wheel") == "source"]
    compiles = [row for row, state in sources if "--reuse" not in state]
    # Not always the same ones: a row that fails each time must not keep the others away.
    first = int(os.environ.get("GITHUB_RUN_NUMBER") or 0) % (len(compiles) or 1)
    later = (compiles[first:] + compiles[:first])[MOST:] if MOST else []
    for row in later:
        print(f"::notice::{row['id']} is left for the next run", file=sys.stderr)
    return [row for row, _ in found if row not in later]


def main() -> None:
    text = sys.stdin.read().strip()
    document = json.loads(text) if text else {}
    include = document.pop("include", [])
    if document:
        kept = left([job["variables"] for job in document.values()])
        jobs = {name: job for name, job in document.items() if job["variables"] in kept}
        # GitLab takes a pipeline without jobs for an error, GitHub a matrix without rows.
        pipeline = {"include": include, **jobs} if jobs else {"unchanged": {"script": ["echo nothing to build"]}}
        print(json.dumps(pipeline, indent=2, ensure_ascii=False))
    else:
        rows = left(include)
        print(json.dumps({"include": rows}, separators=(",", ":")) if rows else "")


main()
