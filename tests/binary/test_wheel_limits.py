"""Wheels that would fill the memory or the disk of whoever reads or installs them are refused before."""

import struct
import tracemalloc
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.rows import each
from tfbuild.binary import inspector
from tfbuild.errors import BadInput

TEXT = "x.dist-info/METADATA"
NAME = "tensorflow_cpu-2.14.0-cp311-cp311-linux_x86_64.whl"
MANY = 32 << 20
MOST_MEMORY = 16 << 20


@contextmanager
def little_memory(most: int) -> Iterator[None]:
    """Run a block that has no more of Python's memory than `most` bytes at any time."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        # Else the peak of this block would be that of every later one, too.
        tracemalloc.stop()


def patched(path: Path, size: int, crc: int | None = None) -> Path:
    """Say of the first file, in its own head and in the list of files, that it has another size, and checksum."""
    content = bytearray(path.read_bytes())
    for at in (content.index(b"PK\3\4") + 14, content.index(b"PK\1\2") + 16):
        (before, packed, _) = struct.unpack_from("<3L", content, at)
        struct.pack_into("<3L", content, at, before if crc is None else crc, packed, size)
    path.write_bytes(content)
    return path


def made(path: Path, content: bytes = b"text", method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        member = zipfile.ZipInfo(TEXT)
        member.compress_type = method
        archive.writestr(member, content)
    return path


def listed(path: Path) -> Path:
    """A list of members of more than 16 MiB."""
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(300):
            member = zipfile.ZipInfo(str(number))
            member.extra = struct.pack("<HH", 0x9999, 60_000) + bytes(60_000)
            archive.writestr(member, b"")
    return path


def overlapping(path: Path) -> Path:
    """A thousand members that are one."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, warnings.catch_warnings(action="ignore"):
        archive.writestr(TEXT, bytes(8 << 20))
        archive.filelist *= 1000
    return path


BOMBS: list[tuple[Callable[[Path], Path], str]] = [
    (lambda path: made(path, bytes(MANY), zipfile.ZIP_BZIP2), "is not compressed by deflate"),
    (lambda path: made(path, bytes(MANY), zipfile.ZIP_LZMA), "is not compressed by deflate"),
    (lambda path: made(path, bytes(9 << 20)), f"{NAME} has a {TEXT} of 9 MiB"),
    (lambda path: patched(made(path, b"text" + bytes(MANY)), 4), "Bad CRC-32"),
    (lambda path: patched(made(path), 1 << 30), f"{NAME} has a {TEXT} of 1024 MiB"),
    (overlapping, f"{NAME} would be unpacked to 8,000 MiB"),
    (listed, f"{NAME} cannot be read: more than 16777216 bytes"),
]


@each("bomb, told", BOMBS)
def test_a_bomb_is_refused_with_little_memory(bomb: Callable[[Path], Path], told: str, tmp_path: Path) -> None:
    path = bomb(tmp_path / NAME)
    with little_memory(MOST_MEMORY), pytest.raises(BadInput, match=told) as caught:
        read(path)
    assert caught.value.hint


def read(path: Path, to: str = "/dev/null") -> None:
    with inspector.open_archive(path) as archive, open(to, "wb", buffering=0) as out:
        out.write(inspector.text_in(archive, TEXT))


def test_a_full_disk_is_not_taken_for_a_bad_wheel(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left"):
        read(made(tmp_path / NAME), "/dev/full")
