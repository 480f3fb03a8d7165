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
from tests.binary.assembled import Row
from tests.rows import each
from tfbuild.binary import machinecode
from tfbuild.cpu import isa

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
    assert row.needs <= isa.closure(needed) | extra


@pytest.mark.parametrize("arch", ARCHES)
def test_every_feature_has_an_instruction_that_shows_it(arch: str) -> None:
    shown = {name for row in assembled.recorded(arch) for name in machinecode.count(row.code, arch).needing}
    assert machinecode.features(arch) - shown <= UNTRIED


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


def test_a_cut_off_instruction_is_unread_bytes_and_nothing_else() -> None:
    (row,) = [row for row in assembled.recorded("x86_64") if row.text == "vdpbf16ps 64(%rax),%zmm2,%zmm3"]
    for end in range(1, len(row.code)):
        assert "avx512_bf16" not in machinecode.count(row.code[:end], "x86_64").needing


@examples.many
@given(st.binary(max_size=200))
def test_no_bytes_stop_it(code: bytes) -> None:
    counted = machinecode.count(code, "x86_64")
    assert counted.instructions + counted.unread <= len(code)
    assert (counted.instructions + counted.unread > 0) == bool(code)
    assert sum(counted.needing.values()) >= max(counted.needing.values(), default=0)
    words = machinecode.count(code, "aarch64")
    assert (words.instructions, words.unread) == divmod(len(code), 4)


def test_the_double_byte_encoding_of_old_cpus_is_no_feature() -> None:
    """tzcnt is `rep bsf`, which compilers write for CPUs that know bsf alone."""
    assert not machinecode.count(bytes.fromhex("f3480fbcd8"), "x86_64").needing


def test_instructions_are_those_of_the_decoder_s_own_iterator() -> None:
    """Code of all kinds: what the assembler makes for each feature, and this Python's."""
    code = b"".join(row.code for row in assembled.recorded("x86_64")) + Path(sys.executable).read_bytes()[: 1 << 20]
    decoder = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    start = unplain = 0
    while start < len(code):
        piece = code[start : start + machinecode.PIECE]
        found = machinecode._disassembled(piece)
        rows = list(decoder.disasm_lite(piece, 0))
        others = [(address, name, text) for address, _, name, text in rows if not machinecode._plain(name)]
        assert found.others == others
        assert found.plain + len(others) == len(rows)
        assert found.end == (rows[-1][0] + rows[-1][1] if rows else 0)
        start, unplain = start + (found.end or 1), unplain + len(others)
    assert unplain > 200
