"""Count the instructions of machine code by the CPU features that they need. Nothing is executed.

capstone gives lengths and names. Instructions that it does not know (its tables end before AMX, AVX-VNNI, GFNI, BF16
and AVX512-FP16) are read by their opcode. facts/instructions.toml says which instruction needs which feature.
"""

import ctypes
import re
import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple

from tfbuild import facts
from tfbuild.facts import Facts

# The most that is decoded at once: the decoder needs 250 bytes for each instruction.
PIECE_BYTES = 16 * 1024
LONGEST_BYTES = 15  # bytes of an x86-64 instruction
VEX2, VEX3, EVEX, XOP = 0xC5, 0xC4, 0x62, 0x8F
PREFIXES = frozenset((0x26, 0x2E, 0x36, 0x3E, 0x64, 0x65, 0x66, 0x67, 0xF2, 0xF3))
MANDATORY = ("", "66", "f3", "f2")
WIDTHS = ("xmm", "ymm", "zmm", "zmm")  # by EVEX's field
IMMEDIATE = frozenset((0x70, 0x71, 0x72, 0x73, 0xC2, 0xC4, 0xC5, 0xC6))  # of map 0F; all of map 0F3A have one


class Named(Facts, frozen=True):
    """One row of x86 mnemonics; see facts/instructions.toml."""

    feature: str
    names: str
    encoding: str = ""
    width: str = ""
    operands: str = ""
    adds: bool = False


class Coded(Facts, frozen=True):
    """One row of opcodes that capstone cannot decode; `opcodes` empty: the whole map."""

    feature: str
    map: int
    encoding: str = ""
    opcodes: tuple[int, ...] = ()
    prefix: str | None = None
    width: str = ""


class Encoded(Facts, frozen=True):
    """A feature that an encoding needs beyond the features of the other rows."""

    feature: str
    encoding: str
    by_opcode: bool = False
    widths: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    scalar: str = ""


class Word(Facts, frozen=True):
    """One row of A64 encodings."""

    feature: str
    mask: int
    value: int
    adds: bool = False


class InstructionTable(Facts, frozen=True):
    x86: tuple[Named, ...]
    opcode: tuple[Coded, ...]
    encoded: tuple[Encoded, ...]
    arm: tuple[Word, ...]


class Opcode(NamedTuple):
    """An x86 instruction that capstone cannot decode; `width`: "", "xmm", "ymm" or "zmm"."""

    encoding: str
    map: int
    code: int
    prefix: str
    width: str
    length: int


@dataclass(frozen=True, kw_only=True)
class Counted:
    """All instructions, and those that need each feature. `unread`: bytes that are not instructions."""

    instructions: int
    needing: Counter[str]
    unread: int


def count(code: bytes, arch: str) -> Counted:
    """Count the instructions of `code`, which starts at one of them. `arch`: "x86_64" or "aarch64"."""
    times = Counter(_words(code)) if arch == "aarch64" else _x86(code)
    unread = times.pop(None, 0)
    needing: Counter[str] = Counter()
    for needed, number in times.items():
        for feature in needed or ():
            needing[feature] += number
    return Counted(instructions=sum(times.values()), needing=needing, unread=unread)


table = partial(facts.load, "instructions", InstructionTable)


# --- x86-64 --------------------------------------------------------------------------------------------------------


def _x86(code: bytes) -> Counter[frozenset[str] | None]:
    """Count the instructions by the features that they need; None counts the bytes that are not instructions."""
    times, start = Counter[frozenset[str] | None](), 0
    while start < len(code):
        piece = code[start : start + PIECE_BYTES]
        plain, others, end = _disassembled(piece)
        times[frozenset()] += plain
        for address, name, operands in others:
            memory, (encoding, width) = "[" in operands, _encoding(piece, address)
            # What is broadcast from memory may be wider than all registers: vcvtpd2ps, vfpclassps.
            if not (memory and width):
                width = next((width for width in ("zmm", "ymm", "xmm") if width in operands), "")
            times[_needs(name, encoding, width, memory)] += 1
        start += end
        # The decoder stops at an unknown instruction, and where the piece ends within an instruction.
        if start >= len(code) or (end and len(piece) == PIECE_BYTES and PIECE_BYTES - end < LONGEST_BYTES):
            continue
        opcode = read_opcode(code[start : start + LONGEST_BYTES])
        needed = _coded(opcode) if opcode else None
        times[needed] += 1
        start += opcode.length if opcode and needed is not None else 1
    return times


def _disassembled(code: bytes) -> tuple[int, list[tuple[int, str, str]], int]:
    """Decode up to the first instruction that capstone does not know.

    Returns how many every CPU has; address, mnemonic and operands of the others; and where decoding ended.
    capstone's own iterator makes Python objects of each instruction, which takes three times as long as decoding. Here
    only the numbers of instructions are read, at once, and the texts of those that some CPU lacks.
    """
    import capstone

    rows = ctypes.POINTER(capstone._cs_insn)()
    count = capstone._cs.cs_disasm(_decoder().csh, code, len(code), 0, 0, ctypes.byref(rows))
    if not count:
        return 0, [], 0
    try:
        size = ctypes.sizeof(capstone._cs_insn)
        numbers = memoryview(ctypes.string_at(rows, count * size)).cast("I")[:: size // 4].tolist()
        lacking = {number for number in set(numbers) if not _plain(_name(number))}
        others = [rows[index] for index, number in enumerate(numbers) if number in lacking]
        texts = [(row.address, row.mnemonic.decode("ascii"), row.op_str.decode("ascii")) for row in others]
        return count - len(texts), texts, rows[count - 1].address + rows[count - 1].size
    finally:
        capstone._cs.cs_free(rows, count)


@cache
def _decoder() -> Any:
    from capstone import CS_ARCH_X86, CS_MODE_64, Cs

    return Cs(CS_ARCH_X86, CS_MODE_64)


@cache
def _name(number: int) -> str:
    """Return the name that capstone makes anew for each call."""
    return str(_decoder().insn_name(number))


@cache
def _plain(name: str) -> bool:
    """Whether every CPU has the instruction, however it is encoded: nine in ten are."""
    named = (re.fullmatch(row.names, name.split()[-1]) for row in table().x86 if row.encoding not in ("evex", "xop"))
    return not name.startswith("v") and not any(named)


def _encoding(code: bytes, at: int) -> tuple[str, str]:
    """Return how an instruction is encoded, and the width of its vectors if that is EVEX."""
    while code[at] in PREFIXES:
        at += 1
    if code[at] == EVEX:
        return "evex", WIDTHS[code[at + 3] >> 5 & 3]
    return {VEX2: "vex", VEX3: "vex", XOP: "xop"}.get(code[at], "legacy"), ""


@cache
def _needs(name: str, encoding: str, width: str, memory: bool) -> frozenset[str]:
    """Return the features of an instruction; its mnemonic may have a prefix in front ("lock cmpxchg16b")."""
    name = name.split()[-1]
    needed = _first(
        row
        for row in table().x86
        if row.encoding in ("", encoding)
        and row.width in ("", width)
        and row.operands in ("", "memory" if memory else "register")
        and re.fullmatch(row.names, name)
    )
    return frozenset(needed | _of_encoding(encoding, width, needed, name))


def _first(matches: Iterable[Named | Word]) -> set[str]:
    """Return the feature of the first match without `adds`, and those of the matches before it."""
    needed: set[str] = set()
    for row in matches:
        needed.add(row.feature)
        if not row.adds:
            break
    return needed


def _of_encoding(encoding: str, width: str, needed: set[str], name: str = "") -> set[str]:
    """Return what the encoding needs beyond `needed`; without `name`, of an instruction that was read by its opcode."""
    return {
        row.feature
        for row in table().encoded
        if row.encoding == encoding
        and not (row.by_opcode and name)
        and (not row.widths or width in row.widths)
        and not needed & set(row.unless)
        and not (row.scalar and re.fullmatch(row.scalar, name))
    }


@lru_cache(maxsize=1 << 12)
def _coded(opcode: Opcode) -> frozenset[str] | None:
    """Return the features of an instruction that capstone does not know; None without a row: it is likely data."""
    needed = {
        row.feature
        for row in table().opcode
        if row.map == opcode.map
        and row.encoding in ("", opcode.encoding)
        and (not row.opcodes or opcode.code in row.opcodes)
        and row.prefix in (None, opcode.prefix)
        and row.width in ("", opcode.width)
    }
    return frozenset(needed | _of_encoding(opcode.encoding, opcode.width, needed)) if needed else None


def read_opcode(code: bytes) -> Opcode | None:
    """Return the VEX, EVEX, 0F38 or 0F3A instruction at the start of `code`, or None."""
    found = _opcode(code + bytes(2 * LONGEST_BYTES))
    return found if found and found.length <= len(code) else None


def _opcode(code: bytes) -> Opcode | None:
    at, prefix = 0, ""
    while code[at] in PREFIXES:
        prefix = f"{code[at]:02x}" if code[at] in (0x66, 0xF2, 0xF3) else prefix
        at += 1
    first = code[at]
    if first == VEX2:
        return _with_operands(code, at + 2, "vex", 1, code[at + 1])
    if first == VEX3:
        return _with_operands(code, at + 3, "vex", code[at + 1] & 0x1F, code[at + 2])
    if first == EVEX and not code[at + 1] & 8 and code[at + 2] & 4:
        return _with_operands(code, at + 4, "evex", code[at + 1] & 7, code[at + 2], code[at + 3])
    at += 0x40 <= first <= 0x4F  # REX
    if code[at] == 0x0F and code[at + 1] in (0x38, 0x3A):
        plain = MANDATORY.index(prefix)
        return _with_operands(code, at + 2, "legacy", 2 if code[at + 1] == 0x38 else 3, plain)
    return None


def _with_operands(code: bytes, at: int, encoding: str, table: int, fields: int, last: int = 0) -> Opcode | None:
    """Read on from the opcode byte. `fields`: the byte whose low bits are the mandatory prefix (VEX: and length)."""
    if table not in (1, 2, 3, 5, 6):
        return None
    opcode, modes = code[at], code[at + 1]
    mode, base = modes >> 6, modes & 7
    end = at + 2
    if mode != 3 and base == 4:
        base = code[end] & 7
        end += 1
    end += {0: 4 if base == 5 else 0, 1: 1, 2: 4, 3: 0}[mode]
    end += table == 3 or (table == 1 and opcode in IMMEDIATE)
    wide = fields >> 2 & 1 if encoding == "vex" else last >> 5 & 3
    width = "" if encoding == "legacy" else WIDTHS[wide]
    return Opcode(encoding, table, opcode, MANDATORY[fields & 3], width, end)


# --- A64 -----------------------------------------------------------------------------------------------------------


def _words(code: bytes) -> Iterator[frozenset[str] | None]:
    for (word,) in struct.iter_unpack("<I", code[: len(code) // 4 * 4]):
        yield _word(word)
    yield from [None] * (len(code) % 4)


@lru_cache(maxsize=1 << 16)
def _word(word: int) -> frozenset[str]:
    return frozenset(_first(row for row in table().arm if word & row.mask == row.value))
