"""How long a second `invoke build` with nothing changed takes, against one that builds and verifies everything.

    .venv/bin/python -m benchmarks.rebuild

The first of each round builds every stage again with the wheel in pip's cache and verifies the image; the second finds
both done. The target is at most 0.1.
"""

import subprocess
import sys
import time
from pathlib import Path

from benchmarks.harness import compare, record

ROOT = Path(__file__).parent.parent
ROUNDS = 2
BUILD = [sys.executable, "-m", "invoke", "build", "--target", "mkl", "--wheel", "official"]


def seconds(*options: str) -> float:
    start = time.perf_counter()
    subprocess.run([*BUILD, *options], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    # Not shuffled by chance alone: whichever comes first, an image is there for the second to find.
    seconds()
    measured = compare(seconds, lambda: seconds("--no-cache"), ROUNDS)
    print(f"second invoke build {measured} of the first")
    record("rebuild", {"second build": measured})


if __name__ == "__main__":
    main()
