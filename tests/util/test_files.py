"""One process at a time locks a folder: the next one waits, however the first one ends."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.rows import each
from tfbuild import plan
from tfbuild.errors import DiskFull, UsageError
from tfbuild.pipeline.maker import Maker
from tfbuild.pipeline.run import Run
from tfbuild.plan import Request
from tfbuild.util import files
from tfbuild.util.progress import Progress

BUILD = plan.select(Request(target="mkl", release="2.20.0", cpu="avx", platform="linux/amd64"), None)
HOLD = """
import sys, time
from pathlib import Path
from tfbuild.util import files
from tfbuild.util.progress import Progress
with files.locked(Path(sys.argv[1]), lambda: print("waiting", flush=True)):
    print("locked", flush=True)
    time.sleep(600)
"""


def holder(folder: Path) -> "subprocess.Popen[str]":
    """Start another process that holds the lock of the folder."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    return process


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_the_end_of_one_process_releases_the_lock(end: signal.Signals, tmp_path: Path) -> None:
    calls: list[str] = []
    folder = tmp_path / "x" / "y"
    with holder(folder) as process:

        def waiting() -> None:
            calls.append("waiting")
            process.send_signal(end)

        with files.locked(folder, waiting):
            assert process.wait() == -end
    assert calls == ["waiting"]


def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(UsageError, match="cannot be locked"), files.writing(tmp_path), files.locked(tmp_path, print):
        pass


def test_what_cannot_be_written_is_told_by_its_cause(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match=r"cannot write to .*/file/x: Not a directory"):
        files.check_writable(tmp_path / "file" / "x")
    for code in (errno.ENOSPC, errno.EDQUOT):
        with pytest.raises(DiskFull, match=f"no space is left for {tmp_path}"), files.writing(tmp_path):
            raise OSError(code, "x")
    with pytest.raises(DiskFull) as full, files.writing(tmp_path, "set TMPDIR"):
        raise OSError(errno.ENOSPC, "x")
    assert full.value.hint.endswith("set TMPDIR")
    with pytest.raises(UsageError, match=f"cannot write to {tmp_path}"), files.writing(tmp_path):
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    # A network's error is not the folder's.
    with pytest.raises(ConnectionRefusedError), files.writing(tmp_path):
        raise ConnectionRefusedError(errno.ECONNREFUSED, "x")
    for _ in range(2):
        files.check_writable(tmp_path / "new" / "folder")
    assert list((tmp_path / "new" / "folder").iterdir()) == []


class PowerCutError(Exception):
    pass


@pytest.mark.parametrize("survives", [0, 1, 2, 3])
def test_a_power_cut_leaves_the_old_content_or_the_new(
    survives: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk keeps what was flushed and loses the rest: a file that is renamed before that is empty afterwards."""
    path = tmp_path / "report.json"
    path.write_text("old")
    flushed: set[int] = set()
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1
        if steps > survives:
            raise PowerCutError

    def fsync(descriptor: int, real: Callable[[int], None] = os.fsync) -> None:
        step()
        real(descriptor)
        flushed.add(os.fstat(descriptor).st_ino)

    def replace(old: Path, new: Path, real: Callable[[Path, Path], None] = os.replace) -> None:
        step()
        if os.stat(old).st_ino not in flushed:
            old.write_text("")
        real(old, new)

    monkeypatch.setattr("os.fsync", fsync)
    monkeypatch.setattr("os.replace", replace)
    with suppress(PowerCutError):
        files.replace_file(path, "new content")
    assert path.read_text() == ("new content" if survives >= 2 else "old")


def test_a_block_that_fails_leaves_the_old_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text("old")
    with suppress(KeyboardInterrupt), files.whole(path) as part:
        part.write_text("half of the new")
        raise KeyboardInterrupt
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("report.json", "old")]


def test_a_leftover_lock_file_or_a_pipe_in_its_place_blocks_nobody(tmp_path: Path) -> None:
    for _ in range(2):
        with files.locked(tmp_path, lambda: pytest.fail("nobody holds the lock")):
            assert (tmp_path / ".lock").is_file()
    (tmp_path / "x").mkdir()
    os.mkfifo(tmp_path / "x" / ".lock")
    with files.locked(tmp_path / "x", lambda: pytest.fail("nobody holds the lock")):
        pass


def test_a_second_build_of_one_identifier_waits_and_says_so(tmp_path: Path) -> None:
    noted, order = threading.Event(), list[str]()

    class Noting(Progress):
        def __call__(self, line: str) -> None:
            order.append(line.partition(" here")[0])
            noted.set()

    maker = Maker(run=Run(work=tmp_path, reports=tmp_path), progress=Noting())

    def second() -> None:
        with maker.locked(BUILD):
            order.append("second")

    with maker.locked(BUILD):
        thread = threading.Thread(target=second)
        thread.start()
        assert noted.wait(60)
        order.append("first")
    thread.join()
    assert order == [f"another run is building {BUILD.id}", "first", "second"]


def test_a_pipe_is_read_as_a_file_that_is_named_and_never_waited_for(tmp_path: Path) -> None:
    """A pipe that nobody writes to would hold a command for good."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="not a regular file"):
        files.read_regular(pipe)
    with pytest.raises(OSError, match="a pipe that nobody writes to"):
        files.read_named(pipe)
    with subprocess.Popen(["sh", "-c", "printf a; sleep 0.2; printf b"], stdout=subprocess.PIPE) as slow:
        assert slow.stdout
        assert files.read_named(Path(f"/dev/fd/{slow.stdout.fileno()}")) == b"ab"
    (tmp_path / "file").write_bytes(b"content")
    assert files.read_regular(tmp_path / "file", 7) == b"content"
    with pytest.raises(OSError, match="more than 6 bytes"):
        files.read_regular(tmp_path / "file", 6)
    os.truncate(tmp_path / "file", (64 << 20) + 1)
    for read in (files.read_regular, files.read_named):
        with pytest.raises(OSError, match="more than 67108864 bytes"):
            read(tmp_path / "file")


def test_a_temporary_folder_is_this_user_s_and_goes_with_its_block(tmp_path: Path) -> None:
    with suppress(KeyboardInterrupt), files.temporary_folder(parent=tmp_path) as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


@each(
    "content, why",
    [
        (b"", "truncated"),
        (b"{", "truncated"),
        (b'"\xff"', "got `str`"),
        (b'{"a": "\xc3("}', "can't decode byte 0xc3"),
        (b"[" * 100_000, "got `array`"),
        (b"1", "got `int`"),
        ("\udcff", "surrogates not allowed"),
    ],
)
def test_a_document_by_somebody_else_is_read_or_refused(content: bytes | str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        files.decode(content, dict[str, str])
    assert files.decode(b'{"a": "b"}', dict[str, str]) == {"a": "b"}
