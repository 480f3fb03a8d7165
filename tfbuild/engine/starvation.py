"""Whether a container that ran too long had no CPU time, because others used this machine's: by the kernel's counts."""

import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tfbuild.in_container.bench import validity

PROC = Path("/proc")
# A container that waited for a CPU for this share of its time, while others used this share of the machine's CPU time,
# is starved. Waiting alone does not show it: its threads may have waited for each other.
LEAST_WAITED = 0.5
LEAST_USED_BY_OTHERS = 0.5


@dataclass(frozen=True, kw_only=True)
class Load:
    """A moment (monotonic, in seconds), and the CPU seconds of all processes of this machine until then."""

    at: float
    busy: float


def load(proc: Path = PROC) -> Load:
    """Return the load until now; without /proc, a machine that was never busy."""
    busy = 0.0
    with suppress(OSError, ValueError, IndexError):
        busy = validity.busy_seconds(f"{proc}/stat")
    return Load(at=time.monotonic(), busy=busy)


def waited(container: str, proc: Path = PROC) -> float:
    """Return for how many seconds a container's threads waited for a CPU, by the one that waited longest.

    0 if its threads are not this kernel's (an engine elsewhere, or in a virtual machine), or if it does not count.
    """
    found = [0.0]
    for process in proc.glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):
            if container in (process / "cgroup").read_text():
                counts = [(thread / "schedstat").read_text().split() for thread in process.glob("task/*")]
                found += [int(count[1]) / 1e9 for count in counts]
    return max(found)


def starved(begin: Load, end: Load, *, waited: float, used: float, cpus: int) -> str:
    """Return how little CPU time a container had between two moments; "" if it had enough.

    `waited`: for a CPU, in seconds; `used`: its own CPU time, in seconds.
    """
    elapsed = end.at - begin.at
    others = (end.busy - begin.busy - used) / (elapsed * cpus)
    if waited < LEAST_WAITED * elapsed or others < LEAST_USED_BY_OTHERS:
        return ""
    return (
        f"it waited for a CPU for {waited:.0f} of {elapsed:.0f} s, "
        f"while others used {100 * min(1, others):.0f} % of this machine's CPU time"
    )
