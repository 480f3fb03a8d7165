"""Write files whole or not at all, lock folders, and make temporary folders that are removed at the end."""

import errno
import fcntl
import io
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tfbuild.errors import DiskFull, UsageError

if TYPE_CHECKING:
    import tarfile

T = TypeVar("T")
# In the current folder: build contexts and logs, and the reports of verifications and benchmarks.
WORK = Path("build")
REPORTS = Path("reports")
DIST = Path("dist")
# In a folder that a process locks.
LOCK = ".lock"
FULL = (errno.ENOSPC, errno.EDQUOT)
# Of a text: /dev/zero has no end, and a file can have a hole of terabytes.
MOST_TEXT = 64 << 20
# Of an archive or a tree. TensorFlow's largest image has 60,000 files and 10 GB of content.
MOST_CONTENT = 32 << 30


def replace_file(path: Path, content: bytes | str) -> Path:
    """Write `content` to `path`, text as UTF-8; a reader sees the old or the new content whole. Raises OSError.

    That holds after a power cut too: the content is on the disk before the name changes.
    """
    with whole(path) as part:
        part.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


class Foreign(io.FileIO):
    """A regular file by others, opened for reading without waiting for a pipe; gives at most `most` bytes at once.

    zipfile and tarfile read a list of members, or a name, at once, however long it says it is; files have holes.
    Raises OSError for anything but a regular file, and with EFBIG beyond the limit.
    """

    def __init__(self, path: Path, most: int = MOST_TEXT) -> None:
        super().__init__(path, opener=_unblocked)
        self._most = most
        if not stat.S_ISREG(os.fstat(self.fileno()).st_mode):
            self.close()
            raise OSError(errno.EINVAL, "not a regular file", str(path))

    def read(self, size: int | None = -1) -> bytes:
        if size is None or size < 0:
            size = min(self._most, max(0, os.fstat(self.fileno()).st_size - self.tell()) or self._most) + 1
        if size > self._most + 1 or len(content := super().read(size) or b"") > self._most:
            raise OSError(errno.EFBIG, f"more than {self._most} bytes", self.name)
        return content


def members(archive: "tarfile.TarFile", name: str) -> "Iterator[tarfile.TarInfo]":
    """Yield the members of an archive by others. Raises OSError with EFBIG beyond MOST_CONTENT bytes."""
    content = 0
    for member in archive:
        content += 512 + member.size
        if member.size < 0 or content > MOST_CONTENT:
            raise OSError(errno.EFBIG, f"it has more than {MOST_CONTENT} bytes of files", name)
        yield member
        archive.members = []  # type: ignore[attr-defined]  # tarfile keeps them all


def read_regular(path: Path, most: int = MOST_TEXT) -> bytes:
    """Return the content of a regular file of at most `most` bytes. Raises OSError."""
    with Foreign(path, most) as file:
        return file.read()


def read_named(path: Path) -> bytes:
    """Return the content of a file that a user names, or of a shell's `<(command)`. Raises OSError."""
    with open(path, "rb", opener=_unblocked) as file:
        os.set_blocking(file.fileno(), True)
        content = file.read(MOST_TEXT + 1)
    if len(content) > MOST_TEXT:
        raise OSError(errno.EFBIG, f"more than {MOST_TEXT} bytes", str(path))
    if not content and path.is_fifo():
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
        if error.errno in FULL:
            again = "then the same command continues from there" if hint == FOLDER_HINT else f"or {hint}"
            raise DiskFull(f"no space is left for {folder}", hint=f"free some space; {again}") from error
        raise UsageError(f"cannot write to {error.filename or folder}: {error.strerror}", hint=hint) from error


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
        except OSError as error:  # NFS without its daemon, Lustre without the option
            raise OSError(error.errno, f"files cannot be locked here ({error.strerror})", str(folder / LOCK)) from error
        yield


# --- temporary folders ------------------------------------------------------------------------------------------------


@contextmanager
def temporary_folder(prefix: str = "tfbuild-", parent: Path | None = None) -> Iterator[Path]:
    """Yield a new folder in `parent` (default: the system's for temporary files), only readable by this user.

    It is removed when the block ends; a killed process leaves it. Raises OSError.
    """
    import tempfile

    with tempfile.TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True) as name:
        yield Path(name)
