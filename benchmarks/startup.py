"""How long `invoke copts`, `detect` and `plan` take as whole processes, against a bare py-cpuinfo `get_cpu_info()`.

    .venv/bin/python -m benchmarks.startup

Interleaved rounds in shuffled order; the ratio is taken round by round, so a machine that changes speed does not
change it. The target is at most 0.15.
"""

import subprocess
import sys
import time
from pathlib import Path

from benchmarks.harness import Ratio, compare, record

ROOT = Path(__file__).parent.parent
ROUNDS = 11
BARE = [sys.executable, "-c", "import cpuinfo; cpuinfo.get_cpu_info()"]
VERBS = {
    "copts": ["copts"],
    "detect": ["detect"],
    "plan": ["plan", "--target", "mkl", "--wheel", "official"],
    "plan from source": ["plan", "--target", "mkl"],
}


def seconds(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    results: dict[str, Ratio] = {}
    for name, verb in VERBS.items():
        command = [sys.executable, "-m", "invoke", *verb]
        results[name] = compare(lambda command=command: seconds(command), lambda: seconds(BARE), ROUNDS)  # type: ignore[misc]
        print(f"invoke {name:18} {results[name]} of get_cpu_info()")
    record("startup", results)


if __name__ == "__main__":
    main()
