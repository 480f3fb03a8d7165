"""Bytes of a library -> the features that it was compiled for; executes nothing, talks to nobody.

This module reads ELF files: the headers and contents of their sections. The file is untrusted: LibraryUnreadable gives
the reason where it is not a whole ELF file, or exceeds a limit.
"""

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

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
    """An open ELF file of `size` bytes and its section headers; contents are read raw (never decompressed).

    It is read piece by piece: if it were mapped, the kernel would keep much more of it in memory.
    """

    file: int
    size: int
    machine: str
    sections: tuple[Section, ...]

    def read(self, offset: int, size: int) -> bytes:
        """Return at most `size` bytes of the file, fewer where it ends."""
        return os.pread(self.file, size, min(offset, self.size))

    def section(self, name: str) -> Section | None:
        """Return the section of that name, if it has content; raise LibraryUnreadable if the file ends before it."""
        found = next((row for row in self.sections if row.name == name and row.kind != "SHT_NOBITS"), None)
        if found and found.offset + found.size > self.size:
            raise LibraryUnreadable(f"the library's {name} is cut off")
        return found

    def content(self, name: str) -> bytes:
        """Return the raw bytes of a section; raise LibraryUnreadable if it is missing, cut off or far too large."""
        section = self.section(name)
        if section is None:
            raise LibraryUnreadable(f"the library has no {name}: it was stripped, so its CPU guard cannot be found")
        if section.size > MOST_TABLE:
            raise LibraryUnreadable(f"the library's {name} is far too large")
        return self.read(section.offset, section.size)

    def rows(self, kind: struct.Struct, name: str) -> Iterator[tuple[int, ...]]:
        """Yield the rows of a section, without a last one that is cut off; raise as content()."""
        content = self.content(name)
        return kind.iter_unpack(content[: len(content) // kind.size * kind.size])

    def code(self, address: int, size: int) -> bytes:
        """Return at most `size` bytes of the code at a virtual address; empty if there is none."""
        for section in self.sections:
            inside = address - section.address
            if section.kind == "SHT_PROGBITS" and section.address and 0 <= inside < section.size:
                return self.read(section.offset + inside, min(size, section.size - inside, MOST_CODE))
        return b""


@contextmanager
def opened(path: Path, name: str, most: int) -> Iterator[Library]:
    """Open a library of at most `most` bytes. Raises LibraryUnreadable."""
    try:
        with path.open("rb") as file:
            if (size := path.stat().st_size) > most:
                raise LibraryUnreadable(f"{name} has {size} bytes: too large to be a library")
            yield Library(file.fileno(), size, *_headers(file))
    except OSError as error:
        raise LibraryUnreadable(f"{name} cannot be read: {error.strerror}") from error


def _headers(file: IO[bytes]) -> tuple[str, tuple[Section, ...]]:
    from elftools.common.utils import struct_parse
    from elftools.elf.elffile import ELFFile

    if file.read(4) != b"\x7fELF":
        raise LibraryUnreadable("not an ELF library: only libraries of Linux can be read")
    try:
        elf = ELFFile(file)
        if elf.elfclass != 64 or not elf.little_endian or elf.num_sections() > MOST_SECTIONS:
            raise LibraryUnreadable("the library is not a 64-bit little-endian ELF file with a sane number of sections")
        # Not iter_sections(), which reads the whole hash table of the symbols, and names of any length.
        places = (elf["e_shoff"] + number * elf["e_shentsize"] for number in range(elf.num_sections()))
        headers = [struct_parse(elf.structs.Elf_Shdr, file, stream_pos=place) for place in places]
        names = headers[elf.get_shstrndx()].sh_offset if headers else 0
        return str(elf.header.e_machine), tuple(
            Section(_string(file, names + row.sh_name), str(row.sh_type), row.sh_addr, row.sh_offset, row.sh_size)
            for row in headers
        )
    except LibraryUnreadable:
        raise
    except Exception as error:  # pyelftools raises anything for a broken file
        raise LibraryUnreadable(f"not a whole ELF library: {type(error).__name__} {error}") from error


def _string(file: IO[bytes], offset: int) -> str:
    """Return the name that starts at `offset`, cut at MOST_NAME bytes."""
    file.seek(offset)
    return file.read(MOST_NAME).partition(b"\0")[0].decode("latin-1")
