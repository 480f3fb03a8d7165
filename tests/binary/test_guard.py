"""The CPU guard is read out of real wheels' code, and out of garbage comes a reason, never anything else."""

import re
from contextlib import suppress
from io import BytesIO
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from hypothesis import given
from hypothesis import strategies as st

from tests import examples
from tests.binary import libraries
from tfbuild import facts
from tfbuild.binary.guard import MOST_TABLE, Guard, GuardUnreadable, compiled_features, read_guard
from tfbuild.facts import guard as guards

AVX = ("SSE", "SSE2", "SSE3", "SSE4.1", "SSE4.2", "AVX")
UNUSED_2_9 = ("AVX2", "AVX512F", "AVX512_VNNI", "AVX512_BF16", "AVX_VNNI", "AMX_TILE", "AMX_INT8", "AMX_BF16", "FMA")
UNUSED_2_16 = (
    *("AVX2", "AVX512F", "AVX512_VNNI", "AVX512_BF16", "AVX512_FP16", "AVX_VNNI", "AVX_VNNI_INT8", "AVX_NE_CONVERT"),
    *("AMX_TILE", "AMX_INT8", "AMX_BF16", "AMX_FP16", "FMA"),
)
WHEELS = {
    "tensorflow-2.0.4": (AVX, ("AVX2", "AVX512F", "FMA")),  # GCC 7
    "tensorflow_cpu-2.10.0": (AVX, UNUSED_2_9),  # GCC 9; the others: Clang
    "tensorflow_cpu-2.14.0": (AVX, UNUSED_2_9),
    "tensorflow_cpu-2.21.0": (AVX, UNUSED_2_16),
    "intel_tensorflow_avx512-2.14.0": ((*AVX, "AVX2", "AVX512F", "FMA"), UNUSED_2_9[2:-1]),
}


def written(folder: Path, content: bytes) -> Path:
    path = folder / "library.so"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("name", WHEELS)
def test_reads_the_guard_of_real_wheels(name: str, tmp_path: Path) -> None:
    record = libraries.recorded(name)
    guard = read_guard(written(tmp_path, libraries.library(record)), record["release"])
    assert (guard.compiled, guard.unused) == WHEELS[name]


def test_canonical_names_of_what_was_compiled_in(tmp_path: Path) -> None:
    path = written(tmp_path, libraries.library(libraries.recorded("intel_tensorflow_avx512-2.14.0")))
    expected = {"sse3", "sse4_1", "sse4_2", "avx", "avx2", "avx512f", "fma"}
    assert compiled_features(path, "2.14.0") == expected


def test_a_stripped_library_is_told_as_such(tmp_path: Path) -> None:
    path = written(tmp_path, libraries.library(libraries.recorded("tensorflow_cpu-2.21.0"), symbols=False))
    with pytest.raises(GuardUnreadable, match="stripped"):
        read_guard(path, "2.21.0")


def test_a_library_with_other_symbols_only_is_told_as_stripped(tmp_path: Path) -> None:
    record = libraries.recorded("tensorflow_cpu-2.21.0")
    for function in record["functions"]:
        function["name"] = "something_else"
    with pytest.raises(GuardUnreadable, match="stripped"):
        read_guard(written(tmp_path, libraries.library(record)), "2.21.0")


def test_the_guard_of_another_release_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, libraries.library(libraries.recorded("tensorflow_cpu-2.21.0")))
    with pytest.raises(GuardUnreadable, match=r"does not have: \[44, 45, 46, 47\]"):
        read_guard(path, "2.14.0")
    path = written(tmp_path, libraries.library(libraries.recorded("tensorflow_cpu-2.14.0")))
    with pytest.raises(GuardUnreadable, match="does not ask for AVX512_FP16"):
        read_guard(path, "2.21.0")


def test_a_call_without_a_constant_is_refused_rather_than_left_out(tmp_path: Path) -> None:
    record = libraries.recorded("tensorflow_cpu-2.21.0")
    for function in record["functions"]:
        function["code"] = function["code"].replace("bf0c000000", "89df909090")  # mov $12,%edi -> mov %ebx,%edi; nops
    with pytest.raises(GuardUnreadable, match="no constant feature"):
        read_guard(written(tmp_path, libraries.library(record)), "2.21.0")


def test_amx_shows_by_not_being_called_unused(tmp_path: Path) -> None:
    record = libraries.recorded("tensorflow_cpu-2.21.0")
    body = next(f for f in record["functions"] if "CallOnceImpl" in f["name"])
    # The constant of AMX_TILE (41) becomes that of AMX_INT8 (42): nobody asks for AMX_TILE any more.
    assert body["code"].count("bf29000000") == 1
    body["code"] = body["code"].replace("bf29000000", "bf2a000000")
    guard = read_guard(written(tmp_path, libraries.library(record)), "2.21.0")
    assert "AMX_TILE" in guard.compiled
    assert "AMX_TILE" not in guard.unused


def test_a_library_made_to_be_slow_is_refused(tmp_path: Path) -> None:
    record = libraries.recorded("tensorflow_cpu-2.21.0")
    body = next(f for f in record["functions"] if "CallOnceImpl" in f["name"])
    record["functions"] += [body | {"name": f"{body['name']}{index}", "code": ""} for index in range(40)]
    with pytest.raises(GuardUnreadable, match="42 functions"):
        read_guard(written(tmp_path, libraries.library(record)), "2.21.0")


def test_on_aarch64_the_guard_knows_nothing(tmp_path: Path) -> None:
    content = libraries.library(libraries.recorded("tensorflow_cpu-2.21.0"), machine=183)
    assert read_guard(written(tmp_path, content), "2.21.0") == Guard(compiled=(), unused=())


def test_what_is_no_file_has_a_reason(tmp_path: Path) -> None:
    with pytest.raises(GuardUnreadable, match="cannot be read"):
        read_guard(tmp_path / "missing", "2.21.0")
    with pytest.raises(GuardUnreadable):
        read_guard(written(tmp_path, b""), "2.21.0")


WHOLE = libraries.library(libraries.recorded("tensorflow_cpu-2.21.0"))


@pytest.mark.parametrize("size", [len(WHOLE), MOST_TABLE + 1, 2**63])
@pytest.mark.parametrize("name", [".symtab", ".strtab", ".rela.plt"])
def test_a_section_beyond_the_file_is_refused(name: str, size: int, tmp_path: Path) -> None:
    elf = ELFFile(BytesIO(WHOLE))
    header = elf["e_shoff"] + elf.get_section_index(name) * elf["e_shentsize"]
    # The size is the sixth field of an entry: after two words and three double words.
    content = WHOLE[: header + 32] + size.to_bytes(8, "little") + WHOLE[header + 40 :]
    with pytest.raises(GuardUnreadable, match=rf"the library's {re.escape(name)} is cut off or far too large"):
        read_guard(written(tmp_path, content), "2.21.0")


def refused_or_read(folder: Path, content: bytes) -> None:
    with suppress(GuardUnreadable):
        read_guard(written(folder, content), "2.21.0")


@examples.many
@given(cut=st.integers(0, len(WHOLE) - 1))
def test_every_cut_off_library_is_refused_with_a_reason(cut: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.raises(GuardUnreadable):
        read_guard(written(tmp_path_factory.getbasetemp(), WHOLE[:cut]), "2.21.0")


@examples.many
@given(changes=st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), min_size=1, max_size=40))
def test_changed_bytes_never_end_in_another_exception(
    changes: list[tuple[int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    content = bytearray(WHOLE)
    for position, value in changes:
        content[position] = value
    refused_or_read(tmp_path_factory.getbasetemp(), bytes(content))


@examples.many
@given(header=st.binary(min_size=58, max_size=58))
def test_a_random_header_never_ends_in_another_exception(
    header: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    refused_or_read(tmp_path_factory.getbasetemp(), WHOLE[:6] + header + WHOLE[64:])


@pytest.mark.parametrize("version", ["2.9.0", "2.14.0", "2.16.2", "2.21.0"])
def test_the_rows_are_the_header_s_of_real_wheels(version: str) -> None:
    header = (libraries.DATA / f"cpu_info-{version}.h").read_text()
    numbers = {name: int(number) for name, number in re.findall(r"^  (\w+) = (\d+),", header, re.MULTILINE)}
    rows = guards.known(version)
    assert {row.enum: row.number for row in rows} == {row.enum: numbers[row.enum] for row in rows}


def test_the_rows_and_the_features_spell_alike() -> None:
    spelled = {row.tensorflow for row in facts.features("x86_64") if row.tensorflow}
    assert spelled == {row.name for row in guards.known("2.21.0")} - {"SSE", "SSE2"}


@pytest.mark.parametrize(
    ("release", "names"),
    [
        ("1.15.0", (*AVX, "AVX2", "AVX512F", "FMA")),
        ("2.8.4", (*AVX, "AVX2", "AVX512F", "FMA")),
        ("2.9.0", (*AVX, *UNUSED_2_9)),
        ("2.15.1", (*AVX, *UNUSED_2_9)),
        ("2.16.1", (*AVX, *UNUSED_2_16)),
    ],
)
def test_what_the_guard_of_each_release_knows(release: str, names: tuple[str, ...]) -> None:
    assert tuple(row.name for row in guards.known(release)) == names


def test_amx_is_judged_only_where_the_guard_can_tell() -> None:
    assert "AMX_TILE" not in guards.judged("2.15.1")
    assert "AMX_TILE" in guards.judged("2.16.1")
    assert "amx_tile" in guards.guard_features("2.21.0")
    assert "avx512vl" not in guards.guard_features("2.21.0")


def test_spelling_follows_the_message_s_order() -> None:
    features = frozenset({"fma", "avx2", "avx512_vnni", "avx512vl", "sse4_1"})
    assert guards.spelling("2.14.0", features) == ("SSE4.1", "AVX2", "AVX512_VNNI", "FMA")
    assert guards.spelling("2.8.0", features) == ("SSE4.1", "AVX2", "FMA")
