"""Whether a container that ran too long had no CPU time, because others used this machine's: by the kernel's counts."""

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tfbuild.in_container.bench import validity

PROC = Path("/proc")
# A container that waited for a CPU for this share of its time, while others used this share of the machine's CPU time,
# is starved. Waiting alone does not show it: its threads may have waited for each other.
LEAST_WAITED = 0.5
LEAST_USED_BY_OTHERS = 0.5


@dataclass(frozen=True, kw_only=True)
class Load:
    """A moment (monotonic, in seconds), and what was counted until then.

    `busy`: CPU seconds of all processes of this machine; `used`: those of a container; `waited`: for how many seconds
    each of its threads waited for a CPU, by the thread's number.
    """

    at: float
    busy: float
    used: float = 0.0
    waited: Mapping[int, float] = field(default_factory=dict)


def load(*, used: float = 0.0, waited: Mapping[int, float] = {}, proc: Path = PROC) -> Load:
    """Return the load until now; without /proc, a machine that was never busy."""
    busy = 0.0
    with suppress(OSError, ValueError, IndexError):
        busy = validity.busy_seconds(f"{proc}/stat")
    return Load(at=time.monotonic(), busy=busy, used=used, waited=waited)


def waited(container: str, proc: Path = PROC) -> dict[int, float]:
    """Return for how many seconds each thread of a container waited for a CPU.

    Empty if its threads are not this kernel's (an engine elsewhere, or in a virtual machine), or if it counts nothing.
    """
    found = {}
    for process in proc.glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):
            if container in (process / "cgroup").read_text():
                for thread in process.glob("task/*"):
                    found[int(thread.name)] = int((thread / "schedstat").read_text().split()[1]) / 1e9
    return found


def starved(begin: Load, end: Load, *, cpus: int) -> str:
    """Return how little CPU time a container had between two moments; "" if it had enough."""
    elapsed = end.at - begin.at
    waited = max((seconds - begin.waited.get(thread, 0.0) for thread, seconds in end.waited.items()), default=0.0)
    others = (end.busy - begin.busy - (end.used - begin.used)) / (elapsed * cpus)
    if waited < LEAST_WAITED * elapsed or others < LEAST_USED_BY_OTHERS:
        return ""
    return (
        f"it waited for a CPU for {waited:.0f} of {elapsed:.0f} s, "
        f"while others used {100 * min(1, others):.0f} % of this machine's CPU time"
    )
