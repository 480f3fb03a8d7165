"""What containers may use: the limits of all, the sandbox for images that nobody trusts, and GPUs.

A sandboxed container can write nothing but a small tmpfs, so that it cannot fill the engine's disk. Files cannot be
copied into a container with a read-only root: they are in a volume, which belongs to a container that never starts.
"""

import posixpath
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import docker
from docker.types import DeviceRequest

MIB = 1 << 20
# TensorFlow's probes and benchmarks peak below 1.5 GiB. CUDA's libraries map and pin far more than they use.
MEMORY = 4096 * MIB
GPU_MEMORY = 16384 * MIB
# The size of each tmpfs; what it holds counts as memory.
SCRATCH = 256 * MIB
# Threads count too: TensorFlow starts three pools with one thread per core each, NumPy and OpenMP one each.
PROCESSES = 256
PROCESSES_PER_CPU = 16
# Without a sandbox.
MOST_PROCESSES = 8192
TMP = "/tmp"
# What `docker run --gpus all` requests. Written without access to a GPU.
GPUS = DeviceRequest(count=-1, capabilities=[["gpu"]])
# Mounting over these breaks any container.
VITAL = ("/", "/proc", "/sys", "/dev", "/etc")


@dataclass(frozen=True, kw_only=True)
class Sandbox:
    """The limits of containers, and the `volume` that they see read-only at `path`.

    `processes`: the most that a container may have, threads included.
    """

    processes: int
    volume: str
    path: str

    def options(self, volumes: Iterable[str], *, gpus: bool) -> dict[str, Any]:
        """Return what the engine creates a container with; `volumes`: the paths that its image declares as volumes."""
        memory = GPU_MEMORY if gpus else MEMORY
        files = docker.types.Mount(self.path, self.volume, type="volume", read_only=True, no_copy=True)
        return {
            "read_only": True,
            "mem_limit": memory,
            "memswap_limit": memory,
            "pids_limit": self.processes,
            # The machine's handler of core dumps runs outside of the container.
            "ulimits": [docker.types.Ulimit(name="core", soft=0, hard=0)],
            "mounts": [files, *_scratch(volumes)],
        }


def confinement(
    image: Any, sandbox: Sandbox | None, mounts: Sequence[docker.types.Mount], *, gpus: bool
) -> dict[str, Any]:
    """Return the options that confine a container: those of every one, and those of its sandbox or the usual ones."""
    volumes = (image.attrs.get("Config") or {}).get("Volumes") or ()
    usual = {"mounts": [*mounts], "pids_limit": MOST_PROCESSES}
    return {
        "stdin_open": True,
        "auto_remove": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        # Output is read while the container runs; the engine's own copy of it would grow without limit.
        "log_config": {"Type": "none"},
        **(sandbox.options(volumes, gpus=gpus) if sandbox else usual),
    }


def processes(cpus: int) -> int:
    """Return how many processes and threads a container may have on a machine with `cpus` processors."""
    return PROCESSES + PROCESSES_PER_CPU * cpus


def _scratch(volumes: Iterable[str]) -> list[docker.types.Mount]:
    """Return a tmpfs for /tmp, and for volumes that the image declares: each would be a folder on the engine's disk."""
    # As the engine does it: "/tmp/." is /tmp, where a second mount would be refused.
    paths = {TMP, *(posixpath.normpath(f"/{path.lstrip('/')}") for path in volumes if path.startswith("/"))} - {*VITAL}
    return [docker.types.Mount(path, None, type="tmpfs", tmpfs_size=SCRATCH) for path in sorted(paths)]
