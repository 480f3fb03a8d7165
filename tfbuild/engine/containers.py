"""What a container gets before it starts, and what it leaves when it has ended."""

import io
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tfbuild.errors import TfbuildError


@dataclass(frozen=True, kw_only=True)
class ContainerRun:
    """A finished container; `truncated` where a stream was cut at its limit."""

    exit_code: int
    stdout: str
    stderr: str
    truncated: bool


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
    """Return the exit code of a container that has ended, or that the engine could not start (126 to 128)."""
    container.reload()
    state = container.attrs["State"]
    if state["Running"] or (state["Status"] == "created" and not state["Error"]):
        raise TfbuildError(f"the streams of container {container.name} were lost while it was {state['Status']}")
    return int(state["ExitCode"])


def truncate(buffer: bytearray, limit: int) -> bool:
    """Cut `buffer` at `limit` bytes; True where something was cut off."""
    too_long = len(buffer) > limit
    del buffer[limit:]
    return too_long
