"""Write files whole or not at all, lock folders, and make temporary folders that are removed at the end."""

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
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
# Names of temporary folders: nothing else must look like one.
PREFIX, SUFFIX = "tfbuild-", ".tfbuild"
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


def absence(path: Path) -> str:
    """Return why `path` cannot be accessed, as "Permission denied"; "" if it can."""
    try:
        path.stat()
    except OSError as error:
        return error.strerror or str(error)
    except ValueError:
        return "its name has a NUL character"
    return ""


# What to do about a folder that refuses what is written, if no option names another one.
ELSEWHERE = "make it writable, or run in another folder"


@contextmanager
def writing(folder: Path, hint: str = ELSEWHERE) -> Iterator[None]:
    """Raise DiskFull where `folder` has no space left for what the block writes, and UsageError where it refuses it.

    Errors that concern no file (an OSError of a network, say) pass.
    """
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno not in (*FULL, errno.EFBIG):
            raise
        # A folder, or a pipe that nobody reads, has the name of a file.
        if error.errno in (errno.EISDIR, errno.ENXIO):
            folder, hint = Path(error.filename), "tfbuild writes a file there: move away what has its name"
        raise refusal(error, folder, f"cannot write to {folder}: {error.strerror}", hint) from error


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

    It is removed when the block ends. A killed process cannot do that: also removes the folders there with this
    `prefix` that nobody has locked any more. Raises OSError.
    """
    import shutil

    parent = parent or system_folder()
    sweep(prefix, parent)
    path, lock = _new_folder(prefix, parent)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def system_folder() -> Path:
    """Return the system's folder for temporary files."""
    # Imported here, because most commands need no temporary folder.
    import tempfile

    return Path(tempfile.gettempdir())


def _new_folder(prefix: str, parent: Path) -> tuple[Path, int]:
    """Return a new folder, and the file descriptor by which this process keeps it locked."""
    import tempfile

    while True:
        path = Path(tempfile.mkdtemp(SUFFIX, prefix, parent))
        lock = os.open(path, os.O_RDONLY)
        # A file system without locks refuses this, and refuses it to a sweep, which then leaves all folders there.
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        # A sweep may have come between the two lines.
        if path.exists():
            return path, lock
        os.close(lock)


def sweep(prefix: str = PREFIX, parent: Path | None = None) -> list[str]:
    """Remove this user's folders whose process is gone, and return their names; what cannot be removed stays."""
    parent = parent or system_folder()
    with suppress(OSError), os.scandir(parent) as entries:
        names = [entry.name for entry in entries if entry.name.startswith(prefix) and entry.name.endswith(SUFFIX)]
        return [name for name in names if _remove_free(parent / name)]
    return []


def _remove_free(path: Path) -> bool:
    """Remove a folder if it is this user's and its lock is free; follow no link."""
    import shutil

    with suppress(OSError), ExitStack() as stack:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        stack.callback(os.close, folder)
        if os.fstat(folder).st_uid == os.geteuid():
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
            return not path.exists()
    return False
