"""CPUID: the raw words of the instruction, and the features whose bits they set (`cpuid` of facts/features.toml).

On Linux they come from glibc's loader (``ld.so --list-diagnostics``, since glibc 2.33; one millisecond). Its "active"
words also tell which registers the operating system saves. The loader sees what this process sees, even in an emulator,
and knows features that no kernel prints. It only queries the core that it runs on.
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

# The path is part of the x86-64 psABI; musl and others have no file there, or one without that option.
LOADER = Path("/lib64/ld-linux-x86-64.so.2")
LOADER_SECONDS = 5
# glibc's index of a leaf (sysdeps/x86/include/cpu-features.h, enum cpuid_register_index).
LEAVES = {0: (0x1, 0), 1: (0x7, 0), 2: (0x80000001, 0), 6: (0x7, 1)}
DIAGNOSED = re.compile(
    r"^x86\.cpu_features\.features\[0x([0-9a-f]{1,2})\]\.(cpuid|active)\[0x([0-3])\]=0x([0-9a-f]{1,8})$", re.MULTILINE
)
# One leaf a line, in decimal: leaf, sub-leaf, eax, ebx, ecx, edx.
LEAF = re.compile(r"[ \t]*" + r"[ \t]*,[ \t]*".join([r"(\d{1,10})"] * 6) + r"[ \t]*")

# Whether the operating system saves registers at all.
OSXSAVE = "1.0.ecx.27"


@dataclass(frozen=True, kw_only=True)
class Diagnostics:
    """The features that CPUID has for this process, and those whose registers the operating system saves."""

    cpuid: frozenset[str]
    usable: frozenset[str]


def features(words: Words) -> frozenset[str]:
    """Return the features, by canonical name, whose bits are set."""
    return frozenset(row.name for row in facts.features("x86_64") if row.cpuid and is_set(words, row.cpuid))


def is_set(words: Words, bit: str) -> bool:
    """Whether a bit such as "7.0.ebx.5" is set."""
    leaf, register, number = _position(bit)
    return leaf in words and bool(words[leaf][register] >> number & 1)


@cache
def _position(bit: str) -> tuple[tuple[int, int], int, int]:
    leaf, sub, register, number = bit.split(".")
    return (int(leaf, 16), int(sub)), REGISTERS.index(register), int(number)


def leaves(text: str) -> Words:
    """Return the words of a recording with one leaf a line; empty if the first line is not one."""
    words: dict[tuple[int, int], tuple[int, int, int, int]] = {}
    for line in text.strip().splitlines():
        match = LEAF.fullmatch(line)
        if not match:
            break
        leaf, sub, a, b, c, d = map(int, match.groups())
        words[leaf, sub] = (a, b, c, d)
    return words


def vendor(words: Words) -> str:
    _, b, c, d = words.get((0, 0), (0, 0, 0, 0))
    return _text(b, d, c)


def brand(words: Words) -> str:
    return _text(*(word for leaf in range(0x80000002, 0x80000005) for word in words.get((leaf, 0), ())))


def _text(*words: int) -> str:
    data = b"".join(struct.pack("<I", word & 0xFFFFFFFF) for word in words)
    return data.decode("ascii", errors="replace").replace("\0", "").strip()


def diagnostics(text: str) -> Diagnostics | None:
    """Read the loader's diagnostics in `text`; None if there are none.

    A feature is usable if CPUID has it and the registers that it works on are active. glibc does the same for the
    features that it knows (update_active in sysdeps/x86/cpu-features.c), which can be fewer than CPUID has.
    """
    words: dict[str, dict[tuple[int, int], list[int]]] = {"cpuid": {}, "active": {}}
    for index, kind, register, value in DIAGNOSED.findall(text):
        if (leaf := LEAVES.get(int(index, 16))) is not None:
            words[kind].setdefault(leaf, [0, 0, 0, 0])[int(register)] = int(value, 16)
    if not words["cpuid"] or not words["active"]:
        return None
    cpuid, active = (features({leaf: (*row,) for leaf, row in words[k].items()}) for k in ("cpuid", "active"))  # type: ignore[misc]
    registers = {row.name for row in facts.features("x86_64") if row.registers}
    usable = (name for name in cpuid if facts.closure([name]) & registers <= active)
    return Diagnostics(cpuid=cpuid, usable=frozenset(usable))


@cache
def loader(path: Path = LOADER) -> str:
    """Return what this machine's loader prints about the CPU, or "" without a glibc that can.

    The environment is empty: GLIBC_TUNABLES could mask features, but does not change what TensorFlow can use.
    """
    try:
        done = subprocess.run(
            [str(path), "--list-diagnostics"], capture_output=True, env={}, timeout=LOADER_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", errors="replace") if done.returncode == 0 else ""
