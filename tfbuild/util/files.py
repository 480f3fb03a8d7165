"""Write files whole or not at all, lock folders, and make temporary folders that are removed at the end."""

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import TypeVar

from tfbuild.errors import DiskFull, TfbuildError, UsageError

T = TypeVar("T")
# In the current folder: build contexts and logs, and the reports of verifications and benchmarks.
WORK = Path("build")
REPORTS = Path("reports")
# In a folder that a process locks.
LOCK = ".lock"
PREFIX = "tfbuild-"
FULL = (errno.ENOSPC, errno.EDQUOT)
# Of a file that a user names: /dev/zero has no end.
MOST_NAMED = 64 << 20


def replace_file(path: Path, content: bytes | str) -> Path:
    """Write `content` to `path`, text as UTF-8; a reader sees the old or the new content whole. Raises OSError.

    That holds after a power cut too: the content is on the disk before the name changes. A device or a pipe that
    somebody reads is written to, and never replaced by a file.
    """
    data = content.encode() if isinstance(content, str) else content
    if path.exists() and not path.is_file():
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_NONBLOCK), "wb") as file:
            os.set_blocking(file.fileno(), True)
            file.write(data)
        return path
    with whole(path) as part:
        part.write_bytes(data)
    return path


def read_regular(path: Path, most: int = -1) -> bytes:
    """Read at most `most` bytes of a regular file; a pipe would be waited for. Raises OSError."""
    with open_regular(path) as file:
        return file.read(most)


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading. Raises OSError for anything else, also for a pipe, without waiting."""
    file = open(path, "rb", opener=_unblocked)  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return file


def read_named(path: Path) -> bytes:
    """Read at most MOST_NAMED bytes of a file that a user names, or of a shell's `<(command)`. Raises OSError."""
    with open(path, "rb", opener=_unblocked) as file:
        os.set_blocking(file.fileno(), True)
        content = file.read(MOST_NAMED)
        if not content and stat.S_ISFIFO(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EPIPE, "a pipe that nobody writes to", str(path))
        return content


def _unblocked(path: str, flags: int) -> int:
    """Open without waiting for the other end of a pipe."""
    return os.open(path, flags | os.O_NONBLOCK)


def decode(content: bytes | str, kind: type[T]) -> T:
    """Return the value in a JSON document by somebody else. Raises ValueError for any other content."""
    import msgspec

    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise ValueError(str(error)) from error


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Yield a temporary path whose file replaces `path` if the block succeeds, and is removed if it fails.

    It is on the disk before the name changes: a power cut leaves the old content or the new.
    """
    part = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    try:
        yield part
        flush(part)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def remove(path: Path) -> None:
    """Remove the file, link or folder at `path`, if there is one; what a link leads to stays. Raises OSError."""
    if path.is_dir() and not path.is_symlink():
        import shutil

        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def flush(path: Path) -> None:
    """Wait until the content of the file, or of all files in the folder, is on the disk."""
    for file in sorted(path.rglob("*")) if path.is_dir() else (path,):
        if file.is_file():
            with file.open("rb") as opened:
                os.fsync(opened.fileno())


def access_problem(path: Path) -> str:
    """Return why `path` cannot be accessed, as "Permission denied"; "" if it can."""
    try:
        path.stat()
    except (OSError, ValueError) as error:  # a name with a NUL character
        return getattr(error, "strerror", "") or str(error)
    return ""


# What to do about a folder that refuses what is written, if no option names another one.
FOLDER_HINT = "make it writable, or run in another folder"


@contextmanager
def writing(folder: Path, hint: str = FOLDER_HINT) -> Iterator[None]:
    """Raise DiskFull where `folder` has no space left for what the block writes, and UsageError where it refuses it.

    Errors that concern no file (an OSError of a network, say) pass.
    """
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno not in (*FULL, errno.EFBIG):
            raise
        raise refusal(error, folder, f"cannot write to {error.filename or folder}: {error.strerror}", hint) from error


def refusal(error: OSError, path: Path, message: str, hint: str) -> TfbuildError:
    """Return DiskFull if the error says that no space is left for `path`, else UsageError with message and hint."""
    if error.errno in FULL:
        again = "free some space; then the same command continues from there"
        return DiskFull(f"no space is left for {path}", hint=again)
    return UsageError(message, hint=hint)


def check_writable(folder: Path) -> None:
    """Create `folder` and check that it is writable, so that a long run does not fail at its end."""
    import tempfile

    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass


@contextmanager
def locked(folder: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Lock `folder` for this process; where another process holds it, call `waiting` and wait until it ends.

    The kernel releases the lock however its process ends. Raises OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # A link may lead anywhere: the file must be this folder's own. A pipe must not block.
    file = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    with os.fdopen(file, "rb", buffering=0) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


# --- temporary folders ------------------------------------------------------------------------------------------------


@contextmanager
def temporary_folder(prefix: str = PREFIX, parent: Path | None = None) -> Iterator[Path]:
    """Yield a new folder in `parent` (default: the system's for temporary files), only readable by this user.

    It is removed when the block ends; a killed process leaves it. Raises OSError.
    """
    import tempfile

    with tempfile.TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True) as name:
        yield Path(name)
