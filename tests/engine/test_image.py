"""Images by their names and labels, and their files."""

import errno
import os
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import docker
import pytest

from tests.users import nobody, open_folder
from tfbuild.engine import Engine, containers
from tfbuild.engine import image as images
from tfbuild.engine.containers import archive
from tfbuild.engine.faults import translated
from tfbuild.engine.image import parse_image, read_files
from tfbuild.errors import DiskFull, TfbuildError
from tfbuild.util import files
from tfbuild.util.process import Attached


def test_an_image_is_known_by_its_id_and_by_its_digests_in_registries() -> None:
    attrs = {"Id": "sha256:1", "Size": 1, "Architecture": "amd64", "RepoDigests": ["h:5000/a@sha256:2", "b@sha256:3"]}
    assert parse_image(attrs).digests == {"sha256:1", "sha256:2", "sha256:3"}


def test_an_image_that_is_removed_meanwhile_is_not_listed() -> None:
    removed = {
        "removed": docker.errors.ImageNotFound("gone"),
        "unnamed": docker.errors.NotFound("404 Client Error", explanation="reference does not exist"),
    }

    def get(image: str) -> Any:
        if image in removed:
            raise removed[image]
        return SimpleNamespace(attrs={"Id": image, "Size": 1, "Architecture": "amd64"})

    def listed(*, filters: dict[str, str]) -> list[dict[str, str]]:
        assert filters == {"label": "io.tfbuild.id"}
        return [{"Id": image} for image in ("one", *removed, "other")]

    engine = Engine.__new__(Engine)
    engine.client = SimpleNamespace(api=SimpleNamespace(images=listed), images=SimpleNamespace(get=get))
    assert [image.id for image in engine.labelled("io.tfbuild.id")] == ["one", "other"]


def container(*files: tuple[str, bytes]) -> Any:
    """A container that exports these files."""
    return SimpleNamespace(export=lambda _: iter([archive(dict(files))]))


def test_as_much_of_an_image_is_read_as_is_allowed() -> None:
    image = container(("/a", b"one"), ("/b", b"four"), ("/c", b"more"))
    read = read_files(image, {"/a", "/b"}.__contains__, 7)
    assert read == {"/a": b"one", "/b": b"four"}
    with pytest.raises(OSError, match="larger than what is left of the limit") as error:
        read_files(image, {"/a", "/b"}.__contains__, 6)
    assert (error.value.errno, error.value.filename) == (errno.EFBIG, "/b")


def test_an_image_of_endless_files_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    image = container(("/a", b"x"), ("/folder/b", b"y"), ("/zeros", bytes(1 << 20)))
    most = 2 + (1 << 20) + 3 * 512
    with monkeypatch.context() as patch:
        patch.setattr(files, "MOST_CONTENT", most)
        assert read_files(image, lambda _: False, 0) == {}
        patch.setattr(files, "MOST_CONTENT", most - 1)
        with pytest.raises(OSError, match=f"it has more than {most - 1} bytes of files"):
            read_files(image, lambda _: False, 0)


def test_files_of_a_folder_are_copied_one_at_a_time(tmp_path: Path) -> None:
    link, content = archive({"/p/a.so": b"one", "/p/b.py": b"not wanted", "/p/c/d.so": b"four"}), tmp_path / "copy"
    stat = {"mode": 0, "linkTarget": ""}
    asked = {"/link": {"mode": images.GO_SYMLINK, "linkTarget": "/p"}, "/p": stat}
    container = SimpleNamespace(get_archive=lambda path: ((chunk for chunk in [link]), asked[path]))

    def copied(limit: int) -> dict[str, bytes]:
        found = images.copy_files(container, "/link", lambda name: name.endswith(".so"), content, limit)
        return {name: path.read_bytes() for name, path in found}

    assert copied(4) == {"a.so": b"one", "c/d.so": b"four"}
    assert not content.exists()
    with pytest.raises(OSError, match="larger than 3 bytes") as error:
        copied(3)
    assert (error.value.errno, error.value.filename) == (errno.EFBIG, "/link/c/d.so")


# --- a full disk, the engine's or this machine's, is told apart from what is wrong with an image ----------------------

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
        while program.open:
            program.pump(time.monotonic() + 60)
        return containers.exit_code(program)


def withheld(message: str) -> Any:
    """A container whose files the engine does not give out, for this reason."""

    def get_archive(_: str) -> Any:
        raise refused(message)

    return SimpleNamespace(get_archive=get_archive)


def test_a_container_that_does_not_start_is_told_from_its_own_exit_code() -> None:
    log = 'time="2026-11-28T15:32:16Z" level=error msg="error waiting for container: context canceled"\n'
    assert ended("no such file") == ended("no such file", log) == containers.NOT_STARTED


@pytest.mark.parametrize("message", FULL)
def test_an_engine_that_has_no_space_says_so_in_its_own_words(message: str, tmp_path: Path) -> None:
    with pytest.raises(DiskFull) as raised, translated():
        raise refused(message)
    assert raised.value.reason == f"the engine's disk is full: {message.strip()}"
    assert raised.value.hint.startswith("docker builder prune --filter type=regular, docker image prune; then run")
    with pytest.raises(DiskFull):
        ended(message)
    with pytest.raises(DiskFull), translated():
        images.read_file(withheld(message), "/etc/x", tmp_path / "x", 10)


def test_a_disk_that_is_closed_to_this_user_is_not_looked_at() -> None:
    engine = Engine.__new__(Engine)
    with open_folder(0o600) as top, nobody():
        engine.client, engine.local = SimpleNamespace(info=lambda: {"DockerRootDir": f"{top}/231072.231072"}), True
        assert engine.data_root is None


@pytest.mark.parametrize("message", OTHER)
def test_an_image_cannot_say_it_for_the_engine(message: str, tmp_path: Path) -> None:
    with pytest.raises(TfbuildError) as raised, translated():
        raise refused(message)
    assert type(raised.value) is TfbuildError
    with pytest.raises(FileNotFoundError) as missing:
        images.read_file(withheld(message), "/etc/x", tmp_path / "x", 10)
    assert missing.value.strerror == (message or "No such file or directory")
    if message:
        assert ended(message) == containers.NOT_STARTED


@pytest.mark.parametrize(("code", "kind"), [(errno.ENOSPC, DiskFull), (errno.EIO, TfbuildError)])
def test_no_space_here_for_a_file_of_the_image_is_not_the_image_s_fault(
    code: int, kind: type[TfbuildError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stat = {"mode": 0o644, "size": 7, "linkTarget": ""}

    def get_archive(_: str) -> Any:
        return (chunk for chunk in [archive({"/x": b"content"})]), stat

    container = SimpleNamespace(get_archive=get_archive)
    images.read_file(container, "/x", tmp_path / "copy", 10)
    assert (tmp_path / "copy").read_bytes() == b"content"

    def full(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("shutil.copyfileobj", full)
    with pytest.raises(kind) as raised:
        images.read_file(container, "/x", tmp_path / "other", 10)
    assert type(raised.value) is kind
    assert raised.value.reason == f"{tmp_path} cannot hold a copy of the image's /x: {os.strerror(code)}"
    assert "TMPDIR" in raised.value.hint
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]
