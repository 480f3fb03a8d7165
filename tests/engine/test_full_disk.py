"""A full disk, the engine's or this machine's, is told apart from what is wrong with an image."""

import errno
import io
import os
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import docker
import pytest

from tfbuild.engine import containers
from tfbuild.engine import image as images
from tfbuild.engine.faults import translated
from tfbuild.errors import DiskFull, TfbuildError
from tfbuild.util.process import Attached

FULL = (
    "mkdir /var/lib/docker/overlay2/df69-init: no space left on device",
    "Error processing tar file(exit status 1): write /tfbuild-cpus/5: no space left on device",
    "failed to create task for container: mkdir /run/x: no space left on device: unknown",
    "write /var/lib/docker/x: disk quota exceeded\n",
)
# An image may name its files so.
OTHER = (
    "Could not find the file /no space left on device in container tfbuild-1",
    'exec: "no space left on device": executable file not found in $PATH: unknown',
    "",
)


def refused(message: str) -> docker.errors.APIError:
    return docker.errors.APIError("500 Server Error", explanation=message)


def ended(message: str, log: str = "") -> int:
    """The exit code of a container that the engine refuses to start, as Docker's client prints and ends."""
    script = "printf '%s\\n' \"$1\" >&2; exit 1"
    with closing(Attached(["sh", "-c", script, "sh", f"{log}{containers.REFUSED}{message}"], os.environ)) as program:
        program.send(b"", close=True)
        while program.open:
            program.pump(time.monotonic() + 60)
        return containers.exit_code(program)


class Container:
    """A container whose files the engine does not give out, for the reason `error`."""

    def __init__(self, error: str) -> None:
        self.error = error

    def get_archive(self, _: str) -> Any:
        raise refused(self.error)


def test_a_container_that_does_not_start_is_told_from_its_own_exit_code() -> None:
    log = 'time="2026-11-28T15:32:16Z" level=error msg="error waiting for container: context canceled"\n'
    assert ended("no such file") == ended("no such file", log) == containers.NOT_STARTED


@pytest.mark.parametrize("message", FULL)
def test_an_engine_that_has_no_space_says_so_in_its_own_words(message: str, tmp_path: Path) -> None:
    with pytest.raises(DiskFull) as raised, translated():
        raise refused(message)
    assert raised.value.reason == f"the engine's disk is full: {message.strip()}"
    assert raised.value.hint.startswith("docker builder prune, docker image prune; then run the same command again")
    with pytest.raises(DiskFull):
        ended(message)
    with pytest.raises(DiskFull), translated():
        images.read_file(Container(message), "/etc/x", tmp_path / "x", 10)


@pytest.mark.parametrize("message", OTHER)
def test_an_image_cannot_say_it_for_the_engine(message: str, tmp_path: Path) -> None:
    with pytest.raises(TfbuildError) as raised, translated():
        raise refused(message)
    assert type(raised.value) is TfbuildError
    with pytest.raises(FileNotFoundError):
        images.read_file(Container(message), "/etc/x", tmp_path / "x", 10)
    if message:
        assert ended(message) == containers.NOT_STARTED


class Stream(io.RawIOBase):
    """The engine's answer for a file of the image; iterating it gives its bytes."""

    def __init__(self) -> None:
        self._chunks = iter([containers.archive({"/x": b"content"})])

    def __iter__(self) -> Any:
        return self._chunks


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.ENOSPC, DiskFull),
        (errno.EDQUOT, DiskFull),
        (errno.EIO, TfbuildError),
    ],
)
def test_no_space_here_for_a_file_of_the_image_is_not_the_image_s_fault(
    code: int, kind: type[TfbuildError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stat = {"mode": 0o644, "size": 7, "linkTarget": ""}
    container = SimpleNamespace(get_archive=lambda _: (Stream(), stat))
    images.read_file(container, "/x", tmp_path / "copy", 10)
    assert (tmp_path / "copy").read_bytes() == b"content"

    def full(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(images, "_copy_only_member", full)
    with pytest.raises(kind) as raised:
        images.read_file(container, "/x", tmp_path / "other", 10)
    assert type(raised.value) is kind
    assert raised.value.reason == f"{tmp_path} cannot hold a copy of the image's /x: {os.strerror(code)}"
    assert "TMPDIR" in raised.value.hint
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]
