"""Whether verification judges one image alike on a busy machine, and how long it takes there.

    .venv/bin/python -m benchmarks.verdicts [IMAGE] [--runs 20] [--busy 0,1,2]

Runs `invoke verify IMAGE --json` again and again beside 0, 1 and 2 processes that spin at normal priority. What must
agree is the exit code, the verdict, and the status of every check. Each load is recorded when its last run ends, beside
those that the report has of the same image.
"""

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness import RESULTS, record
from tfbuild.engine import Engine

ROOT = Path(__file__).parent.parent
IMAGE = "tfbuild:2.21.0-mkl-py3.11-f16c"
SPIN = [sys.executable, "-c", "while True: pass"]


@dataclass(frozen=True, kw_only=True)
class Run:
    """One verification: its exit code, its checks by status, and its wall time in seconds."""

    exit_code: int
    checks: tuple[tuple[str, str], ...]
    seconds: float

    @property
    def outcome(self) -> tuple[object, ...]:
        return self.exit_code, self.checks

    def __str__(self) -> str:
        notable = ", ".join(f"{name}: {status}" for name, status in self.checks if status != "pass")
        return f"exit code {self.exit_code}, {self.seconds:.0f} s, {notable or 'every check passed'}"


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep `count` processes spinning."""
    spinning = [subprocess.Popen(SPIN) for _ in range(count)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def verified(image: str) -> Run:
    start = time.perf_counter()
    command = [sys.executable, "-m", "invoke", "verify", image, "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - start
    try:
        checks = json.loads(done.stdout)["checks"]
    except (ValueError, KeyError):
        raise SystemExit(f"no report, exit code {done.returncode}:\n{done.stderr[-2000:]}") from None
    return Run(
        exit_code=done.returncode,
        checks=tuple((check["name"], check["status"]) for check in checks),
        seconds=seconds,
    )


def summary(runs: list[Run]) -> dict[str, Any]:
    """How many of the runs agree with the most frequent outcome, what the others say, and their wall times."""
    (usual, agreeing), *_ = Counter(run.outcome for run in runs).most_common()
    example = next(run for run in runs if run.outcome == usual)
    seconds = [run.seconds for run in runs]
    return {
        "runs": len(runs),
        "alike": agreeing,
        "exit_code": example.exit_code,
        "checks": dict(example.checks),
        "others": [str(run) for run in runs if run.outcome != usual],
        "seconds": {"median": median(seconds), "low": min(seconds), "high": max(seconds)},
    }


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("image", nargs="?", default=IMAGE)
    parser.add_argument("--runs", type=int, default=20, help="verifications beside each load")
    parser.add_argument("--busy", default="0,1,2", help="numbers of spinning processes, separated by commas")
    return parser.parse_args()


def recorded(identifier: str, report: Path = RESULTS / "verdicts.json") -> dict[str, Any]:
    """The loads that the report has of the image with that id."""
    results = json.loads(report.read_text(encoding="utf-8"))["results"] if report.is_file() else {}
    return dict(results["loads"]) if results.get("id") == identifier else {}


def main() -> None:
    chosen = options()
    identifier = Engine.connect().image(chosen.image).id
    loads = recorded(identifier)
    for count in map(int, chosen.busy.split(",")):
        runs = []
        with busy(count):
            for turn in range(chosen.runs):
                runs.append(verified(chosen.image))
                print(f"{count} busy, {turn + 1} of {chosen.runs}: {runs[-1]}", flush=True)
        loads[f"{count} busy"] = summary(runs)
        print(record("verdicts", {"image": chosen.image, "id": identifier, "loads": loads}), flush=True)
    if any(load["alike"] < load["runs"] for load in loads.values()):
        raise SystemExit("verification did not always say the same")


if __name__ == "__main__":
    main()
