"""Which CPU features the machine code of a library uses, by capstone's word for each of its instructions."""

import ctypes
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path

import capstone
from capstone import x86
from elftools.elf.elffile import ELFFile

GROUPS = {
    x86.X86_GRP_SSE3: "sse3",
    x86.X86_GRP_SSSE3: "ssse3",
    x86.X86_GRP_SSE41: "sse4_1",
    x86.X86_GRP_SSE42: "sse4_2",
    x86.X86_GRP_AES: "aes",
    x86.X86_GRP_PCLMUL: "pclmulqdq",
    x86.X86_GRP_AVX: "avx",
    x86.X86_GRP_AVX2: "avx2",
    x86.X86_GRP_FMA4: "fma4",
    x86.X86_GRP_XOP: "xop",
    x86.X86_GRP_F16C: "f16c",
    x86.X86_GRP_BMI: "bmi1",
    x86.X86_GRP_BMI2: "bmi2",
    x86.X86_GRP_AVX512: "avx512f",
    x86.X86_GRP_BWI: "avx512bw",
    x86.X86_GRP_CDI: "avx512cd",
    x86.X86_GRP_DQI: "avx512dq",
    x86.X86_GRP_VLX: "avx512vl",
}
# Instructions that capstone puts into no group of their own.
NAMES = {"popcnt": "popcnt", "lzcnt": "lzcnt", "movbe": "movbe", "cmpxchg16b": "cx16", "crc32": "sse4_2"}
FMA = re.compile(r"vfn?m(add|sub|addsub|subadd)\d{3}[ps][sd]")
# The encoding of tzcnt is `rep bsf`, which compilers write for every CPU: older ones run it as bsf.
EVERYWHERE = {"tzcnt"}


@dataclass(frozen=True, kw_only=True)
class Double:
    """What the double's wheel says of itself, and what its machine code shows."""

    macros: frozenset[str]
    host_macros: frozenset[str]
    used: frozenset[str]


def read(wheel: Path, folder: Path) -> Double:
    """Unpacks the double's wheel to `folder`, loads its library for the report, and disassembles it."""
    with zipfile.ZipFile(wheel) as file:
        path = Path(file.extract("tensorflow/libtensorflow_double.so", folder))
    library = ctypes.CDLL(str(path))
    reports = []
    for name in ("double_macros", "double_host_macros"):
        function = getattr(library, name)
        function.restype = ctypes.c_char_p
        reports.append(frozenset(function().decode().split()))
    return Double(macros=reports[0], host_macros=reports[1], used=used(path))


def used(library: Path) -> frozenset[str]:
    """The features (tfbuild's names) that at least one instruction of the library needs."""
    machine = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    machine.detail = True
    machine.skipdata = True
    found: set[str] = set()
    with library.open("rb") as file:
        for section in ELFFile(file).iter_sections():
            if section["sh_flags"] & 0x4:  # SHF_EXECINSTR
                for one in machine.disasm(section.data(), section["sh_addr"]):
                    found |= needs(one) if one.id else set()
    return frozenset(found)


def needs(one: capstone.CsInsn) -> set[str]:
    """The features that one instruction needs; its mnemonic can have a prefix in front ("lock cmpxchg16b")."""
    name = one.mnemonic.split()[-1]
    if name in EVERYWHERE:
        return set()
    found = {GROUPS[group] for group in one.groups if group in GROUPS}
    if name in NAMES:
        found.add(NAMES[name])
    if FMA.match(name):
        found.add("fma")
    return found
