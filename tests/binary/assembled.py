"""Instructions and the CPU features that GNU as says each needs: an oracle for tfbuild/binary/machinecode.py.

tests/data/machinecode/x86_64.tsv has one row an instruction: its bytes, its text, and every feature without which GNU
as refuses it. `python -m tests.binary.assembled x86_64` writes the rows again; a new one is a line with a text alone.
"""

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elftools.elf.elffile import ELFFile

from tfbuild.binary import machinecode

DATA = Path(__file__).parents[1] / "data" / "machinecode"
# How GNU as calls a feature; those that are not here it calls as tfbuild does.
SPELLED = {
    "sse4_1": "sse4.1", "sse4_2": "sse4.2", "pclmulqdq": "pclmul", "bmi1": "bmi", "lahf_lm": "lahf_sahf",
    "rdrand": "rdrnd", "sha_ni": "sha",
}  # fmt: skip
PROGRAMS = {"x86_64": "as", "aarch64": "aarch64-linux-gnu-as"}
# Extensions of A64 as GNU as calls them.
ARM = {
    "atomics": "lse", "crc32": "crc", "asimdrdm": "rdma", "asimddp": "dotprod", "lrcpc": "rcpc", "bf16": "bf16",
    "i8mm": "i8mm", "sve": "sve", "sve2": "sve2", "asimdhp": "fp16", "asimdfhm": "fp16fml", "crypto": "crypto",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Row:
    """`needs`: all features, those included that another one brings."""

    code: bytes
    text: str
    needs: frozenset[str]


def recorded(arch: str) -> list[Row]:
    fields = (line.split("\t") for line in _lines(arch))
    return [Row(code=bytes.fromhex(code), text=text, needs=frozenset(needs.split())) for code, text, needs in fields]


def source(arch: str) -> list[str]:
    """Return the text of each instruction."""
    return [line.split("\t")[1] if "\t" in line else line for line in _lines(arch)]


def _lines(arch: str) -> list[str]:
    return (DATA / f"{arch}.tsv").read_text(encoding="utf-8").splitlines()


def write(arch: str) -> None:
    rows = (f"{row.code.hex()}\t{row.text}\t{' '.join(sorted(row.needs))}\n" for row in assembled(arch, names(arch)))
    (DATA / f"{arch}.tsv").write_text("".join(rows), encoding="utf-8")


def assembled(arch: str, names: list[str]) -> list[Row]:
    """What GNU as on this machine says of each instruction, asked for each feature of `names`."""
    lines = source(arch)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        refused = {feature: _refused(arch, feature, lines, folder) for feature in names}
        code = list(_code(arch, lines, folder))
    needs = [frozenset(f for f, numbers in refused.items() if i in numbers) for i in range(len(lines))]
    return [Row(code=c, text=t, needs=n) for c, t, n in zip(code, lines, needs, strict=True)]


def _refused(arch: str, feature: str, lines: list[str], folder: Path) -> set[int]:
    """Numbers of the lines that GNU as refuses where the feature is off."""
    file = folder / "off.s"
    if arch == "x86_64":
        head = f".arch .no{SPELLED.get(feature, feature)}"
    else:
        others = "+".join(["armv8.2-a", *(name for other, name in ARM.items() if other != feature)])
        head = f".arch {others}+no{ARM[feature]}"
    file.write_text("\n".join([head, *lines]) + "\n", encoding="utf-8")
    done = subprocess.run([PROGRAMS[arch], "-o", folder / "off.o", file], capture_output=True, text=True, check=False)
    numbers = {int(number) - 2 for number in re.findall(r"off\.s:(\d+): Error", done.stderr)}
    if -1 in numbers:
        raise ValueError(f"GNU as does not know {feature}: {done.stderr.splitlines()[1]}")
    return numbers


def _code(arch: str, lines: list[str], folder: Path) -> Iterator[bytes]:
    """The bytes of each line, by a label in front of it."""
    file = folder / "on.s"
    head = [] if arch == "x86_64" else [".arch " + "+".join(["armv8.2-a", *ARM.values()])]
    labelled = [f"l{number}: {line}" for number, line in enumerate(lines)]
    file.write_text("\n".join([*head, *labelled, "end:"]) + "\n", encoding="utf-8")
    subprocess.run([PROGRAMS[arch], "--keep-locals", "-o", folder / "on.o", file], check=True)
    with (folder / "on.o").open("rb") as stream:
        sections: dict[str, Any] = {section.name: section for section in ELFFile(stream).iter_sections()}
        code = sections[".text"].data()
        symbols = {s.name: s["st_value"] for s in sections[".symtab"].iter_symbols()}
    ends = [symbols[f"l{number}"] for number in range(1, len(lines))] + [symbols["end"]]
    for number, end in enumerate(ends):
        yield code[symbols[f"l{number}"] : end]


def recognised(arch: str) -> frozenset[str]:
    """Return the features whose instructions tfbuild recognises, in canonical names."""
    table = machinecode.table()
    rows = (table.arm,) if arch == "aarch64" else (table.x86, table.opcode, table.encoded)
    return frozenset(row.feature for kind in rows for row in kind)


def names(arch: str) -> list[str]:
    """The features that GNU as 2.40 can switch off by itself."""
    return [name for name in sorted(recognised(arch)) if name not in ("avx_vnni_int16", "lahf_lm")]


if __name__ == "__main__":
    write(sys.argv[1])
