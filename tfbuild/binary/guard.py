"""Read from TensorFlow's own CPU guard which CPU features it was compiled for. Nothing is executed.

libtensorflow_framework.so.2 has the guard. Its static constructor calls CheckFeatureOrDie(feature) for each macro
(__AVX2__ ...) that the compiler defined, and the function behind its "rebuild TensorFlow" message tests each feature
whose macro was not defined. Both are found through .symtab; the features are the enum constants that the calls load
into %edi. Where the constructor grew too large for GCC to inline (2.0.4 with AVX-512 and GCC 9.3), it is a function of
its own, CPUFeatureGuard::CPUFeatureGuard().
The library is untrusted: if it cannot be read, GuardUnreadable gives the reason.
"""

import io
import mmap
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, cast

from tfbuild import facts
from tfbuild.errors import BadInput
from tfbuild.facts import releases

# Limits for reading. TensorFlow 2.21: 65 MB, 60 sections, a symbol table of 3 MB and 10 MB of names, 2 KB functions.
MOST_BYTES = 700 * 1024 * 1024
MOST_SECTIONS = 1000
MOST_TABLE = 128 * 1024 * 1024
MOST_FUNCTIONS = 1000
MOST_BODIES = 32
MOST_CODE = 64 * 1024
# The longest name of a section. Names may overlap, so that a small file can have many long ones.
MOST_NAME = 256

INITIALIZER = b"_GLOBAL__sub_I_cpu_feature_guard"
CONSTRUCTOR = b"CPUFeatureGuardC"
MESSAGE = b"InfoAboutUnusedCPUFeatures"
TESTING = (b"CheckFeatureOrDie", b"CheckIfFeatureUnused", b"TestCPUFeature")
NAMES = re.compile(b"|".join((INITIALIZER, CONSTRUCTOR, MESSAGE, *TESTING)))

ARCHES = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64"}
SYMBOL = struct.Struct("<IBBHQQ")  # Elf64_Sym: name, info, other, section, value, size
RELOCATION = struct.Struct("<QQq")  # Elf64_Rela: offset, info, addend
FUNCTION = 2  # STT_FUNC


class GuardUnreadable(BadInput):
    """The library's CPU guard cannot be found or understood."""


@dataclass(frozen=True, kw_only=True)
class Guard:
    """`compiled`: features without which this TensorFlow stops; `unused`: those that it was not compiled for.

    Both have the names and the order of TensorFlow's message, and are empty for aarch64, where the guard knows none.
    """

    compiled: tuple[str, ...]
    unused: tuple[str, ...]

    @property
    def features(self) -> frozenset[str]:
        """The `compiled` ones in canonical names."""
        return frozenset(row.name for row in facts.features("x86_64") if row.tensorflow in self.compiled)


def read_guard(path: Path, release: str) -> Guard:
    """Read the guard of a libtensorflow_framework.so.2 of `release`; raises GuardUnreadable with the reason."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as image:
            if len(image) > MOST_BYTES:
                raise GuardUnreadable(f"{path.name} has {len(image)} bytes: too large to be TensorFlow's")
            return _guard(Library.parse(image), release)
    except GuardUnreadable:
        raise
    except OSError as error:
        raise GuardUnreadable(f"{path.name} cannot be read: {error.strerror}") from error
    except Exception as error:  # pyelftools raises anything for a broken file
        raise GuardUnreadable(f"{path.name} is not a whole ELF library: {type(error).__name__} {error}") from error


def _guard(library: "Library", release: str) -> Guard:
    if library.machine == "EM_AARCH64":
        return Guard(compiled=(), unused=())
    if library.machine != "EM_X86_64":
        raise GuardUnreadable(f"the library is for {library.machine}, which TensorFlow's guard does not know")
    functions = library.functions()
    compiled = _tested(library, functions, INITIALIZER, CONSTRUCTOR)
    unused = _tested(library, functions, MESSAGE)
    if not compiled:
        raise GuardUnreadable(
            "the CPU guard's constructor asks for no feature at all: this is not how TensorFlow is built"
        )
    return _named(release, compiled, unused)


def _named(release: str, compiled: frozenset[int], unused: frozenset[int]) -> Guard:
    rows = releases.guard(release)
    if beyond := sorted((compiled | unused) - {row.number for row in rows}):
        raise GuardUnreadable(f"the guard asks for features that TensorFlow {release} does not have: {beyond}")
    # If such a feature (AMX) is compiled in, the guard only does not report it as unused (facts/guard.toml).
    silent = [row for row in rows if row.number not in compiled | unused]
    if missing := [row.name for row in silent if not row.silent]:
        raise GuardUnreadable(f"the guard does not ask for {' '.join(missing)}, as TensorFlow {release} does")
    held = compiled | {row.number for row in silent}
    return Guard(
        compiled=tuple(row.name for row in rows if row.number in held),
        unused=tuple(row.name for row in rows if row.number in unused),
    )


# --- ELF -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Section:
    """The header of a section: `kind` as in SHT_PROGBITS, `address` when loaded, `offset` in the file, `size`."""

    name: str
    kind: str
    address: int
    offset: int
    size: int


@dataclass(frozen=True, kw_only=True)
class Function:
    """A function in the symbol table."""

    name: bytes
    address: int
    size: int


@dataclass(frozen=True, kw_only=True)
class Library:
    """A mapped ELF file and its section headers; section contents are read raw (never decompressed)."""

    image: mmap.mmap | bytes
    machine: str
    sections: tuple[Section, ...]

    @classmethod
    def parse(cls, image: mmap.mmap | bytes) -> "Library":
        """Read the headers. Raises GuardUnreadable, and what pyelftools raises for a broken file."""
        from elftools.common.utils import struct_parse
        from elftools.elf.elffile import ELFFile

        stream = io.BytesIO(image) if isinstance(image, bytes) else cast(IO[bytes], image)
        elf = ELFFile(stream)
        if elf.elfclass != 64 or not elf.little_endian or elf.num_sections() > MOST_SECTIONS:
            raise GuardUnreadable("the library is not a 64-bit little-endian ELF file with a sane number of sections")
        # Not iter_sections(), which reads the whole hash table of the symbols, and names of any length.
        places = (elf["e_shoff"] + number * elf["e_shentsize"] for number in range(elf.num_sections()))
        headers = [struct_parse(elf.structs.Elf_Shdr, stream, stream_pos=place) for place in places]
        names = headers[elf.get_shstrndx()].sh_offset if headers else 0
        sections = tuple(
            Section(
                name=string(image, names + h.sh_name),
                kind=str(h.sh_type),
                address=h.sh_addr,
                offset=h.sh_offset,
                size=h.sh_size,
            )
            for h in headers
        )
        return cls(image=image, machine=str(elf.header.e_machine), sections=sections)

    def section(self, name: str) -> Section | None:
        """Return the section of that name, if the file has its content."""
        return next((row for row in self.sections if row.name == name and row.kind != "SHT_NOBITS"), None)

    def content(self, name: str) -> bytes:
        """Return the raw bytes of a section; raise GuardUnreadable if it is missing, cut off or far too large."""
        section = self.section(name)
        if section is None:
            raise GuardUnreadable(f"the library has no {name}: it was stripped, so its CPU guard cannot be found")
        if section.size > MOST_TABLE or section.offset + section.size > len(self.image):
            raise GuardUnreadable(f"the library's {name} is cut off or far too large")
        return self.image[section.offset : section.offset + section.size]

    def code(self, address: int, size: int) -> bytes:
        """Return at most `size` bytes of the code at a virtual address; empty if there is none."""
        for section in self.sections:
            inside = address - section.address
            if section.kind == "SHT_PROGBITS" and section.address and 0 <= inside < section.size:
                start = section.offset + inside
                return self.image[start : start + min(size, section.size - inside, MOST_CODE)]
        return b""

    def functions(self) -> tuple[Function, ...]:
        """Return the functions of the CPU guard."""
        names = _names(self.content(".strtab"))
        functions = tuple(
            Function(name=names[name], address=value, size=size)
            for name, info, _, section, value, size in rows(SYMBOL, self.content(".symtab"))
            if name in names and info & 0xF == FUNCTION and section
        )
        if not any(function.name.startswith(INITIALIZER) for function in functions):
            raise GuardUnreadable("the library's .symtab does not name the CPU guard: its symbols were stripped")
        if len(functions) > MOST_FUNCTIONS:
            raise GuardUnreadable("the library's .symtab names the CPU guard far too often")
        return functions

    def imported(self) -> frozenset[int]:
        """Return the GOT slots (addresses of pointers) through which the library calls exported test functions."""
        names = _names(self.content(".dynstr"))
        symbols = enumerate(rows(SYMBOL, self.content(".dynsym")))
        testing = {index for index, row in symbols if _tests(names.get(row[0], b""))}
        tables = [s.name for s in self.sections if s.kind == "SHT_RELA" and s.name in (".rela.plt", ".rela.dyn")]
        relocations = (row for name in tables for row in rows(RELOCATION, self.content(name)))
        return frozenset(offset for offset, info, _ in relocations if info >> 32 in testing)


def string(content: bytes | mmap.mmap, offset: int) -> str:
    """Return the name that starts at `offset`, cut at MOST_NAME bytes."""
    return content[offset : offset + MOST_NAME].partition(b"\0")[0].decode("latin-1")


def rows(kind: struct.Struct, content: bytes) -> Iterator[tuple[int, ...]]:
    """Yield the rows of a table, without a last one that is cut off."""
    return kind.iter_unpack(content[: len(content) // kind.size * kind.size])


def _names(strings: bytes) -> dict[int, bytes]:
    """Return the names in a string table that belong to the CPU guard, by their offset."""
    names: dict[int, bytes] = {}
    for match in NAMES.finditer(strings):
        start = strings.rfind(b"\0", 0, match.start()) + 1
        names[start] = strings[start : strings.find(b"\0", match.end())]
        if len(names) > MOST_FUNCTIONS:
            raise GuardUnreadable("the library names the CPU guard far too often")
    return names


def _tests(name: bytes) -> bool:
    # GCC splits the rare part of a function off as NAME.part.0, which no longer takes the feature: its caller did.
    return any(part in name for part in TESTING) and MESSAGE not in name and b".part." not in name


# --- machine code --------------------------------------------------------------------------------------------------


def _tested(library: Library, functions: tuple[Function, ...], *parts: bytes) -> frozenset[int]:
    """Return the numbers of the features that the functions with one of `parts` in their name test."""
    direct = frozenset(function.address for function in functions if _tests(function.name))
    slots = library.imported()
    bodies = [function for function in functions if any(part in function.name for part in parts)]
    if len(bodies) > MOST_BODIES:
        raise GuardUnreadable(f"the library has {len(bodies)} functions of the CPU guard, far too many")
    return frozenset(number for body in bodies for number in _arguments(library, body, direct, slots))


def _arguments(library: Library, body: Function, direct: frozenset[int], slots: frozenset[int]) -> Iterator[int]:
    """Yield the constant in %edi at each call of a test function, in one function's code."""
    from capstone import CS_GRP_CALL, CS_GRP_JUMP
    from capstone.x86 import X86_OP_IMM, X86_REG_DI, X86_REG_DIL, X86_REG_EDI, X86_REG_RDI

    first_argument = {X86_REG_EDI, X86_REG_RDI, X86_REG_DI, X86_REG_DIL}
    constant: int | None = None
    for step in _instructions(library, body.address, body.size):
        if step.group(CS_GRP_CALL):
            if _called(library, step, direct, slots):
                if constant is None:
                    raise GuardUnreadable(f"a call of the CPU guard at {step.address:#x} has no constant feature")
                yield constant
            constant = None
        elif step.group(CS_GRP_JUMP):
            constant = None
        elif first_argument & set(step.regs_access()[1]):
            loads = step.mnemonic == "mov" and step.operands[1].type == X86_OP_IMM
            constant = step.operands[1].imm if loads else None


def _instructions(library: Library, address: int, size: int) -> Iterator[Any]:
    """Yield the decoded instructions of at most `size` bytes at an address, with their operands."""
    from capstone import CS_ARCH_X86, CS_MODE_64, Cs

    decoder = Cs(CS_ARCH_X86, CS_MODE_64)
    decoder.detail = True
    yield from decoder.disasm(library.code(address, size), address)


def _called(library: Library, step: Any, direct: frozenset[int], slots: frozenset[int]) -> bool:
    """Whether this call goes to a test function, directly, through the PLT or through a GOT slot."""
    from capstone.x86 import X86_OP_IMM

    target = step.operands[0]
    if target.type != X86_OP_IMM:
        return _slot(step) in slots
    return target.imm in direct or _through_plt(library, target.imm) in slots


def _through_plt(library: Library, address: int) -> int:
    """Return the GOT slot that the PLT entry at `address` jumps through, or -1 if there is no such entry."""
    for step in islice(_instructions(library, address, 16), 2):
        if step.mnemonic in ("jmp", "bnd jmp"):
            return _slot(step)
        if step.mnemonic != "endbr64":
            break
    return -1


def _slot(step: Any) -> int:
    """Return the address that an instruction with a %rip-relative operand reads, or -1 for any other operand."""
    from capstone.x86 import X86_OP_MEM, X86_REG_RIP

    operand = step.operands[0]
    if operand.type != X86_OP_MEM or operand.mem.base != X86_REG_RIP:
        return -1
    return int(step.address + step.size + operand.mem.disp)
