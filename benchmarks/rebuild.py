"""How long an `invoke build` takes where nothing, or little, changed since the last one.

    .venv/bin/python -m benchmarks.rebuild

"second build": nothing changed, against a build of every stage (with the wheel in pip's cache) that verifies the image;
the target is at most 0.1. The others: another smoke benchmark, entry point or label, against a build of every stage;
the target is at most 0.15. Both without verification, which a changed image needs in full: it would be most of both.
"""

import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.harness import Ratio, compare, record
from tests.checkout import copy

BUILD = [sys.executable, "-m", "invoke", "build", "--target", "mkl", "--wheel", "official"]
ROUNDS = 2
COUNT = itertools.count()


def seconds(folder: Path, *options: str) -> float:
    start = time.perf_counter()
    subprocess.run([*BUILD, *options], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def comment(file: str, folder: Path) -> None:
    """A change that no build saw before: BuildKit would take up what it made of an older one."""
    with (folder / file).open("a", encoding="utf-8") as text:
        text.write(f"# {time.time_ns()}\n")


def label(_: Path) -> None:
    os.environ["TFBUILD_IMAGE_SOURCE"] = f"https://example.org/{next(COUNT)}-{time.time_ns()}"


CHANGES: dict[str, Callable[[Path], None]] = {
    "another smoke benchmark": partial(comment, "tfbuild/in_container/smoke/judge.py"),
    "another entry point": partial(comment, "templates/entrypoint.sh.j2"),
    "another label": label,
}


def after(change: Callable[[Path], None], folder: Path) -> float:
    change(folder)
    return seconds(folder, "--no-verify")


def main() -> None:
    results: dict[str, Ratio] = {}
    with tempfile.TemporaryDirectory(prefix="tfbuild-benchmark-") as scratch:
        folder = copy(Path(scratch, "copy"))
        # Whichever comes first in a round, an image is there for the second build to find.
        seconds(folder)
        everything = partial(seconds, folder, "--no-cache")
        results["second build"] = compare(partial(seconds, folder), everything, ROUNDS)
        for name, change in CHANGES.items():
            results[name] = compare(
                partial(after, change, folder), partial(seconds, folder, "--no-cache", "--no-verify"), ROUNDS
            )
    for name, ratio in results.items():
        print(f"{name}: {ratio} of a whole build")
    print(record("rebuild", results))


if __name__ == "__main__":
    main()
