"""Look at a container's first process through this machine's kernel, which the process cannot deceive."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfbuild.engine.sdk_errors import translated


@dataclass(frozen=True, kw_only=True)
class Process:
    """A running process: the digest of its program (hexadecimal SHA-256), and the files that it maps as code."""

    program: str
    code: frozenset[str]


def process_of(container: Any) -> Process | None:
    """Return the first process of a running container; None where this machine's /proc does not show it.

    It does not if the engine runs in a virtual machine, or if reading it needs more rights.
    """
    with translated():
        container.reload()
    folder = Path("/proc") / str(container.attrs["State"]["Pid"] or "none")
    try:
        if container.id not in (folder / "cgroup").read_text():
            return None
        with (folder / "exe").open("rb") as program:
            digest = hashlib.file_digest(program, "sha256").hexdigest()
        return Process(program=digest, code=executable_files((folder / "maps").read_text(errors="replace")))
    except OSError:
        return None


def executable_files(maps: str) -> frozenset[str]:
    """Return the files that are mapped as code in the text of /proc/PID/maps."""
    rows = (line.split(maxsplit=5) for line in maps.splitlines())
    return frozenset(row[5] for row in rows if len(row) == 6 and "x" in row[1] and row[5].startswith("/"))
