"""Small ELF libraries with the CPU guard of real TensorFlow wheels in them: the same code, at the same addresses.

A real libtensorflow_framework.so.2 has 45 to 65 MB, nearly all of which the reader never looks at. `record` keeps what
it does look at (python -m tests.binary.libraries LIBRARY RELEASE > tests/data/guard/NAME.json); `library` makes an ELF
file of it.
"""

import json
import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfbuild.binary import FUNCTION, Library, guard, opened

DATA = Path(__file__).parents[1] / "data" / "guard"
PROGBITS, SYMTAB, STRTAB, RELA, DYNSYM = 1, 2, 3, 4, 11
X86_64 = 62
# The table that a section refers to: names of its symbols, symbols of its relocations.
LINKS = {".symtab": ".strtab", ".dynsym": ".dynstr", ".rela.plt": ".dynsym"}


@dataclass(frozen=True, kw_only=True)
class Part:
    name: str
    kind: int
    address: int
    content: bytes


def recorded(name: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((DATA / f"{name}.json").read_text())
    return record


def library(record: dict[str, Any], *, symbols: bool = True, machine: int = X86_64, text: bytes = b"") -> bytes:
    """An ELF file with the recorded guard; without `symbols` it is stripped. `text`: other code in it."""
    names, table = _symbols([(f["name"], f["address"], f["size"]) for f in record["functions"]])
    imported, dynamic = _symbols([(name, 0, 0) for name in record["imported"]])
    slots = b"".join(struct.pack("<QQq", slot, index + 1 << 32 | 7, 0) for index, slot in enumerate(record["slots"]))
    code = [
        Part(name=f".text.{index}", kind=PROGBITS, address=row["address"], content=bytes.fromhex(row["code"]))
        for index, row in enumerate((*record["functions"], *record["stubs"]))
        if row["code"]
    ]
    tables = [
        Part(name=".dynsym", kind=DYNSYM, address=0, content=dynamic),
        Part(name=".dynstr", kind=STRTAB, address=0, content=imported),
        Part(name=".rela.plt", kind=RELA, address=0, content=slots),
    ]
    if symbols:
        tables.append(Part(name=".symtab", kind=SYMTAB, address=0, content=table))
        tables.append(Part(name=".strtab", kind=STRTAB, address=0, content=names))
    other = [Part(name=".text", kind=PROGBITS, address=0x1000, content=text)] if text else []
    return elf([*code, *other, *tables], machine)


def _symbols(rows: list[tuple[str, int, int]]) -> tuple[bytes, bytes]:
    """A string table, and a symbol table of functions that starts with the null symbol, as every one does."""
    names, table = b"\0", bytes(24)
    for name, address, size in rows:
        table += struct.pack("<IBBHQQ", len(names), FUNCTION, 0, 1, address, size)
        names += name.encode() + b"\0"
    return names, table


def elf(parts: list[Part], machine: int = X86_64) -> bytes:
    names, body, headers = b"\0", b"", bytes(64)
    index = {part.name: number for number, part in enumerate(parts, start=1)}
    for part in parts:
        link = index.get(LINKS.get(part.name, ""), 0)
        headers += _section(len(names), part.kind, part.address, 64 + len(body), len(part.content), link)
        names += part.name.encode() + b"\0"
        body += part.content
    headers += _section(len(names), STRTAB, 0, 64 + len(body), len(names) + len(b".shstrtab\0"))
    body += names + b".shstrtab\0"
    count = len(parts) + 2
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    return (
        ident
        + struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, 0, 64 + len(body), 0, 64, 0, 0, 64, count, count - 1)
        + body
        + headers
    )


def _section(name: int, kind: int, address: int, offset: int, size: int, link: int = 0) -> bytes:
    entry = {SYMTAB: 24, DYNSYM: 24, RELA: 24}.get(kind, 0)
    return struct.pack("<IIQQQQIIQQ", name, kind, 0, address, offset, size, link, 0, 1, entry)


def record(path: Path, release: str) -> dict[str, Any]:
    """What the reader looks at in a real library."""
    with opened(path, path.name, guard.MOST_BYTES) as real:
        functions = guard._functions(real)
        bodies = [f for f in functions if not guard._tests(f.name)]
        called = sorted({step for body in bodies for step in _targets(real, body)} - {f.address for f in functions})
        slots = guard._imported(real)
        stubs = [address for address in called if guard._through_plt(real, address) in slots]
        return {
            "release": release,
            "functions": [
                {
                    "name": f.name.decode(),
                    "address": f.address,
                    "size": f.size,
                    "code": real.code(f.address, f.size).hex() if f in bodies else "",
                }
                for f in functions
            ],
            "stubs": [{"address": address, "code": real.code(address, 16).hex()} for address in stubs],
            "imported": ["TestCPUFeature" for _ in stubs],
            "slots": [guard._through_plt(real, address) for address in stubs],
        }


def _targets(real: Library, body: guard.Function) -> set[int]:
    from capstone import CS_ARCH_X86, CS_MODE_64, Cs

    steps = Cs(CS_ARCH_X86, CS_MODE_64).disasm(real.code(body.address, body.size), body.address)
    return {int(step.op_str, 16) for step in steps if step.mnemonic == "call" and step.op_str.startswith("0x")}


if __name__ == "__main__":
    print(json.dumps(record(Path(sys.argv[1]), sys.argv[2]), indent=1))
