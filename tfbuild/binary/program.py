"""Read what kind of program or library an ELF file is, without executing it."""

import io
import re
from dataclasses import dataclass

from elftools.common.exceptions import ELFError
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

ARCHES = {"x64": "x86_64", "AArch64": "aarch64"}
# CPython linked into one program calls one of these; otherwise the program needs libpython.
MAINS = frozenset({"Py_BytesMain", "_Py_UnixMain", "Py_Main"})
SHARED = re.compile(r"libpython(3\.\d+)m?\.so[.\d]*")
VERSION = re.compile(rb"\x00(3\.\d{1,2})\.\d{1,3}[a-z0-9+]*\x00")


@dataclass(frozen=True, kw_only=True)
class Program:
    """An ELF file: the names that it defines for others, and the libraries that it needs."""

    arch: str
    exports: frozenset[str]
    needed: tuple[str, ...]


def read_program(content: bytes) -> Program:
    """Read an ELF file. Raises ValueError if it is none, or a damaged one."""
    try:
        elf = ELFFile(io.BytesIO(content))
        symbols, dynamic = elf.get_section_by_name(".dynsym"), elf.get_section_by_name(".dynamic")
        exports = symbols.iter_symbols() if isinstance(symbols, SymbolTableSection) else ()
        tags = dynamic.iter_tags("DT_NEEDED") if isinstance(dynamic, DynamicSection) else ()
        return Program(
            arch=ARCHES.get(elf.get_machine_arch(), elf.get_machine_arch()),
            exports=frozenset(symbol.name for symbol in exports if symbol["st_shndx"] != "SHN_UNDEF"),
            # pyelftools adds this attribute to tags of this kind.
            needed=tuple(str(tag.needed) for tag in tags),  # type: ignore[attr-defined]
        )
    # pyelftools raises various errors for damaged files.
    except (ELFError, ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"no ELF program ({str(error)[:100] or type(error).__name__})") from error


def python_version(content: bytes, program: Program) -> str:
    """Return the version ("3.11") of the CPython in a program, or of the libpython that it needs; "" if it is none."""
    for name in program.needed:
        if match := SHARED.fullmatch(name):
            return match.group(1)
    if not program.exports & MAINS:
        return ""
    versions = {match.decode() for match in VERSION.findall(content)}
    return max(versions, key=lambda version: int(version.partition(".")[2]), default="")
