"""Images by their names and labels, and their files."""

import errno
from types import SimpleNamespace
from typing import Any

import docker
import pytest

from tfbuild.engine import Engine
from tfbuild.engine import image as images
from tfbuild.engine.containers import archive
from tfbuild.engine.image import parse_image, read_files


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
    most = 2 + (1 << 20) + 3 * images.HEADER_BYTES
    with monkeypatch.context() as patch:
        patch.setattr(images, "MOST_CONTENT", most)
        assert read_files(image, lambda _: False, 0) == {}
        patch.setattr(images, "MOST_CONTENT", most - 1)
        with pytest.raises(OSError, match=f"it has more than {most - 1} bytes of files"):
            read_files(image, lambda _: False, 0)
