"""The folders that tfbuild writes to, files written whole or not at all, and folders locked by one process."""

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tfbuild.errors import DiskFull, TfbuildError, UsageError

# In the current folder: build contexts and logs, and the reports of verifications and benchmarks.
WORK = Path("build")
REPORTS = Path("reports")
# In a folder that a process locks.
LOCK = ".lock"
FULL = (errno.ENOSPC, errno.EDQUOT)


def replace_file(path: Path, content: bytes | str) -> Path:
    """Write `content` to `path`, text as UTF-8; a reader sees the old or the new content whole. Raises OSError.

    That holds after a power cut too: the content is on the disk before the name changes. A device or a pipe is written
    to, and never replaced by a file.
    """
    data = content.encode() if isinstance(content, str) else content
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return path
    with whole(path) as part:
        part.write_bytes(data)
    return path


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Yield where to write a file that becomes `path` when the block succeeds, and goes when it fails.

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
    """Remove what is at `path`, if anything: a file, a link itself, or a folder and all in it. Raises OSError."""
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
    """Return why nothing is seen at `path` ("Permission denied"); "" where something is there."""
    try:
        path.stat()
    except OSError as error:
        return error.strerror or str(error)
    except ValueError:
        return "its name has a NUL character"
    return ""


@contextmanager
def writing(folder: Path, hint: str = "make it writable, or run in another folder") -> Iterator[None]:
    """Raise DiskFull where `folder` has no space left for what the block writes, and UsageError where it refuses it.

    Errors that concern no file (an OSError of a network, say) pass.
    """
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno not in FULL:
            raise
        raise refusal(error, folder, f"cannot write to {folder}: {error.strerror}", hint) from error


def refusal(error: OSError, place: Path, message: str, hint: str) -> TfbuildError:
    """Return DiskFull for an error that says so of `place`, else UsageError with the message and the hint."""
    if error.errno in FULL:
        again = "free some space; then the same command continues from there"
        return DiskFull(f"no space is left for {place}", hint=again)
    return UsageError(message, hint=hint)


def check_writable(folder: Path) -> None:
    """Make `folder`, and raise what writing() raises, so that a run of hours does not find that out at its end."""
    import tempfile

    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix="."):
            pass


@contextmanager
def locked(folder: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Lock `folder` for this process; where another process holds it, call `waiting` and wait until it ends.

    The kernel releases the lock when its process ends, in whatever way. Raises OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # A link may lead anywhere: the file must be this folder's own.
    with os.fdopen(os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666), "rb+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def with_section(text: str, begin: str, end: str, content: str) -> str:
    """Return `text` with `content` between `begin` and `end`. Raises ValueError if `text` lacks one of them."""
    before, found, rest = text.partition(begin)
    if not found:
        raise ValueError(f"there is no {begin!r} in the text")
    _, found, after = rest.partition(end)
    if not found:
        raise ValueError(f"there is no {end!r} after {begin!r}")
    return f"{before}{begin}{content}{end}{after}"
