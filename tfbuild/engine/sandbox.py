"""Confine containers of an image that nobody trusts: what they may use, and the files that they get.

Nothing in such a container can be written but a small tmpfs, so that it cannot fill the engine's disk. Files cannot be
copied into a container with a read-only root; a volume has them, which a container that never starts owns.
"""

import posixpath
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import docker

from tfbuild.engine.faults import REFUSED, translated
from tfbuild.errors import NotJudged

MIB = 1 << 20
# TensorFlow's probes and benchmarks peak below 1.5 GiB. CUDA's libraries map and pin far more than they use.
MEMORY = 4096 * MIB
GPU_MEMORY = 16384 * MIB
# In memory, and part of it.
SCRATCH = 256 * MIB
# Threads count too: TensorFlow starts three pools with one thread per core each, NumPy and OpenMP one each.
PROCESSES = 256
PROCESSES_PER_CPU = 16
TMP = "/tmp"
# A label of the volume with a sandbox's files.
OURS = "io.tfbuild.sandbox"
# Mounting over these breaks any container.
VITAL = ("/", "/proc", "/sys", "/dev", "/etc")


@dataclass(frozen=True, kw_only=True)
class Sandbox:
    """The limits of containers, and the `volume` that they see read-only at `path`.

    `source`: the volume's folder on the engine's machine; `over`: files of it that take the place of others, by the
    path in the container; `processes`: the most that a container may have, threads included.
    """

    processes: int
    volume: str
    source: str
    path: str
    over: Mapping[str, str] = field(default_factory=dict)

    def replacing(self, over: Mapping[str, str]) -> "Sandbox":
        """Return this sandbox with files of the volume in place of the container's own (/proc/cpuinfo)."""
        return replace(self, over=over)

    def options(self, volumes: Iterable[str], *, gpus: bool) -> dict[str, Any]:
        """Return what the engine creates a container with; `volumes`: the paths that its image declares as volumes."""
        memory = GPU_MEMORY if gpus else MEMORY
        return {
            "read_only": True,
            "mem_limit": memory,
            "memswap_limit": memory,
            "pids_limit": self.processes,
            # The machine's handler of core dumps runs outside of the container.
            "ulimits": [docker.types.Ulimit(name="core", soft=0, hard=0)],
            "mounts": [*self._files(), *_scratch(volumes)],
        }

    def _files(self) -> list[docker.types.Mount]:
        whole = docker.types.Mount(self.path, self.volume, type="volume", read_only=True, no_copy=True)
        return [
            whole,
            *(
                docker.types.Mount(target, f"{self.source}/{name}", type="bind", read_only=True)
                for target, name in self.over.items()
            ),
        ]


def sandbox_at(container: Any, path: str, limit: int) -> Sandbox:
    """Return the sandbox with a container's volume at `path`, for at most `limit` processes."""
    container.reload()
    (mount,) = (mount for mount in container.attrs["Mounts"] if mount["Destination"] == path)
    return Sandbox(processes=limit, volume=mount["Name"], source=mount["Source"], path=path)


def processes(cpus: int) -> int:
    """Return how many processes and threads a container may have on a machine with `cpus` processors."""
    return PROCESSES + PROCESSES_PER_CPU * cpus


def volume(path: str) -> docker.types.Mount:
    """Return a new volume at `path`, which starts empty whatever the image has there."""
    return docker.types.Mount(path, None, type="volume", no_copy=True, labels={OURS: ""})


def require_volume(client: Any, sandbox: Sandbox) -> None:
    """Raise NotJudged if somebody removed a sandbox's files: then each container gets an empty volume of its name."""
    with translated(), suppress(docker.errors.NotFound):
        if OURS in (client.api.inspect_volume(sandbox.volume).get("Labels") or {}):
            return
    why = "somebody removed the volume with its probes (docker volume prune?)"
    raise NotJudged(f"the image was not judged: {why}", hint="run the same command again")


def discard(client: Any, sandbox: Sandbox) -> None:
    """Remove a sandbox's volume, if it outlived its container."""
    with suppress(*REFUSED):
        client.api.remove_volume(sandbox.volume)


def _scratch(volumes: Iterable[str]) -> list[docker.types.Mount]:
    """Return a tmpfs for /tmp, and for volumes that the image declares: each would be a folder on the engine's disk."""
    # As the engine does it: "/tmp/." is /tmp, where a second mount would be refused.
    paths = {TMP, *(posixpath.normpath(f"/{path.lstrip('/')}") for path in volumes if path.startswith("/"))} - {*VITAL}
    return [docker.types.Mount(path, None, type="tmpfs", tmpfs_size=SCRATCH) for path in sorted(paths)]
