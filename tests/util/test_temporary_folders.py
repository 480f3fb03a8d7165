"""Temporary folders of killed processes go with the next run; those of living ones and of others stay."""

import fcntl
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tfbuild.util import files

HOLD = """
import sys
from pathlib import Path
from tfbuild.util import files
with files.temporary_folder(parent=Path(sys.argv[1])) as folder:
    (folder / "file").write_text("content")
    print(folder, flush=True)
    sys.stdin.read()
"""


@contextmanager
def holder(parent: Path) -> Iterator[tuple["subprocess.Popen[str]", Path]]:
    """Another process, and the folder that it has in `parent`."""
    command = [sys.executable, "-c", HOLD, str(parent)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())


def killed(parent: Path) -> Path:
    """A folder whose process was killed."""
    with holder(parent) as (process, folder):
        process.send_signal(signal.SIGKILL)
    return folder


def test_a_folder_goes_with_its_block(tmp_path: Path) -> None:
    with suppress(KeyboardInterrupt), files.temporary_folder(parent=tmp_path) as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        assert re.fullmatch(r"tfbuild-\w{8}\.tfbuild", folder.name)
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_the_next_run_removes_the_folders_of_killed_ones_and_no_others(tmp_path: Path) -> None:
    with holder(tmp_path) as (process, living):
        dead = killed(tmp_path)
        assert (dead / "file").is_file(), "a killed process leaves its folder"
        with files.temporary_folder(parent=tmp_path) as mine:
            assert {*tmp_path.iterdir()} == {living, mine}
            assert files.sweep(parent=tmp_path) == [], "of this very process"
        assert (living / "file").is_file()
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert files.sweep(parent=tmp_path) == [living.name]


def test_a_folder_of_another_name_is_somebody_s(tmp_path: Path) -> None:
    """As a clone of this project in /tmp/tfbuild-main."""
    (tmp_path / "tfbuild-main").mkdir()
    (tmp_path / "tfbuild-main" / "README.md").write_text("mine")
    (tmp_path / "tfbuild-file").write_text("mine")
    other = killed(tmp_path).rename(tmp_path / "other-tfbuild-x")
    assert files.sweep(parent=tmp_path) == []
    assert {path.name for path in tmp_path.iterdir()} == {"tfbuild-main", "tfbuild-file", other.name}


def test_no_link_is_followed(tmp_path: Path) -> None:
    """As another user may plant them in /tmp, which all share."""
    target, shared = tmp_path / "target", tmp_path / "shared"
    target.mkdir()
    shared.mkdir()
    (target / "file").write_text("mine")
    (shared / "tfbuild-link.tfbuild").symlink_to(target)
    os.mkfifo(shared / "tfbuild-fifo.tfbuild")
    assert files.sweep(parent=shared) == []
    assert len(list(shared.iterdir())) == 2
    dead = killed(shared)
    (dead / "link").symlink_to(target)
    opened = len(os.listdir("/proc/self/fd"))
    assert files.sweep(parent=shared) == [dead.name]
    assert len(os.listdir("/proc/self/fd")) == opened, (
        "nothing stays open, neither of what is removed nor of what stays"
    )
    assert (target / "file").read_text() == "mine"


def test_a_folder_of_another_user_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dead = killed(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert files.sweep(parent=tmp_path) == []
    assert dead.is_dir()


def test_a_sweep_between_making_and_locking_a_folder_costs_only_that_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, swept = fcntl.flock, list[str]()

    def flock(file: object, operation: int) -> None:
        if not swept:
            monkeypatch.setattr(fcntl, "flock", real)
            swept.extend(files.sweep(parent=tmp_path))
        real(file, operation)  # type: ignore[arg-type]

    monkeypatch.setattr(fcntl, "flock", flock)
    with files.temporary_folder(parent=tmp_path) as folder:
        assert swept
        assert folder.name not in swept
        assert folder.is_dir()


@pytest.mark.parametrize("number", [13, 95])
def test_without_locks_nothing_is_swept(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on some network file systems."""

    def flock(*_: object) -> None:
        raise OSError(number, "no locks here")

    monkeypatch.setattr(fcntl, "flock", flock)
    with files.temporary_folder(parent=tmp_path) as folder:
        assert files.sweep(parent=tmp_path) == []
        assert folder.is_dir()
    assert list(tmp_path.iterdir()) == []


def test_the_system_s_own_folder_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    dead = killed(tmp_path)
    with files.temporary_folder() as folder:
        assert folder.parent == tmp_path
    assert not dead.exists()
