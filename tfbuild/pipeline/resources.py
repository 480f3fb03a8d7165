"""How much of a machine Bazel may use: processors and memory, by the engine's numbers and the cgroup's limits."""

from dataclasses import dataclass
from pathlib import Path

# One of TensorFlow's C++ actions takes up to about this much; Bazel's server takes about as much as one action.
ACTION_BYTES = 2 << 30
SERVER_BYTES = 2 << 30
# cgroup v1 writes "no limit" as a number larger than any machine's memory.
NO_LIMIT = 1e18
# Actions given to an executor at once: it queues what its workers cannot take yet, and tells nobody how many it has.
REMOTE_JOBS = 100


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The most that may be used; None: no limit. `cpus` can be a fraction; `memory` in bytes."""

    cpus: float | None = None
    memory: int | None = None


@dataclass(frozen=True, kw_only=True)
class MachineShare:
    """Bazel's `--jobs` and `--local_ram_resources` (in MiB), and why."""

    jobs: int
    ram: int
    reason: str

    def bazelrc(self) -> str:
        return f"build --jobs={self.jobs}\nbuild --local_ram_resources={self.ram}\n"


def share(*, cpus: int, memory: int, limits: Limits, jobs: int = 0, remote: bool = False) -> MachineShare:
    """Return Bazel's share of a machine with `cpus` and `memory` bytes; `jobs`: the user's choice, 0 for none.

    With `remote`, an executor runs the actions, and the machine's share only limits those that it leaves.
    """
    usable_cpus = min(float(cpus), limits.cpus if limits.cpus is not None else float(cpus))
    usable = min(memory, limits.memory if limits.memory is not None else memory)
    by_memory = max(1, (usable - SERVER_BYTES) // ACTION_BYTES)
    by_cpus = max(1, int(usable_cpus))
    count = jobs or (REMOTE_JOBS if remote else min(by_cpus, by_memory))
    ram = max(usable // 2, usable - SERVER_BYTES) >> 20
    why = f"{by_cpus} by processors, {by_memory} by {usable / (1 << 30):.1f} GiB of memory at 2 GiB an action"
    if limits.cpus is not None or limits.memory is not None:
        why += ", within this cgroup's limits"
    if remote:
        why = f"the executor queues what its workers cannot take yet; local actions: {why}"
    return MachineShare(jobs=count, ram=ram, reason=f"--jobs={count}: {'as asked for; ' if jobs else ''}{why}")


def limits(root: Path = Path("/")) -> Limits:
    """Return the tightest limits of this process's cgroup and its parents, v1 or v2; `root`: in place of /."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return Limits()
    cpus: list[float] = []
    memory: list[int] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        for folder in _folders(root / "sys/fs/cgroup", controllers, path):
            cpus += _cpus(folder)
            memory += _memory(folder)
    return Limits(cpus=min(cpus, default=None), memory=min(memory, default=None))


def _folders(top: Path, controllers: str, path: str) -> list[Path]:
    """Return a cgroup's folder and its parents. In a container the path can be the host's: then only the top exists."""
    mounted = top / controllers if controllers else top
    if not controllers and (top / "unified").is_dir():
        mounted = top / "unified"
    parts = [part for part in path.split("/") if part not in ("", "..")]
    folder = mounted.joinpath(*parts)
    return [folder, *folder.parents]


def _cpus(folder: Path) -> list[float]:
    quota, _, period = _text(folder / "cpu.max").partition(" ")
    if not quota:
        quota, period = _text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")
    return [int(quota) / int(period)] if quota.isdigit() and period.isdigit() and int(period) else []


def _memory(folder: Path) -> list[int]:
    texts = (_text(folder / name) for name in ("memory.max", "memory.limit_in_bytes"))
    return [int(text) for text in texts if text.isdigit() and int(text) < NO_LIMIT]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def process_limits(*, local: bool) -> Limits:
    """Return this process's limits where the engine is on the same machine; none where it is elsewhere."""
    return limits() if local else Limits()
