"""Temporary folders that go with their process, even if that is killed.

A killed process cannot remove its folders. Each has a file that its process keeps locked, and whoever makes the next
one beside it removes those whose file is free. The kernel releases a lock with its process, so neither a process id
that is used again, nor a container that sees other process ids, can mislead that.
"""

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

PREFIX = "tfbuild-"
LOCK = ".tfbuild-lock"


@contextmanager
def folder(prefix: str = PREFIX, parent: Path | None = None) -> Iterator[Path]:
    """Yield a new folder in `parent` (default: the system's for temporary files), only readable by this user.

    It is removed when the block ends. Also removes the folders there with this `prefix` that killed processes left.
    Raises OSError.
    """
    parent = parent or Path(tempfile.gettempdir())
    sweep(prefix, parent)
    with ExitStack() as stack:
        yield _locked(prefix, parent, stack)


def _locked(prefix: str, parent: Path, stack: ExitStack) -> Path:
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        lock = (path / LOCK).open("w")
        # A file system without locks refuses this, and refuses it to a sweep, which then leaves all folders there.
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        # A sweep may have come between the two lines.
        if (path / LOCK).exists():
            stack.enter_context(lock)
            stack.callback(shutil.rmtree, path, ignore_errors=True)
            return path
        lock.close()


def sweep(prefix: str = PREFIX, parent: Path | None = None) -> list[str]:
    """Remove this user's folders whose process is gone, and return their names; what cannot be removed stays."""
    parent = parent or Path(tempfile.gettempdir())
    with suppress(OSError), os.scandir(parent) as entries:
        names = [entry.name for entry in entries if entry.name.startswith(prefix)]
        return [name for name in names if _remove_free(parent / name)]
    return []


def _remove_free(path: Path) -> bool:
    """Remove a folder if it is this user's and its lock is free; follow no link."""
    with suppress(OSError), ExitStack() as stack:
        place = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        stack.callback(os.close, place)
        # A pipe in place of the file must not block.
        lock = os.open(LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=place)
        stack.callback(os.close, lock)
        mine = os.fstat(place).st_uid == os.fstat(lock).st_uid == os.geteuid()
        if not mine or not stat.S_ISREG(os.fstat(lock).st_mode):
            return False
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
        return not path.exists()
    return False
