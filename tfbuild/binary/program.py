"""Read what kind of program or library an ELF file is, without executing it."""

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from tfbuild.binary.elf import ARCHES, SYMBOL, Library, LibraryUnreadable, rows, string

# CPython linked into one program calls one of these; otherwise the program needs libpython.
MAINS = frozenset({"Py_BytesMain", "_Py_UnixMain", "Py_Main"})
TCMALLOC = "tc_malloc"
# The names that are looked for. A program may define any number of others, of any length.
WANTED = (*sorted(MAINS), TCMALLOC)
DYNAMIC = struct.Struct("<qQ")  # Elf64_Dyn: tag, value
NEEDED = 1  # DT_NEEDED
# Upper bounds of what is kept: of the places of a name that is looked for, and of needed libraries.
MOST_PLACES, MOST_NEEDED = 1000, 500
SHARED = re.compile(r"libpython(3\.\d+)m?\.so[.\d]*")
VERSION = re.compile(rb"\x00(3\.\d{1,2})\.\d{1,3}[a-z0-9+]*\x00")


@dataclass(frozen=True, kw_only=True)
class Program:
    """An ELF file: the WANTED names that it defines for others, and the libraries that it needs."""

    arch: str
    exports: frozenset[str]
    needed: tuple[str, ...]


def read_program(content: bytes) -> Program:
    """Read a 64-bit ELF file. Raises ValueError if it is not one, or a damaged one."""
    try:
        library = Library.parse(content)
        return Program(
            arch=ARCHES.get(library.machine, library.machine),
            exports=frozenset(_exports(library)),
            needed=tuple(_needed(library)),
        )
    except Exception as error:  # pyelftools raises anything for a broken file
        reason = error.reason if isinstance(error, LibraryUnreadable) else str(error) or type(error).__name__
        raise ValueError(f"not an ELF program ({reason[:100]})") from error


def _exports(library: Library) -> Iterator[str]:
    """Yield the WANTED names that some symbol defines."""
    if library.section(".dynsym") is None:
        return
    places = _places(library.content(".dynstr"))
    for name, _, _, section, _, _ in rows(SYMBOL, library.content(".dynsym")):
        if section and name in places:
            yield places[name]


def _places(strings: bytes) -> dict[int, str]:
    """Return where in a string table the WANTED names begin, also as the ends of other names."""
    places: dict[int, str] = {}
    for name in WANTED:
        for match in re.finditer(re.escape(name.encode()) + b"\0", strings):
            places[match.start()] = name
            if len(places) > MOST_PLACES:
                raise ValueError("it has the same name far too often")
    return places


def _needed(library: Library) -> Iterator[str]:
    if library.section(".dynamic") is None:
        return
    values = [value for tag, value in rows(DYNAMIC, library.content(".dynamic")) if tag == NEEDED]
    if len(values) > MOST_NEEDED:
        raise ValueError(f"it needs {len(values)} libraries")
    strings = library.content(".dynstr") if values else b""
    yield from (string(strings, value) for value in values)


def python_version(content: bytes, program: Program) -> str:
    """Return the version ("3.11") of the CPython in a program, or of the libpython that it needs; "" for others."""
    for name in program.needed:
        if match := SHARED.fullmatch(name):
            return match.group(1)
    if not program.exports & MAINS:
        return ""
    versions = {match[1].decode() for match in VERSION.finditer(content)}
    return max(versions, key=lambda version: int(version.partition(".")[2]), default="")
