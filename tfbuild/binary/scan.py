"""Find what a library was compiled for from its machine code. Nothing is executed; see facts/code.toml.

A library is cut into regions of equal size, and the first 16 KiB of each are decoded (with `full`, regions have just
16 KiB). A compiler uses the features it may use all over a library; code that is chosen at run time (oneDNN, XNNPACK)
is in a few places. So a feature counts as compiled in if enough regions need it. If the library still names its
functions, those known to be chosen at run time are not counted.
"""

import re
import struct
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from pathlib import Path

from tfbuild import facts
from tfbuild.binary import ARCHES, FUNCTION, SYMBOL, Library, LibraryUnreadable, Section, machinecode, opened
from tfbuild.cpu import isa
from tfbuild.facts import Facts

# Upper bounds of what is read. TensorFlow 2.21: 788 MB, 1.1 million symbols, 0.7 million functions. In its windows are
# 20,000 functions; each takes its time, however small.
MOST_BYTES = 4 * 1024**3
MOST_FUNCTIONS = 4_000_000
MOST_DECODED = 200_000
LONGEST_NAME = 512  # the start of a name shows the project
# Bytes that are no known instruction, for each instruction: at most 0.001 in 2.21's libraries, whose windows end within
# instructions; 0.014 in OpenSSL 3.0's, which has tables in its code; at least 0.067 in code with APX (Clang 22).
MOST_UNREAD = 0.03
# 512 regions of 16 KiB: 8 MiB of 2.21's 332, which are two million instructions and two seconds.
REGIONS = 512
WINDOW = 16 * 1024
# Of a library beside the main one.
FEW = 128
# .eh_frame_hdr as every linker writes it: version 1, and a table of pairs of 32-bit offsets from its own address.
FRAME_HEADER = struct.Struct("<BBBBiI")
FRAME_ENTRY = struct.Struct("<ii")
FRAME_ENCODINGS = (1, 0x1B, 0x03, 0x3B)


class Dispatched(Facts, frozen=True):
    """Functions that run only after a check of the CPU; see facts/code.toml."""

    project: str
    symbols: str
    reason: str
    source: str


class Threshold(Facts, frozen=True):
    """The share of regions from which on a feature counts as compiled in."""

    method: str
    share: float
    measured: str


class CodeTable(Facts, frozen=True):
    dispatched: tuple[Dispatched, ...]
    judged: tuple[Threshold, ...]
    written: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Family:
    """Instructions that need one feature: `rate` per 1000, and the `share` of regions that have any."""

    feature: str
    rate: float
    share: float
    compiled: bool


@dataclass(frozen=True, kw_only=True)
class ScannedCode:
    """What a library's code shows. `coverage`: the part of its code that was decoded.

    `method`: "symbols" or "spread" (see facts/code.toml). `dispatched`: instructions that were not counted, by project.
    """

    arch: str
    method: str
    instructions: int
    regions: int
    coverage: float
    families: tuple[Family, ...]
    dispatched: dict[str, int]

    @property
    def compiled(self) -> frozenset[str]:
        """The features that the library was compiled for, as far as its code shows them."""
        return frozenset(row.feature for row in self.families if row.compiled)

    @property
    def name(self) -> str:
        """The smallest instruction set that can run it, if its own checks of the CPU are right."""
        return instruction_set(self.compiled, self.arch).name

    def share(self, feature: str) -> float:
        """Return the share of regions that need a feature."""
        return next((row.share for row in self.families if row.feature == feature), 0.0)

    def how(self) -> str:
        """Describe what was read, and how it was judged."""
        share = f"{100 * self.coverage:.1f} % of its code"
        read = f"{self.instructions:,} instructions in {self.regions} region{'s' * (self.regions > 1)}, {share}"
        if self.method == "spread":
            return f"{read}; it has no symbols: judged by how far each feature is spread"
        left = ", ".join(self.dispatched)
        return f"{read}; without {sum(self.dispatched.values()):,} of {left}" if left else read

    def to_json(self) -> dict[str, object]:
        return {
            "method": self.method,
            "threshold": threshold(self.method),
            "instructions": self.instructions,
            "regions": self.regions,
            "coverage": round(self.coverage, 4),
            "dispatched": self.dispatched,
            "features": {
                row.feature: {"per_1000": round(row.rate, 4), "share": round(row.share, 4), "compiled": row.compiled}
                for row in self.families
            },
        }


def read_code(
    path: Path, *, name: str = "", full: bool = False, tell: Callable[[str], object] = str, regions: int = REGIONS
) -> ScannedCode:
    """Scan the code of an ELF library; raises LibraryUnreadable with the reason.

    `name`: the library's name where it came from; `tell`: gets how much of it is decoded ("12 %"), and ends the scan if
    it raises; `regions`: of how many of them a window is decoded, at most.
    """
    tell("0 %")
    with opened(path, name or path.name, MOST_BYTES) as library:
        return _scan(Code.locate(library), full, tell, regions)


code_table = partial(facts.load, "code", CodeTable)


def written() -> frozenset[str]:
    """Return the features that show in every library that was compiled for them."""
    return frozenset(code_table().written)


def instruction_set(held: frozenset[str], arch: str) -> isa.InstructionSet:
    """Return the instruction set of code with these features.

    Features of an x86-64 level that machine code need not show, such as cx16, are added if no other one of that level
    is missing. Features of no level, such as avx512_vnni, do not decide which level that is.
    """
    if arch == "x86_64":
        levels = [level.features for level in facts.levels(arch)]
        level = next(features for features in levels if held & levels[-1] <= features)
        if not (level - facts.closure(held)) & (written() | {"sse4_2"}):
            held |= level
    return isa.instruction_set(held, arch)


@cache
def threshold(method: str) -> float:
    """Return the share of regions from which on a feature counts as compiled in."""
    return next(row.share for row in code_table().judged if row.method == method)


@cache
def _known() -> tuple[tuple[str, re.Pattern[bytes]], ...]:
    return tuple((row.project, re.compile(row.symbols.encode())) for row in code_table().dispatched)


def project(name: bytes) -> str:
    """Return the project whose run-time dispatch guards the function of that mangled name, or ""."""
    return next((known for known, pattern in _known() if pattern.match(name)), "")


# --- judgement -----------------------------------------------------------------------------------------------------


def _scan(code: "Code", full: bool, tell: Callable[[str], object], most: int) -> ScannedCode:
    regions, dispatched, decoded, functions, unread = [], Counter[str](), 0, 0, 0
    method = "symbols" if code.symbols else "spread"
    for start, end in code.regions(full, most):
        instructions, needing = 0, Counter[str]()
        for begin, stop in code.functions(start, end):
            functions += 1
            if functions > MOST_DECODED and not full:
                raise LibraryUnreadable(f"the library has more than {MOST_DECODED} functions in the part that is read")
            counted = machinecode.count(code.content(begin, stop), code.arch)
            decoded += stop - begin
            owner = project(code.name(begin)) if code.symbols else ""
            if owner:
                dispatched[owner] += counted.instructions
            else:
                instructions += counted.instructions
                needing += counted.needing
                unread += counted.unread
        if instructions:
            regions.append((instructions, needing))
        tell(f"{100 * (end - code.section.address) // code.section.size} %")
    if not regions:
        raise LibraryUnreadable("the library holds no machine code")
    total = sum(instructions for instructions, _ in regions)
    if unread > MOST_UNREAD * total:
        told = f"{unread:,} bytes beside {total:,} instructions could not be decoded"
        raise LibraryUnreadable(f"{told}: the library is for a newer CPU")
    return ScannedCode(
        arch=code.arch,
        method=method,
        instructions=total,
        regions=len(regions),
        coverage=decoded / code.section.size,
        families=tuple(_families(regions, threshold(method))),
        dispatched=dict(dispatched.most_common()),
    )


def _families(regions: list[tuple[int, Counter[str]]], least: float) -> Iterator[Family]:
    """Yield the families in the order of the facts, without features that no instruction needs."""
    instructions = sum(count for count, _ in regions)
    for row in facts.features():
        needing = [needing[row.name] for _, needing in regions]
        share = sum(1 for count in needing if count) / len(regions)
        if share:
            rate = 1000 * sum(needing) / instructions
            yield Family(feature=row.name, rate=rate, share=share, compiled=share >= least)


# --- ELF -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Code:
    """The code of an open library. `starts`: sorted addresses of its functions.

    `symbols`: sorted, see _symbols; empty if the library is stripped. `names`: the offset of the names in the file.
    """

    library: Library
    arch: str
    section: Section
    starts: "array[int]"
    symbols: "array[int]"
    names: int

    @classmethod
    def locate(cls, library: Library) -> "Code":
        """Find a library's code, functions and symbols. Raises LibraryUnreadable."""
        if library.machine not in ARCHES:
            raise LibraryUnreadable(f"the library is for {library.machine}; x86-64 and AArch64 are known")
        # BOLT lays out copies of some functions in a new .text; the old one, renamed, still has all of them.
        section = library.section(".bolt.org.text") or library.section(".text")
        if section is None or not section.size:
            raise LibraryUnreadable("the library has no .text: there is no code in it")
        names = library.section(".strtab")
        symbols = array("Q", sorted(_symbols(library, section)) if names and library.section(".symtab") else ())
        frames = array("Q", _frames(library, section))
        named = (section.address + (symbol >> 32) for symbol in symbols)
        starts = array("Q", sorted({section.address, *frames, *named}))
        return cls(
            library=library,
            arch=ARCHES[library.machine],
            section=section,
            starts=starts,
            # If strip kept only a few names (the guard's), they cannot tell the functions apart.
            symbols=symbols if 2 * len(symbols) >= len(frames) else array("Q"),
            names=names.offset if names else 0,
        )

    def regions(self, full: bool, most: int) -> Iterator[tuple[int, int]]:
        """Yield begin and end of the decoded part of each region, from the first function that starts in it.

        If none does, it begins at the region's start: the decoder recovers after a few instructions.
        """
        first, size = self.section.address, self.section.size
        # All windows have one size; otherwise shares could not be compared.
        whole = full or size <= most * WINDOW
        count = max(1, size // WINDOW if whole else most)
        edges = [first + (size * number // count & ~15) for number in range(count)] + [first + size]
        begins = [self._start(edge, following) for edge, following in pairwise(edges)] + [first + size]
        for begin, following in pairwise(begins):
            yield begin, following if whole else min(following, begin + WINDOW)

    def _start(self, edge: int, end: int) -> int:
        index = bisect_left(self.starts, edge)
        return self.starts[index] if index < len(self.starts) and self.starts[index] < end else edge

    def functions(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield begin and end of each function between two addresses; the last one may be cut off."""
        index = bisect_right(self.starts, start)
        while start < end:
            following = min(self.starts[index], end) if index < len(self.starts) else end
            yield start, following
            start, index = following, index + 1

    def content(self, start: int, end: int) -> bytes:
        """Return the code between two addresses."""
        return self.library.read(self.section.offset + start - self.section.address, end - start)

    def name(self, address: int) -> bytes:
        """Return the mangled name of the function at an address, or of the last one before it."""
        index = bisect_left(self.symbols, (address - self.section.address + 1) << 32) - 1
        if index < 0:
            return b""
        start = self.names + (self.symbols[index] & 0xFFFFFFFF)
        return self.library.read(start, LONGEST_NAME).partition(b"\0")[0]


def _symbols(library: Library, code: Section) -> Iterator[int]:
    """Yield the functions of .symtab: the offset from the code's address, and in the low 32 bits that of the name."""
    for name, info, _, _, value, _ in library.rows(SYMBOL, ".symtab"):
        if info & 0xF == FUNCTION and 0 <= value - code.address < code.size:
            yield value - code.address << 32 | name


def _frames(library: Library, code: Section) -> Iterator[int]:
    """Yield the addresses of the functions in .eh_frame_hdr, which strip never removes.

    There are none if it does not have the form of GNU's and LLVM's linkers.
    """
    section = library.section(".eh_frame_hdr")
    if section is None or section.size < FRAME_HEADER.size:
        return
    *form, _, count = FRAME_HEADER.unpack(library.read(section.offset, FRAME_HEADER.size))
    if tuple(form) != FRAME_ENCODINGS:
        return
    size = FRAME_ENTRY.size * min(count, (section.size - FRAME_HEADER.size) // FRAME_ENTRY.size, MOST_FUNCTIONS)
    for offset, _ in FRAME_ENTRY.iter_unpack(library.read(section.offset + FRAME_HEADER.size, size)):
        if code.address <= section.address + offset < min(code.address + code.size, 1 << 64):
            yield section.address + offset
