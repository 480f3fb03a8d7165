"""A full disk, the engine's or this machine's, is told apart from what is wrong with an image."""

import errno
import io
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import docker
import pytest

from tfbuild.engine import containers
from tfbuild.engine import image as images
from tfbuild.engine.containers import AttachedContainer
from tfbuild.engine.faults import translated
from tfbuild.errors import DiskFull, Disturbed, TfbuildError

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


ATTACHED: Any = None


class Container:
    """A container that the engine could not start for the reason `error`, and whose files it does not give out."""

    name = "tfbuild-1"

    def __init__(self, error: str) -> None:
        self.error = error
        self.attrs = {"State": {"Running": False, "Status": "created", "Error": error, "ExitCode": 128}}

    def reload(self) -> None:
        pass

    def get_archive(self, _: str) -> Any:
        raise refused(self.error)


@pytest.mark.parametrize("message", FULL)
def test_an_engine_that_has_no_space_says_so_in_its_own_words(message: str) -> None:
    with pytest.raises(DiskFull) as raised, translated():
        raise refused(message)
    assert raised.value.reason == f"the engine's disk is full: {message.strip()}"
    assert raised.value.hint.startswith("docker builder prune, docker image prune; then run the same command again")
    with pytest.raises(DiskFull):
        AttachedContainer(None, Container(message), ATTACHED, judged=False).exit_code()
    with pytest.raises(DiskFull), translated():
        images.read_contents(Container(message), ["/etc/x"], 10)


@pytest.mark.parametrize("message", OTHER)
def test_an_image_cannot_say_it_for_the_engine(message: str) -> None:
    with pytest.raises(TfbuildError) as raised, translated():
        raise refused(message)
    assert type(raised.value) is TfbuildError
    assert images.read_contents(Container(message), ["/etc/x"], 10) == {}
    if message:
        assert AttachedContainer(None, Container(message), ATTACHED, judged=False).exit_code() == 128


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
        (errno.EIO, Disturbed),
        (errno.EFBIG, Disturbed),
    ],
)
def test_no_space_here_for_a_file_of_the_image_is_not_the_image_s_fault(
    code: int, kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    if isinstance(raised.value, DiskFull):
        assert raised.value.reason == f"no space is left in {tmp_path} for a copy of the image's /x"
        assert "TMPDIR" in raised.value.hint
    elif isinstance(raised.value, Disturbed):
        told = f"the image was not judged: {tmp_path} cannot hold a copy of the image's /x: {os.strerror(code)}"
        assert raised.value.reason == told + (" (ulimit -f)" if code == errno.EFBIG else "")
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]
