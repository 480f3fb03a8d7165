"""Files that are written whole or not at all, and folders that one process at a time works in."""

import fcntl
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def replace_file(path: Path, content: bytes | str) -> Path:
    """Put `content` at `path`, text as UTF-8; whoever reads it meanwhile gets the old or the new. Raises OSError."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        part.write_bytes(content.encode() if isinstance(content, str) else content)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return path


@contextmanager
def alone(folder: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """`folder` for this process alone; where another one has it, `waiting` is called and its end awaited.

    The kernel's lock goes with the process that holds it, however it ends. Raises OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
