"""Where the time of README's first command goes: when each of its steps began, and how long it took.

    .venv/bin/python -m benchmarks.first_command

Runs the command in two fresh copies of the clone: as it is, and with `--no-cache`, which makes every stage again but
has TensorFlow's wheel in pip's cache. The target is at most 120 s for the second, beside what it downloads. A container
engine that answers is used as it is; without one, the command installs and starts Debian's, and it keeps running.

What counts as a download: the time from apt's first answer to its last, and from pip's first download to the
installation of them all, with what pip works out in between. For install.sh pip's cache is empty, as for a new user.
"""

import os
import re
import subprocess
import tempfile
import time
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from benchmarks.harness import record
from tests.checkout import copy

COMMAND = "./install.sh && .venv/bin/invoke engine build --target mkl --wheel official --reverify"
BEGAN = re.compile(r"(.+) \.\.\.")
ENDED = re.compile(r"(.+): [a-z]+ \(.+\)")
# In BuildKit's log: the step, and the seconds since it began. In pip's own: the date and time.
DOWNLOAD = re.compile(
    r"^(?:#\d+ )?(?P<time>[\d.:,T-]+) +(?:(?P<began>Get:1 |Downloading )|(?P<ended>Fetched |Installing collected ))",
    re.MULTILINE,
)


@dataclass(frozen=True, kw_only=True)
class Step:
    """A line of progress: seconds from the command's start to the step's, and how many it took."""

    title: str
    began: float
    seconds: float


def timeline(folder: Path, options: str, env: dict[str, str]) -> list[Step]:
    """Run the command there; its steps by their beginning, and the whole of it last."""
    start, running, steps = time.monotonic(), dict[str, float](), list[Step]()
    with subprocess.Popen(
        ["sh", "-c", f"{COMMAND} {options}"], cwd=folder, env=os.environ | env,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
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
    """How many seconds were spent on downloads, by a build's log or by pip's own."""
    began: float | None = None
    seconds = 0.0
    for row in DOWNLOAD.finditer(log):
        at = row["time"]
        now = datetime.fromisoformat(at).timestamp() if "T" in at else float(at)
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
            log, cache = folder.with_suffix(".log"), folder.with_suffix(".cache")
            steps = timeline(folder, options, {"PIP_LOG": str(log), "PIP_CACHE_DIR": str(cache)})
            logs = (log, *folder.glob("build/*/build.log"))
            downloaded = sum(downloads(path.read_text(errors="replace")) for path in logs)
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
