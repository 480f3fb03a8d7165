"""How long an `invoke build` takes where nothing, or little, changed since the last one.

    .venv/bin/python -m benchmarks.rebuild

"second build": nothing changed, against a build of every stage (with the wheel in pip's cache) that verifies the image;
the target is at most 0.1. The others: another smoke benchmark, entry point or label, against a build of every stage;
the target is at most 0.15. Both without verification, which a changed image needs in full: it would be most of both.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.harness import ratio, record
from tests.checkout import copy

BUILD = [sys.executable, "-m", "invoke", "build", "--target", "mkl", "--wheel", "official"]
ROUNDS = 2
EVERYTHING, UNVERIFIED = "everything", "everything but verification"


def seconds(folder: Path, *options: str) -> float:
    start = time.perf_counter()
    subprocess.run([*BUILD, *options], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def comment(file: str, folder: Path) -> None:
    """A change that no build saw before: BuildKit would take up what it made of an older one."""
    with (folder / file).open("a", encoding="utf-8") as text:
        text.write(f"# {time.time_ns()}\n")


def label(_: Path) -> None:
    os.environ["TFBUILD_IMAGE_SOURCE"] = f"https://example.org/{time.time_ns()}"


CHANGES: dict[str, Callable[[Path], None]] = {
    "another smoke benchmark": partial(comment, "tfbuild/in_container/smoke/judge.py"),
    "another entry point": partial(comment, "templates/entrypoint.sh.j2"),
    "another label": label,
}


def measured(folder: Path) -> dict[str, float]:
    """The seconds of each build of a round. The second build finds the image of the first."""
    took = {EVERYTHING: seconds(folder, "--no-cache"), "second build": seconds(folder)}
    took[UNVERIFIED] = seconds(folder, "--no-cache", "--no-verify")
    for name, change in CHANGES.items():
        change(folder)
        took[name] = seconds(folder, "--no-verify")
    return took


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="tfbuild-benchmark-") as scratch:
        folder = copy(Path(scratch, "copy"))
        # Whatever is downloaded once.
        seconds(folder, "--no-verify")
        rounds = [measured(folder) for _ in range(ROUNDS)]
    whole = {"second build": EVERYTHING, **dict.fromkeys(CHANGES, UNVERIFIED)}
    results = {name: ratio([(took[name], took[base]) for took in rounds]) for name, base in whole.items()}
    for name, result in results.items():
        print(f"{name}: {result} of a whole build")
    print(record("rebuild", results))


if __name__ == "__main__":
    main()
