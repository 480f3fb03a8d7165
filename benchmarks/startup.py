"""How long `copts`, `detect` and `plan` take as whole processes, against a bare py-cpuinfo `get_cpu_info()`.

    .venv/bin/python -m benchmarks.startup

Each by the command `tfbuild` (here `python -m tfbuild`), and `plan` by `invoke` as well, which adds Invoke's own start.
Interleaved rounds in shuffled order; the ratio is taken round by round, so a machine that changes speed does not
change it. The target for `tfbuild` is at most 0.15.
"""

import subprocess
import sys
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path

from benchmarks.harness import record, rounds
from tfbuild.measure.evaluate import interval, interval_text

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
    results: dict[str, object] = {}
    for name, words in COMMANDS.items():
        pairs = rounds({"a": partial(seconds, [sys.executable, "-m", *words]), "b": partial(seconds, BARE)}, ROUNDS)
        ratio = interval([pair["a"] / pair["b"] for pair in pairs])
        assert ratio
        results[name] = {**asdict(ratio), **{side: [pair[side] for pair in pairs] for side in ("a", "b")}}
        print(f"{name:24} {interval_text(ratio)} of get_cpu_info()")
    record("startup", results)


if __name__ == "__main__":
    main()
