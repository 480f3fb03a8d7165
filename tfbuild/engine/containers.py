"""What a container gets before it starts, and what it leaves when it has ended."""

import io
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import docker

from tfbuild.engine.sandbox import Sandbox
from tfbuild.engine.sdk_errors import NO_SPACE, disk_full
from tfbuild.errors import TfbuildError

KILLED = 137
# Threads count too: TensorFlow starts two pools with one thread per core each, and Python starts its own.
MOST_PROCESSES = 8192


@dataclass(frozen=True, kw_only=True)
class ContainerRun:
    """A finished container; `truncated` where a stream was cut at its limit."""

    exit_code: int
    stdout: str
    stderr: str
    truncated: bool


def confinement(
    image: Any, sandbox: Sandbox | None, mounts: Sequence[docker.types.Mount], *, gpus: bool
) -> dict[str, Any]:
    """Return the options that confine a container: those of every one, and those of its sandbox or the usual ones."""
    volumes = (image.attrs.get("Config") or {}).get("Volumes") or ()
    usual = {"mounts": [*mounts], "pids_limit": MOST_PROCESSES}
    return {
        "stdin_open": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        # Output is read while the container runs; the engine's own copy of it would grow without limit.
        "log_config": {"Type": "none"},
        **(sandbox.options(volumes, gpus=gpus) if sandbox else usual),
    }


def read_only(mounts: Mapping[str, str]) -> list[docker.types.Mount]:
    """Return mounts of folders of the engine's machine, by their path in the container."""
    return [docker.types.Mount(target, source, type="bind", read_only=True) for target, source in mounts.items()]


def archive(files: Mapping[str, bytes]) -> bytes:
    """Pack `files` (absolute path: content) into a reproducible tar; the engine creates missing folders."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path, content in sorted(files.items()):
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.size, entry.mode = len(content), 0o755
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def exit_code(container: Any) -> int:
    """Return the exit code of a container that has ended, or that the engine could not start (126 to 128).

    Raises DiskFull if it could not start because the engine's disk is full.
    """
    container.reload()
    state = container.attrs["State"]
    if NO_SPACE.search(state["Error"]):
        raise disk_full(state["Error"])
    if state["Running"] or (state["Status"] == "created" and not state["Error"]):
        raise TfbuildError(f"the streams of container {container.name} were lost while it was {state['Status']}")
    return int(state["ExitCode"])


def truncate(buffer: bytearray, limit: int) -> bool:
    """Cut `buffer` at `limit` bytes; True where something was cut off."""
    too_long = len(buffer) > limit
    del buffer[limit:]
    return too_long
