"""Which CPU features machine code needs, instruction by instruction. Bytes in, counts out; nothing is executed.

capstone gives lengths and names; what it does not know (its tables end before AMX, AVX-VNNI, GFNI, BF16 and
AVX512-FP16) is read by its opcode. What needs which feature stands in facts/instructions.toml.
"""

import re
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, NamedTuple

from tfbuild import facts
from tfbuild.facts import Facts

# The largest piece that is decoded at once: the decoder makes 250 bytes out of each instruction.
PIECE = 16 * 1024
LONGEST = 15  # bytes of an x86-64 instruction
VEX2, VEX3, EVEX, XOP = 0xC5, 0xC4, 0x62, 0x8F
PREFIXES = frozenset((0x26, 0x2E, 0x36, 0x3E, 0x64, 0x65, 0x66, 0x67, 0xF2, 0xF3))
MANDATORY = ("", "66", "f3", "f2")
IMMEDIATE = frozenset((0x70, 0x71, 0x72, 0x73, 0xC2, 0xC4, 0xC5, 0xC6))  # of map 0F; all of map 0F3A have one
# Those of EVEX's that work on one element, and so need no AVX512VL.
SCALAR = re.compile(
    r"v(?!p)\w*s[sd]|vcvtt?s[sd]2u?si|vcvtu?si2s[sd]|vmov[dq]|vmov[hl]p[sd]|vmovhlps|vmovlhps|vextractps|vinsertps"
    r"|vp(ext|ins)r[bwdq]"
)
NONE: frozenset[str] = frozenset()


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


class Word(Facts, frozen=True):
    """One row of A64 encodings."""

    feature: str
    mask: int
    value: int


class InstructionTable(Facts, frozen=True):
    x86: tuple[Named, ...]
    opcode: tuple[Coded, ...]
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
    """Instructions in all, and of each feature those that need it; `unread`: bytes that are no instruction."""

    instructions: int
    needing: Counter[str]
    unread: int


def count(code: bytes, arch: str) -> Counted:
    """What the instructions of `code` need, which starts at one of them; `arch` "x86_64" or "aarch64"."""
    found = _words(code) if arch == "aarch64" else _x86(code)
    kinds = Counter(found)
    unread = kinds.pop(None, 0)
    needing: Counter[str] = Counter()
    for needed, times in kinds.items():
        for feature in needed or ():
            needing[feature] += times
    return Counted(instructions=sum(kinds.values()), needing=needing, unread=unread)


def features(arch: str) -> frozenset[str]:
    """The features whose instructions are told apart, in canonical names."""
    if arch == "aarch64":
        return frozenset(row.feature for row in _table().arm)
    named, coded = (row.feature for row in _table().x86), (row.feature for row in _table().opcode)
    return frozenset({*named, *coded, "avx512vl"})


@cache
def _table() -> InstructionTable:
    return facts.load("instructions", InstructionTable)


# --- x86-64 --------------------------------------------------------------------------------------------------------


def _x86(code: bytes) -> Iterator[frozenset[str] | None]:
    """What each instruction needs; None for each byte that is none."""
    decoder, start = _decoder(), 0
    while start < len(code):
        piece, at = code[start : start + PIECE], 0
        for address, size, name, operands in decoder.disasm_lite(piece, 0):
            at = address + size
            if _plain(name):
                yield NONE
            else:
                yield _needs(name, _encoding(piece, address), _width(operands), "[" in operands)
        start += at
        # The decoder stops at what it does not know, and where the piece ends within an instruction.
        if start >= len(code) or (at and len(piece) == PIECE and PIECE - at < LONGEST):
            continue
        opcode = read_opcode(code[start : start + LONGEST])
        needed = _coded(opcode) if opcode else None
        yield needed
        start += opcode.length if opcode and needed is not None else 1


@cache
def _decoder() -> Any:
    from capstone import CS_ARCH_X86, CS_MODE_64, Cs

    return Cs(CS_ARCH_X86, CS_MODE_64)


@cache
def _plain(name: str) -> bool:
    """True where every CPU has the instruction, however it is encoded: nine in ten."""
    named = (re.fullmatch(row.names, name.split()[-1]) for row in _table().x86 if row.encoding not in ("evex", "xop"))
    return not name.startswith("v") and not any(named)


def _encoding(code: bytes, at: int) -> str:
    while code[at] in PREFIXES:
        at += 1
    return {VEX2: "vex", VEX3: "vex", EVEX: "evex", XOP: "xop"}.get(code[at], "legacy")


def _width(operands: str) -> str:
    return next((width for width in ("zmm", "ymm", "xmm") if width in operands), "")


@cache
def _needs(name: str, encoding: str, width: str, memory: bool) -> frozenset[str]:
    """`name`: the mnemonic, which can have a prefix in front ("lock cmpxchg16b")."""
    name = name.split()[-1]
    found: set[str] = set()
    for row in _table().x86:
        fits = row.encoding in ("", encoding) and row.width in ("", width) and not (row.operands and memory)
        if fits and re.fullmatch(row.names, name):
            found.add(row.feature)
            if not row.adds:
                break
    if encoding == "evex" and width in ("xmm", "ymm") and not SCALAR.fullmatch(name):
        found.add("avx512vl")
    return frozenset(found) or NONE


@lru_cache(maxsize=1 << 12)
def _coded(opcode: Opcode) -> frozenset[str] | None:
    """What an instruction needs that capstone does not know; None for what is in no row, and so rather data."""
    found = {
        row.feature
        for row in _table().opcode
        if row.map == opcode.map
        and row.encoding in ("", opcode.encoding)
        and (not row.opcodes or opcode.code in row.opcodes)
        and row.prefix in (None, opcode.prefix)
        and row.width in ("", opcode.width)
    }
    if not found:
        return None
    if "avx_vnni" in found:
        found.discard("avx_vnni_int8")
    if opcode.encoding == "evex":
        found |= {"avx512f"} if opcode.width == "zmm" or "avx512_fp16" in found else {"avx512f", "avx512vl"}
    elif opcode.encoding == "vex" and not found & {"amx_tile", "amx_int8", "amx_bf16", "amx_fp16"}:
        found.add("avx")
    return frozenset(found)


def read_opcode(code: bytes) -> Opcode | None:
    """The VEX, EVEX, 0F38 or 0F3A instruction at the start of `code`; None where there is none."""
    try:
        return _opcode(code)
    except IndexError:
        return None


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
    """`at`: of the opcode byte; `fields`: the byte with the mandatory prefix in its low bits (VEX: and the length)."""
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
    if end > len(code):
        return None
    wide = fields >> 2 & 1 if encoding == "vex" else last >> 5 & 3
    width = "" if encoding == "legacy" else ("xmm", "ymm", "zmm", "zmm")[wide]
    return Opcode(encoding, table, opcode, MANDATORY[fields & 3], width, end)


# --- A64 -----------------------------------------------------------------------------------------------------------


def _words(code: bytes) -> Iterator[frozenset[str] | None]:
    for (word,) in struct.iter_unpack("<I", code[: len(code) // 4 * 4]):
        yield _word(word)
    yield from [None] * (len(code) % 4)


@lru_cache(maxsize=1 << 16)
def _word(word: int) -> frozenset[str]:
    return next((frozenset((row.feature,)) for row in _table().arm if word & row.mask == row.value), NONE)
