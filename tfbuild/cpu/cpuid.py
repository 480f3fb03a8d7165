"""CPUID: raw words of the instruction, and the features whose bits are set in them (`cpuid` of facts/features.toml).

On Linux they come from glibc's loader (``ld.so --list-diagnostics``, since glibc 2.33; one millisecond), which also
says which registers the operating system saves: its "active" words. It sees what this process sees, also in an
emulator, and knows features that no kernel prints. It asks the one core that it runs on.
"""

import re
import struct
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tfbuild import facts

# (leaf, sub-leaf) -> the registers in this order.
REGISTERS = ("eax", "ebx", "ecx", "edx")
Words = Mapping[tuple[int, int], tuple[int, int, int, int]]

# The path is part of the x86-64 psABI; musl and others have no file there, or one that knows no such option.
LOADER = Path("/lib64/ld-linux-x86-64.so.2")
LOADER_SECONDS = 5
# glibc's index of a leaf (sysdeps/x86/include/cpu-features.h, enum cpuid_register_index).
LEAVES = {0: (0x1, 0), 1: (0x7, 0), 2: (0x80000001, 0), 6: (0x7, 1)}
DIAGNOSED = re.compile(
    r"^x86\.cpu_features\.features\[0x([0-9a-f]{1,2})\]\.(cpuid|active)\[0x([0-3])\]=0x([0-9a-f]{1,8})$", re.MULTILINE
)
# One leaf a line, in decimal: leaf, sub-leaf, eax, ebx, ecx, edx.
LEAF = re.compile(r"[ \t]*" + r"[ \t]*,[ \t]*".join([r"(\d{1,10})"] * 6) + r"[ \t]*")

# The features that stand for registers which the operating system must save (XCR0): AVX's, AVX-512's and AMX's.
STATES = frozenset({"avx", "avx512f", "amx_tile"})
OSXSAVE = "1.0.ecx.27"


@dataclass(frozen=True, kw_only=True)
class Diagnostics:
    """What CPUID has for this process, and what of it can be used since the operating system saves its registers."""

    cpuid: frozenset[str]
    usable: frozenset[str]


def features(words: Words) -> frozenset[str]:
    """The features, by canonical name, whose bits are set."""
    return frozenset(row.name for row in facts.features("x86_64") if row.cpuid and is_set(words, row.cpuid))


def is_set(words: Words, bit: str) -> bool:
    leaf, register, number = _place(bit)
    return leaf in words and bool(words[leaf][register] >> number & 1)


@cache
def _place(bit: str) -> tuple[tuple[int, int], int, int]:
    leaf, sub, register, number = bit.split(".")
    return (int(leaf, 16), int(sub)), REGISTERS.index(register), int(number)


def leaves(text: str) -> Words:
    """The words of a recording with one leaf a line; empty where the first line is none."""
    found: dict[tuple[int, int], tuple[int, int, int, int]] = {}
    for line in text.strip().splitlines():
        match = LEAF.fullmatch(line)
        if not match:
            break
        leaf, sub, a, b, c, d = map(int, match.groups())
        found[leaf, sub] = (a, b, c, d)
    return found


def vendor(words: Words) -> str:
    _, b, c, d = words.get((0, 0), (0, 0, 0, 0))
    return _text(b, d, c)


def brand(words: Words) -> str:
    return _text(*(word for leaf in range(0x80000002, 0x80000005) for word in words.get((leaf, 0), ())))


def _text(*words: int) -> str:
    data = b"".join(struct.pack("<I", word & 0xFFFFFFFF) for word in words)
    return data.decode("ascii", errors="replace").replace("\0", "").strip()


def diagnostics(text: str) -> Diagnostics | None:
    """What the loader's diagnostics in `text` say; None where there are none.

    A feature is usable where CPUID has it and the registers that it works on are active. So glibc does itself for
    those that it knows (update_active in sysdeps/x86/cpu-features.c); an older glibc knows fewer than CPUID has.
    """
    words: dict[str, dict[tuple[int, int], list[int]]] = {"cpuid": {}, "active": {}}
    for index, kind, register, value in DIAGNOSED.findall(text):
        if (leaf := LEAVES.get(int(index, 16))) is not None:
            words[kind].setdefault(leaf, [0, 0, 0, 0])[int(register)] = int(value, 16)
    if not words["cpuid"] or not words["active"]:
        return None
    cpuid, active = (features({leaf: (*row,) for leaf, row in words[k].items()}) for k in ("cpuid", "active"))  # type: ignore[misc]
    usable = (name for name in cpuid if facts.closure([name]) & STATES <= active)
    return Diagnostics(cpuid=cpuid, usable=frozenset(usable))


@cache
def loader(path: Path = LOADER) -> str:
    """What this machine's loader prints about the CPU; "" where there is no glibc that does.

    The environment is left out: GLIBC_TUNABLES could mask features, and has no say in what TensorFlow can use.
    """
    try:
        done = subprocess.run(
            [str(path), "--list-diagnostics"], capture_output=True, env={}, timeout=LOADER_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", errors="replace") if done.returncode == 0 else ""
