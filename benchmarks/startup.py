"""How long `copts`, `detect` and `plan` take as whole processes, against a bare py-cpuinfo `get_cpu_info()`.

    .venv/bin/python -m benchmarks.startup

Each by the command `tfbuild` (here `python -m tfbuild`), and `plan` by `invoke` as well, which adds Invoke's own start.
Interleaved rounds in shuffled order; the ratio is taken round by round, so a machine that changes speed does not
change it. The target for `tfbuild` is at most 0.15.
"""

import subprocess
import sys
import time
from pathlib import Path

from benchmarks.harness import Ratio, compare, record

ROOT = Path(__file__).parent.parent
ROUNDS = 21
BARE = [sys.executable, "-c", "import cpuinfo; cpuinfo.get_cpu_info()"]
COMMANDS = {
    "tfbuild copts": ["tfbuild", "copts"],
    "tfbuild detect": ["tfbuild", "detect"],
    "tfbuild plan": ["tfbuild", "plan", "--target", "mkl", "--wheel", "official"],
    "tfbuild plan from source": ["tfbuild", "plan", "--target", "mkl"],
    "invoke plan": ["invoke", "plan", "--target", "mkl", "--wheel", "official"],
}


def seconds(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    results: dict[str, Ratio] = {}
    for name, words in COMMANDS.items():
        command = [sys.executable, "-m", *words]
        results[name] = compare(lambda command=command: seconds(command), lambda: seconds(BARE), ROUNDS)  # type: ignore[misc]
        print(f"{name:24} {results[name]} of get_cpu_info()")
    record("startup", results)


if __name__ == "__main__":
    main()
