"""Read from TensorFlow's own CPU guard which CPU features it was compiled for. Nothing is executed.

libtensorflow_framework.so.2 has the guard. Its static constructor calls CheckFeatureOrDie(feature) for each macro
(__AVX2__ ...) that the compiler defined, and the function behind its "rebuild TensorFlow" message tests each feature
whose macro was not defined. Both are found through .symtab; the features are the enum constants that the calls load
into %edi. Where the constructor grew too large for GCC to inline (2.0.4 with AVX-512 and GCC 9.3), it is a function of
its own, CPUFeatureGuard::CPUFeatureGuard().
"""

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from tfbuild import facts
from tfbuild.binary import FUNCTION, SYMBOL, Library, LibraryUnreadable, opened
from tfbuild.facts import releases

# Limits for reading. The library of TensorFlow 2.21 has 65 MB.
MOST_BYTES = 700 * 1024 * 1024
MOST_FUNCTIONS = 1000

INITIALIZER = b"_GLOBAL__sub_I_cpu_feature_guard"
CONSTRUCTOR = b"CPUFeatureGuardC"
MESSAGE_FUNCTION = b"InfoAboutUnusedCPUFeatures"
TEST_FUNCTIONS = (b"CheckFeatureOrDie", b"CheckIfFeatureUnused", b"TestCPUFeature")
GUARD_NAMES = re.compile(b"|".join((INITIALIZER, CONSTRUCTOR, MESSAGE_FUNCTION, *TEST_FUNCTIONS)))

RELOCATION = struct.Struct("<QQq")  # Elf64_Rela: offset, info, addend


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
    """Read the guard of a libtensorflow_framework.so.2 of `release`; raises LibraryUnreadable with the reason."""
    with opened(path, path.name, MOST_BYTES) as library:
        if library.machine == "EM_AARCH64":
            return Guard(compiled=(), unused=())
        if library.machine != "EM_X86_64":
            raise LibraryUnreadable(f"the library is for {library.machine}, which TensorFlow's guard does not know")
        functions = _functions(library)
        compiled = _tested(library, functions, INITIALIZER, CONSTRUCTOR)
        unused = _tested(library, functions, MESSAGE_FUNCTION)
    if not compiled:
        raise LibraryUnreadable("the CPU guard's constructor asks for no feature: this is not how TensorFlow is built")
    known = releases.guard(release)
    if beyond := sorted((compiled | unused) - {row.number for row in known}):
        raise LibraryUnreadable(f"the guard asks for features that TensorFlow {release} does not have: {beyond}")
    if missing := [row.name for row in known if not row.silent and row.number not in compiled | unused]:
        raise LibraryUnreadable(f"the guard does not ask for {' '.join(missing)}, as TensorFlow {release} does")
    # If a silent feature (AMX) is compiled in, the guard only does not report it as unused (facts/guard.toml).
    return Guard(
        compiled=tuple(row.name for row in known if row.number in compiled or row.number not in unused),
        unused=tuple(row.name for row in known if row.number in unused),
    )


# --- its functions -------------------------------------------------------------------------------------------------


class Function(NamedTuple):
    name: bytes
    address: int
    size: int


def _functions(library: Library) -> tuple[Function, ...]:
    """Return the functions of the CPU guard."""
    names = _names(library.content(".strtab"))
    functions = tuple(
        Function(name=names[name], address=value, size=size)
        for name, info, _, section, value, size in library.rows(SYMBOL, ".symtab")
        if name in names and info & 0xF == FUNCTION and section
    )[:MOST_FUNCTIONS]
    if not any(function.name.startswith(INITIALIZER) for function in functions):
        raise LibraryUnreadable("the library's .symtab does not name the CPU guard: its symbols were stripped")
    return functions


def _imported(library: Library) -> frozenset[int]:
    """Return the GOT slots (addresses of pointers) through which the library calls exported test functions."""
    names = _names(library.content(".dynstr"))
    symbols = enumerate(library.rows(SYMBOL, ".dynsym"))
    testing = {index for index, row in symbols if _tests(names.get(row[0], b""))}
    tables = [s.name for s in library.sections if s.kind == "SHT_RELA" and s.name in (".rela.plt", ".rela.dyn")]
    relocations = (row for name in tables for row in library.rows(RELOCATION, name))
    return frozenset(offset for offset, info, _ in relocations if info >> 32 in testing)


def _names(strings: bytes) -> dict[int, bytes]:
    """Return the names in a string table that belong to the CPU guard, by their offset."""
    names: dict[int, bytes] = {}
    for match in GUARD_NAMES.finditer(strings):
        start = strings.rfind(b"\0", 0, match.start()) + 1
        names[start] = strings[start : strings.find(b"\0", match.end())]
        if len(names) > MOST_FUNCTIONS:
            raise LibraryUnreadable("the library names the CPU guard far too often")
    return names


def _tests(name: bytes) -> bool:
    # GCC splits the rare part of a function off as NAME.part.0, which no longer takes the feature: its caller did.
    return any(part in name for part in TEST_FUNCTIONS) and MESSAGE_FUNCTION not in name and b".part." not in name


# --- machine code --------------------------------------------------------------------------------------------------


def _tested(library: Library, functions: tuple[Function, ...], *parts: bytes) -> frozenset[int]:
    """Return the numbers of the features that the functions with one of `parts` in their name test."""
    direct = frozenset(function.address for function in functions if _tests(function.name))
    slots = _imported(library)
    bodies = [function for function in functions if any(part in function.name for part in parts)]
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
                    raise LibraryUnreadable(f"a call of the CPU guard at {step.address:#x} has no constant feature")
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
