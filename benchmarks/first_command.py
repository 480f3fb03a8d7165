"""Where the time of README's first command goes: when each of its steps began, and how long it took.

    .venv/bin/python -m benchmarks.first_command

Runs the command in two fresh copies of the clone: as it is, and with `--no-cache`, which makes every stage again but
has TensorFlow's wheel in pip's cache. The target is at most 120 s for the second, beside what it downloads. A container
engine that answers is used as it is; without one, the command installs and starts Debian's, and it keeps running.

What counts as a download: from apt's first answer to its last, and from pip's first to its installing them all,
which includes what pip thinks about between them. Those of install.sh are not counted.
"""

import re
import subprocess
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.harness import record
from tests.checkout import copy

COMMAND = "./install.sh && .venv/bin/invoke engine build --target mkl --wheel official --reverify"
BEGAN = re.compile(r"(.+) \.\.\.")
ENDED = re.compile(r"(.+): [a-z]+ \(.+\)")
# In BuildKit's log: the step, and the seconds since it began.
DOWNLOAD = re.compile(
    r"^#\d+ (?P<seconds>[\d.]+) +(?:(?P<began>Get:1 |Downloading )|(?P<ended>Fetched |Installing collected ))",
    re.MULTILINE,
)


@dataclass(frozen=True, kw_only=True)
class Step:
    """A line of progress: seconds from the command's start to the step's, and how many it took."""

    title: str
    began: float
    seconds: float


def timeline(folder: Path, options: str = "") -> list[Step]:
    """Run the command there; its steps by their beginning, and the whole of it last."""
    start, running, steps = time.monotonic(), dict[str, float](), list[Step]()
    command = ["sh", "-c", f"{COMMAND} {options}"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            now = time.monotonic() - start
            if (began := BEGAN.fullmatch(line.rstrip())) and began[1] not in running:
                running[began[1]] = now
            elif (ended := ENDED.fullmatch(line.rstrip())) and ended[1] in running:
                at = running.pop(ended[1])
                steps.append(Step(title=ended[1], began=at, seconds=now - at))
    if process.returncode:
        raise SystemExit(f"the command ended with exit code {process.returncode}")
    whole = Step(title="the whole command", began=0, seconds=time.monotonic() - start)
    return [*sorted(steps, key=lambda step: step.began), whole]


def downloads(log: str) -> float:
    """How many seconds a build has downloaded, by its log."""
    began: float | None = None
    seconds = 0.0
    for row in DOWNLOAD.finditer(log):
        now = float(row["seconds"])
        if began is None:
            began = now if row["began"] else None
        elif row["ended"]:
            seconds += now - began
            began = None
    return seconds


def main() -> None:
    results: dict[str, object] = {}
    with tempfile.TemporaryDirectory(prefix="tfbuild-benchmark-") as scratch:
        for name, options in (("as it is", ""), ("with the wheel in pip's cache", "--no-cache")):
            folder = copy(Path(scratch, f"clone{len(results)}"), compiled=False)
            steps = timeline(folder, options)
            downloaded = sum(downloads(log.read_text(errors="replace")) for log in folder.glob("build/*/build.log"))
            results[name] = {
                "seconds": steps[-1].seconds,
                "downloads": downloaded,
                "steps": [asdict(step) for step in steps],
            }
            print(f"\n{name}\n   at    for")
            print("\n".join(f"{step.began:5.0f} {step.seconds:6.1f} s  {step.title}" for step in steps))
            print(f"      {downloaded:6.1f} s of it downloads")
    print(record("first_command", results))


if __name__ == "__main__":
    main()
