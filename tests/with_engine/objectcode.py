"""What the test double's library says of itself, and which CPU features its machine code uses."""

import ctypes
import zipfile
from dataclasses import dataclass
from pathlib import Path

from elftools.elf.elffile import ELFFile

from tfbuild.binary import machinecode, scan


@dataclass(frozen=True, kw_only=True)
class Double:
    """What the double's wheel says of itself, what any of its instructions needs, and what `inspect` makes of it."""

    macros: frozenset[str]
    host_macros: frozenset[str]
    used: frozenset[str]
    inspected: frozenset[str]


def read(wheel: Path, folder: Path) -> Double:
    """Unpacks the double's wheel to `folder`, and reads its library."""
    with zipfile.ZipFile(wheel) as file:
        return read_library(Path(file.extract("tensorflow/libtensorflow_double.so", folder)))


def read_library(path: Path) -> Double:
    """Loads the library for the report, and disassembles it."""
    library = ctypes.CDLL(str(path))
    reports = []
    for name in ("double_macros", "double_host_macros"):
        function = getattr(library, name)
        function.restype = ctypes.c_char_p
        reports.append(frozenset(function().decode().split()))
    return Double(macros=reports[0], host_macros=reports[1], used=used(path), inspected=scan.read_code(path).compiled)


def used(library: Path) -> frozenset[str]:
    """The features (tfbuild's names) that at least one instruction of the library needs."""
    needed: set[str] = set()
    with library.open("rb") as file:
        for section in ELFFile(file).iter_sections():
            if section["sh_flags"] & 0x4:  # SHF_EXECINSTR
                needed |= set(machinecode.count(section.data(), "x86_64").needing)
    return frozenset(needed)
