"""Bytes of a library -> the features that it was compiled for; executes nothing, talks to nobody.

This module reads ELF files: the headers and contents of their sections. The file is untrusted: LibraryUnreadable gives
the reason where it is not a whole ELF file, or exceeds a limit.
"""

import mmap
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from tfbuild.errors import BadInput

# Limits for reading. TensorFlow 2.21: 60 sections, a symbol table of 3 MB and 10 MB of names, 2 KB functions.
MOST_SECTIONS = 1000
MOST_TABLE = 128 * 1024 * 1024
MOST_CODE = 64 * 1024
# The longest name of a section. Names may overlap, so that a small file can have many long ones.
MOST_NAME = 256

ARCHES = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64"}
SYMBOL = struct.Struct("<IBBHQQ")  # Elf64_Sym: name, info, other, section, value, size
FUNCTION = 2  # STT_FUNC


class LibraryUnreadable(BadInput):
    """A library is not a whole ELF file, or what is looked for in it is missing."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, hint="give a 64-bit ELF library; download or build a damaged one again")


@dataclass(frozen=True)
class Section:
    """The header of a section: `kind` as in SHT_PROGBITS, `address` when loaded, `offset` in the file, `size`."""

    name: str
    kind: str
    address: int
    offset: int
    size: int


@dataclass(frozen=True)
class Library:
    """A mapped ELF file and its section headers; section contents are read raw (never decompressed)."""

    image: mmap.mmap
    machine: str
    sections: tuple[Section, ...]

    @classmethod
    def parse(cls, image: mmap.mmap) -> "Library":
        """Read the headers. Raises LibraryUnreadable."""
        if image[:4] != b"\x7fELF":
            raise LibraryUnreadable("not an ELF library: only libraries of Linux can be read")
        try:
            return cls(image, *_headers(image))
        except LibraryUnreadable:
            raise
        except Exception as error:  # pyelftools raises anything for a broken file
            raise LibraryUnreadable(f"not a whole ELF library: {type(error).__name__} {error}") from error

    def section(self, name: str) -> Section | None:
        """Return the section of that name, if it has content; raise LibraryUnreadable if the file ends before it."""
        found = next((row for row in self.sections if row.name == name and row.kind != "SHT_NOBITS"), None)
        if found and found.offset + found.size > len(self.image):
            raise LibraryUnreadable(f"the library's {name} is cut off")
        return found

    def content(self, name: str) -> bytes:
        """Return the raw bytes of a section; raise LibraryUnreadable if it is missing, cut off or far too large."""
        section = self.section(name)
        if section is None:
            raise LibraryUnreadable(f"the library has no {name}: it was stripped, so its CPU guard cannot be found")
        if section.size > MOST_TABLE:
            raise LibraryUnreadable(f"the library's {name} is far too large")
        return self.image[section.offset : section.offset + section.size]

    def code(self, address: int, size: int) -> bytes:
        """Return at most `size` bytes of the code at a virtual address; empty if there is none."""
        for section in self.sections:
            inside = address - section.address
            if section.kind == "SHT_PROGBITS" and section.address and 0 <= inside < section.size:
                start = section.offset + inside
                return self.image[start : start + min(size, section.size - inside, MOST_CODE)]
        return b""


@contextmanager
def opened(path: Path, name: str, most: int) -> Iterator[tuple[Library, int]]:
    """Open a library of at most `most` bytes; yield it and its file's descriptor. Raises LibraryUnreadable."""
    try:
        with path.open("rb") as file:
            if (size := path.stat().st_size) > most:
                raise LibraryUnreadable(f"{name} has {size} bytes: too large to be a library")
            if not size:
                raise LibraryUnreadable(f"{name} is empty")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as image:
                yield Library.parse(image), file.fileno()
    except OSError as error:
        raise LibraryUnreadable(f"{name} cannot be read: {error.strerror}") from error


def _headers(image: mmap.mmap) -> tuple[str, tuple[Section, ...]]:
    from elftools.common.utils import struct_parse
    from elftools.elf.elffile import ELFFile

    stream = cast(IO[bytes], image)
    elf = ELFFile(stream)
    if elf.elfclass != 64 or not elf.little_endian or elf.num_sections() > MOST_SECTIONS:
        raise LibraryUnreadable("the library is not a 64-bit little-endian ELF file with a sane number of sections")
    # Not iter_sections(), which reads the whole hash table of the symbols, and names of any length.
    places = (elf["e_shoff"] + number * elf["e_shentsize"] for number in range(elf.num_sections()))
    headers = [struct_parse(elf.structs.Elf_Shdr, stream, stream_pos=place) for place in places]
    names = headers[elf.get_shstrndx()].sh_offset if headers else 0
    return str(elf.header.e_machine), tuple(
        Section(string(image, names + row.sh_name), str(row.sh_type), row.sh_addr, row.sh_offset, row.sh_size)
        for row in headers
    )


def string(content: mmap.mmap, offset: int) -> str:
    """Return the name that starts at `offset`, cut at MOST_NAME bytes."""
    return content[offset : offset + MOST_NAME].partition(b"\0")[0].decode("latin-1")


def table_rows(kind: struct.Struct, content: bytes) -> Iterator[tuple[int, ...]]:
    """Yield the rows of a table, without a last one that is cut off."""
    return kind.iter_unpack(content[: len(content) // kind.size * kind.size])
