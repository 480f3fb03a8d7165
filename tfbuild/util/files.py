"""The folders that tfbuild writes to, files written whole or not at all, and folders locked by one process."""

import fcntl
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

# In the current folder: build contexts and logs, and the reports of verifications and benchmarks.
WORK = Path("build")
REPORTS = Path("reports")


def replace_file(path: Path, content: bytes | str) -> Path:
    """Write `content` to `path`, text as UTF-8; a reader sees the old or the new content whole. Raises OSError."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        part.write_bytes(content.encode() if isinstance(content, str) else content)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return path


@contextmanager
def locked(folder: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Lock `folder` for this process; where another process holds it, call `waiting` and wait until it ends.

    The kernel releases the lock when its process ends, in whatever way. Raises OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
