"""Images by their names and labels, and the links among their files."""

import errno
import io
import stat
import tarfile
from types import SimpleNamespace
from typing import Any

import docker
import pytest

from tests.rows import each
from tfbuild.engine import Engine, FileEntry, Files
from tfbuild.engine import image as images
from tfbuild.engine.containers import archive
from tfbuild.engine.image import MOST_STEPS, parse_image, read_files

LINKS = {"/lib": "usr/lib", "/opt/python": "/usr/bin/python3", "/usr/bin/python3": "python3.11"} | {
    "/circle": "/round",
    "/round": "circle",
}
CHAIN = {f"/{number}": f"/{number + 1}" for number in range(MOST_STEPS - 2)}


def files(*paths: str, links: dict[str, str]) -> Files:
    entries = {path: FileEntry(mode=stat.S_IFREG, uid=0, gid=0) for path in paths}
    entries |= {path: FileEntry(mode=stat.S_IFLNK, uid=0, gid=0, target=target) for path, target in links.items()}
    return Files(files={}, links={}, entries=entries)


@each(
    "path, target",
    [
        ("/opt/python", "/usr/bin/python3.11"),
        ("/lib/python3.11/os.py", "/usr/lib/python3.11/os.py"),
        ("/usr/lib/../bin/./python3", "/usr/bin/python3.11"),
        ("/circle", ""),
        ("/none", ""),
        ("/../../usr/bin/python3.11", "/usr/bin/python3.11"),
    ],
)
def test_links_are_followed_as_the_kernel_does_in_the_image(path: str, target: str) -> None:
    assert files("/usr/bin/python3.11", "/usr/lib/python3.11/os.py", links=LINKS).resolve(path) == target


def test_only_so_many_links_are_followed() -> None:
    end = f"/{MOST_STEPS - 2}"
    assert files(end, links=CHAIN).resolve("/0") == end
    assert files(end, links={**CHAIN, "/more": "/0"}).resolve("/more") == ""


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
    assert read.files == {"/a": b"one", "/b": b"four"}
    assert {*read.entries} == {"/a", "/b", "/c"}
    with pytest.raises(OSError, match="larger than what is left of the limit") as error:
        read_files(image, {"/a", "/b"}.__contains__, 6)
    assert (error.value.errno, error.value.filename) == (errno.EFBIG, "/b")


def test_the_kind_the_owner_and_the_capabilities_of_each_file_are_read() -> None:
    kinds = {"d": tarfile.DIRTYPE, "l": tarfile.SYMTYPE, "null": tarfile.CHRTYPE, "ping": tarfile.REGTYPE}
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as out:
        for name, kind in kinds.items():
            member = tarfile.TarInfo(name)
            member.type, member.mode, member.uid, member.gid = kind, 0o640, 1, 2
            member.linkname = "d" if name == "l" else ""
            member.pax_headers = {"SCHILY.xattr.security.capability": "x"} if name == "ping" else {}
            out.addfile(member)
    found = read_files(SimpleNamespace(export=lambda _: iter([stream.getvalue()])), lambda _: False, 0).entries
    assert found == {
        "/d": FileEntry(mode=stat.S_IFDIR | 0o640, uid=1, gid=2),
        "/l": FileEntry(mode=stat.S_IFLNK | 0o640, uid=1, gid=2, target="d"),
        "/null": FileEntry(mode=stat.S_IFCHR | 0o640, uid=1, gid=2),
        "/ping": FileEntry(mode=stat.S_IFREG | 0o640, uid=1, gid=2, capable=True),
    }


@each(
    "limit, most, what",
    [
        ("MOST_ENTRIES", 3, "files"),
        ("MOST_NAMES", 17, "letters in their names"),
        ("MOST_CONTENT", 2 + (1 << 20), "bytes of files"),
    ],
)
def test_an_image_of_endless_files_is_not_read_to_its_end(
    limit: str, most: int, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = container(("/a", b"x"), ("/folder/b", b"y"), ("/zeros", bytes(1 << 20)))
    with monkeypatch.context() as patch:
        patch.setattr(images, limit, most)
        assert read_files(image, lambda _: False, 0).entries.keys() == {"/a", "/folder/b", "/zeros"}
        patch.setattr(images, limit, most - 1)
        with pytest.raises(OSError, match=f"it has more than {most - 1} {what}"):
            read_files(image, lambda _: False, 0)


def test_whoever_is_told_of_the_parts_can_end_the_reading_within_a_large_file(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = iter([archive({"/zeros": bytes(1 << 20)})[:4096]] + [bytes(4096)] * 99)
    image = SimpleNamespace(export=lambda _: parts)

    def end(part: str) -> None:
        if part == "part 9":
            raise KeyboardInterrupt

    monkeypatch.setattr(images, "STREAM_BYTES", 4096)
    with pytest.raises(KeyboardInterrupt):
        read_files(image, lambda _: False, 0, end)
    assert len([*parts]) == 90
