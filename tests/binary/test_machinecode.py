"""Instructions and what they need, against GNU as: it refuses an instruction where a feature that it needs is off."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import capstone
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import examples
from tests.binary import assembled
from tests.binary.assembled import Row, recognised
from tests.rows import each
from tfbuild import facts
from tfbuild.binary import machinecode

ARCHES = ("x86_64", "aarch64")
ROWS = [(arch, row) for arch in ARCHES for row in assembled.recorded(arch)]
# What GNU as alone wants besides: VPCLMULQDQ's manual names AVX, and GNU as AVX2.
GNU_ALONE = {"vpclmulqdq": frozenset({"avx2"})}
# No assembler here can switch these off by themselves.
UNTRIED = {"avx_vnni_int16", "lahf_lm", "cx16", "fisttp"}


@each("arch, row", ROWS)
def test_an_instruction_needs_what_gnu_as_wants_for_it(arch: str, row: Row) -> None:
    counted = machinecode.count(row.code, arch)
    assert (counted.instructions, counted.unread) == (1, 0)
    needed = frozenset(counted.needing)
    assert needed <= row.needs
    extra = frozenset[str]().union(*(GNU_ALONE.get(name, frozenset()) for name in needed))
    assert row.needs <= facts.closure(needed) | extra


@pytest.mark.parametrize("arch", ARCHES)
def test_every_feature_has_an_instruction_that_shows_it(arch: str) -> None:
    shown = {name for row in assembled.recorded(arch) for name in machinecode.count(row.code, arch).needing}
    assert recognised(arch) - shown <= UNTRIED


@pytest.mark.parametrize("arch", ARCHES)
def test_the_records_are_what_gnu_as_says(arch: str) -> None:
    program = assembled.PROGRAMS[arch]
    if shutil.which(program) is None:
        pytest.skip(f"no {program} here")
    version_text = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    version = re.search(r" (\d+)\.(\d+)", version_text.splitlines()[0])
    if version is None or (int(version[1]), int(version[2])) != (2, 40):
        pytest.skip(f"the records are of GNU as 2.40, not of {version_text.splitlines()[0]}")
    assert assembled.assembled(arch, assembled.names(arch)) == assembled.recorded(arch)


@pytest.mark.parametrize("arch", ARCHES)
def test_a_stream_counts_like_its_parts(arch: str) -> None:
    """Many times over, so that pieces end within instructions."""
    rows = assembled.recorded(arch) * 40
    whole = machinecode.count(b"".join(row.code for row in rows), arch)
    parts = [machinecode.count(row.code, arch) for row in rows]
    assert (whole.instructions, whole.unread) == (len(rows), 0)
    assert whole.needing == sum((part.needing for part in parts), start=type(whole.needing)())


@examples.many
@given(st.binary(max_size=200))
def test_no_bytes_stop_it(code: bytes) -> None:
    counted = machinecode.count(code, "x86_64")
    assert counted.instructions + counted.unread <= len(code)
    assert (counted.instructions + counted.unread > 0) == bool(code)
    assert max(counted.needing.values(), default=0) <= counted.instructions
    words = machinecode.count(code, "aarch64")
    assert (words.instructions, words.unread) == divmod(len(code), 4)


def test_what_looks_like_a_feature_and_is_none() -> None:
    """tzcnt is `rep bsf`, which compilers write for CPUs that know bsf alone; vaddbf16 of AVX10.2 lies beside FP16."""
    assert not machinecode.count(bytes.fromhex("f3480fbcd8 62f56d4858d9"), "x86_64").needing


def test_instructions_are_those_of_the_decoder_s_own_iterator() -> None:
    """Code of all kinds: what the assembler makes for each feature, and this Python's."""
    code = b"".join(row.code for row in assembled.recorded("x86_64")) + Path(sys.executable).read_bytes()[: 1 << 20]
    decoder = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    start = unplain = 0
    while start < len(code):
        piece = code[start : start + machinecode.PIECE_BYTES]
        plain, found, end = machinecode._disassembled(piece)
        rows = list(decoder.disasm_lite(piece, 0))
        others = [(address, name, text) for address, _, name, text in rows if not machinecode._plain(name)]
        assert found == others
        assert plain + len(others) == len(rows)
        assert end == (rows[-1][0] + rows[-1][1] if rows else 0)
        start, unplain = start + (end or 1), unplain + len(others)
    assert unplain > 200


# --- instructions that are read by their opcode -----------------------------------------------------------------------


def by_opcode(code: bytes) -> bool:
    """Whether an instruction has VEX, EVEX, or an opcode of the maps 0F38 and 0F3A: what read_opcode() is for.

    vzeroupper and vzeroall have no byte for operands, and the decoder knows them.
    """
    if code[-1] == 0x77:
        return False
    rest = code.lstrip(b"\x66\xf2\xf3")
    rest = rest[1:] if 0x40 <= rest[0] <= 0x4F else rest
    return rest[0] in (machinecode.VEX2, machinecode.VEX3, machinecode.EVEX) or rest[:2] in (b"\x0f\x38", b"\x0f\x3a")


@each("row", [row for row in assembled.recorded("x86_64") if by_opcode(row.code)])
def test_an_opcode_is_read_whole_and_never_cut_off(row: Row) -> None:
    read = machinecode.read_opcode(row.code + b"\x90" * 16)
    assert read is not None
    assert (read.length, read.code in row.code) == (len(row.code), True)
    assert [end for end in range(len(row.code)) if machinecode.read_opcode(row.code[:end]) is not None] == []
    registers = [name for name in ("zmm", "ymm", "xmm") if f"%{name}" in row.text]
    if registers and read.encoding != "legacy" and not any(word in row.text for word in ("sae", "{1to")):
        assert read.width == registers[0]


@pytest.mark.parametrize(
    ("code", "opcode"),
    [
        ("0f38c8d1", ("legacy", 2, 0xC8, "", "", 4)),
        ("f20f38f0d1", ("legacy", 2, 0xF0, "f2", "", 5)),
        ("c5e8c6d901", ("vex", 1, 0xC6, "", "xmm", 5)),  # an immediate
        ("c4e26d50d9", ("vex", 2, 0x50, "66", "ymm", 5)),
        ("62f26d4850d9", ("evex", 2, 0x50, "66", "zmm", 6)),
        ("62f3ed48cfd901", ("evex", 3, 0xCF, "66", "zmm", 7)),
        # The operand in memory: plain, after %rip, with a scale, without a base, and one or four bytes away.
        ("c4e26d500511223344", ("vex", 2, 0x50, "66", "ymm", 9)),
        ("c4e26d50048511223344", ("vex", 2, 0x50, "66", "ymm", 10)),
        ("c4e26d504011", ("vex", 2, 0x50, "66", "ymm", 6)),
        ("c4e26d50448811", ("vex", 2, 0x50, "66", "ymm", 7)),
        ("c4e26d50848811223344", ("vex", 2, 0x50, "66", "ymm", 10)),
        ("2ec4e26d50d9", ("vex", 2, 0x50, "66", "ymm", 6)),  # a prefix that names a segment
    ],
)
def test_each_form_of_an_opcode(code: str, opcode: tuple[str, int, int, str, str, int]) -> None:
    whole = bytes.fromhex(code)
    assert machinecode.read_opcode(whole) == machinecode.Opcode(*opcode)
    assert machinecode.read_opcode(whole[:-1]) is None


OTHERS = "  66 90 0fa2d1d1d1 0f39d1d1d1 38cfd1d1d1 c4e06d50d9 c4e46d50d9 62f2694850d9 62fa6d4850d9"


@pytest.mark.parametrize("code", OTHERS.split(" "))
def test_other_bytes_are_no_opcode(code: str) -> None:
    """Among them maps that do not exist, and bits that EVEX has fixed."""
    assert machinecode.read_opcode(bytes.fromhex(code)) is None


def test_what_is_no_instruction_is_skipped_byte_by_byte() -> None:
    """An opcode without a row is rather data; the next instruction is found again."""
    unknown = bytes.fromhex("c4e26dffd9")
    known = bytes.fromhex("c4e26d50d9")
    counted = machinecode.count(unknown + b"\x90" * 16 + known, "x86_64")
    assert counted.unread >= 1
    assert counted.needing["avx_vnni"] == 1
