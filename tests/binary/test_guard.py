"""The CPU guard is read out of real wheels' code, and out of garbage comes a reason, never anything else."""

import re
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from elftools.elf.elffile import ELFFile
from hypothesis import given
from hypothesis import strategies as st

from tests import examples
from tests.binary import libraries
from tfbuild import binary
from tfbuild.binary import MOST_TABLE, LibraryUnreadable
from tfbuild.binary import guard as guard_module
from tfbuild.binary.guard import Guard, read_guard
from tfbuild.facts import releases

AVX = ("SSE", "SSE2", "SSE3", "SSE4.1", "SSE4.2", "AVX")
UNUSED_2_9 = ("AVX2", "AVX512F", "AVX512_VNNI", "AVX512_BF16", "AVX_VNNI", "AMX_TILE", "AMX_INT8", "AMX_BF16", "FMA")
UNUSED_2_16 = (
    *("AVX2", "AVX512F", "AVX512_VNNI", "AVX512_BF16", "AVX512_FP16", "AVX_VNNI", "AVX_VNNI_INT8", "AVX_NE_CONVERT"),
    *("AMX_TILE", "AMX_INT8", "AMX_BF16", "AMX_FP16", "FMA"),
)
WHEELS = {
    # GCC 9.3, by tfbuild: the constructor is not inlined.
    "tfbuild-2.0.4-x86-64-v4": ((*AVX, "AVX2", "AVX512F", "FMA"), ()),
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
    spelled = {"SSE3": "sse3", "SSE4.1": "sse4_1", "SSE4.2": "sse4_2"}
    assert guard.features == {spelled.get(name, name.lower()) for name in guard.compiled[2:]}


def test_the_guard_of_another_release_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, libraries.library(libraries.recorded("tensorflow_cpu-2.21.0")))
    with pytest.raises(LibraryUnreadable, match=r"does not have: \[44, 45, 46, 47\]"):
        read_guard(path, "2.14.0")
    path = written(tmp_path, libraries.library(libraries.recorded("tensorflow_cpu-2.14.0")))
    with pytest.raises(LibraryUnreadable, match="does not ask for AVX512_FP16"):
        read_guard(path, "2.21.0")


def test_amx_shows_by_not_being_called_unused(tmp_path: Path) -> None:
    record = libraries.recorded("tensorflow_cpu-2.21.0")
    body = next(f for f in record["functions"] if "CallOnceImpl" in f["name"])
    # The constant of AMX_TILE (41) becomes that of AMX_INT8 (42): nobody asks for AMX_TILE any more.
    assert body["code"].count("bf29000000") == 1
    body["code"] = body["code"].replace("bf29000000", "bf2a000000")
    guard = read_guard(written(tmp_path, libraries.library(record)), "2.21.0")
    assert "AMX_TILE" in guard.compiled
    assert "AMX_TILE" not in guard.unused


def test_on_aarch64_the_guard_knows_nothing(tmp_path: Path) -> None:
    record = libraries.recorded("tensorflow_cpu-2.21.0")
    arm = written(tmp_path, libraries.library(record, machine=183))
    assert read_guard(arm, "2.21.0") == Guard(compiled=(), unused=())
    with pytest.raises(LibraryUnreadable, match="EM_MIPS, which TensorFlow's guard does not know"):
        read_guard(written(tmp_path, libraries.library(record, machine=8)), "2.21.0")
    with pytest.raises(LibraryUnreadable, match="cannot be read"):
        read_guard(tmp_path / "missing", "2.21.0")


WHOLE = libraries.library(libraries.recorded("tensorflow_cpu-2.21.0"))


@pytest.mark.parametrize("size", [len(WHOLE), MOST_TABLE + 1, 2**63])
@pytest.mark.parametrize("name", [".symtab", ".strtab", ".rela.plt"])
def test_a_section_beyond_the_file_is_refused(name: str, size: int, tmp_path: Path) -> None:
    elf = ELFFile(BytesIO(WHOLE))
    header = elf["e_shoff"] + elf.get_section_index(name) * elf["e_shentsize"]
    # The size is the sixth field of an entry: after two words and three double words.
    content = WHOLE[: header + 32] + size.to_bytes(8, "little") + WHOLE[header + 40 :]
    with pytest.raises(LibraryUnreadable, match=rf"the library's {re.escape(name)} is (cut off|far too large)"):
        read_guard(written(tmp_path, content), "2.21.0")


@examples.many
@given(changes=st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), min_size=1, max_size=40))
def test_changed_bytes_never_end_in_another_exception(
    changes: list[tuple[int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    content = bytearray(WHOLE)
    for position, value in changes:
        content[position] = value
    with suppress(LibraryUnreadable):
        read_guard(written(tmp_path_factory.getbasetemp(), bytes(content)), "2.21.0")


def test_spelling_follows_the_message_s_order() -> None:
    features = frozenset({"fma", "avx2", "avx512_vnni", "avx512vl", "sse4_1"})
    assert releases.guard_spelling("2.14.0", features) == ("SSE4.1", "AVX2", "AVX512_VNNI", "FMA")
    assert releases.guard_spelling("2.8.0", features) == ("SSE4.1", "AVX2", "FMA")


# --- made-up guards: how a call reaches a test ------------------------------------------------------------------------

RELEASE = "1.15.0"
NUMBERS = {row.name: row.number for row in releases.guard(RELEASE)}
CODE, TEST, STUB, SLOT = 0x10000, 0x30000, 0x40000, 0x50000
CHECK = "_ZN10tensorflow4port12_GLOBAL__N_117CheckFeatureOrDieE"
FIRST = "_GLOBAL__sub_I_cpu_feature_guard.cc"
SECOND = "_ZN10tensorflow4port26InfoAboutUnusedCPUFeaturesEv"
ENDBR, BND = "f30f1efa", "f2"


def relative(code: str, target: int, at: int) -> str:
    """Return an instruction whose last four bytes are the distance from its end to the target."""
    length = len(code) // 2 + 4
    return code + (target - at - length).to_bytes(4, "little", signed=True).hex()


def asking(numbers: list[int], base: int, call: str = "e8", target: int = TEST, before: str = "") -> str:
    """Code that asks for each feature. `before`: instructions between the constant and the call."""
    code = ""
    for number in numbers:
        code += f"bf{number.to_bytes(4, 'little').hex()}{before}"
        code += relative(call, target, base + len(code) // 2)
    return code + "c3"


def made_up(stub: str = "", test: str = CHECK, **how: Any) -> dict[str, Any]:
    """A guard compiled for all but AVX2; `stub`: what stands between the call and the test."""
    unused = [NUMBERS["AVX2"]]
    compiled = [number for number in NUMBERS.values() if number not in unused]
    functions = [
        {"name": name, "address": base, "size": 0x1000, "code": asking(numbers, base, **how)}
        for name, base, numbers in ((FIRST, CODE, compiled), (SECOND, CODE + 0x8000, unused))
    ]
    return {
        "functions": [*functions, {"name": test, "address": TEST, "size": 16, "code": ""}],
        "stubs": [{"address": STUB, "code": stub}],
        "imported": ["puts", "_ZN10tensorflow4port14TestCPUFeatureENS0_10CPUFeatureE"],
        "slots": [SLOT, SLOT + 8],
    }


def guard_of(folder: Path, record: dict[str, Any]) -> Guard:
    return read_guard(written(folder, libraries.library(record)), RELEASE)


THROUGH = {"stub": relative("ff25", SLOT + 8, STUB), "target": STUB}
WAYS: dict[str, dict[str, Any]] = {
    "direct": {},
    "PLT": THROUGH,
    "PLT with control-flow protection": THROUGH | {"stub": ENDBR + relative(f"{BND}ff25", SLOT + 8, STUB + 4)},
    "GOT": {"call": "ff15", "target": SLOT + 8},
    "another register is loaded on the way": {"before": "be05000000"},
}


@pytest.mark.parametrize("way", WAYS)
def test_a_call_is_followed_whichever_way_it_takes(way: str, tmp_path: Path) -> None:
    guard = guard_of(tmp_path, made_up(**WAYS[way]))
    assert guard.unused == ("AVX2",)
    assert guard.compiled == tuple(name for name in NUMBERS if name != "AVX2")


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"call": "ff15", "target": SLOT}, "asks for no feature"),
        (THROUGH | {"stub": relative("ff25", SLOT, STUB)}, "asks for no feature"),
        (THROUGH | {"stub": "90" + relative("ff25", SLOT + 8, STUB + 1)}, "asks for no feature"),
        ({"test": f"{CHECK}.part.0"}, "asks for no feature"),
        ({"test": "something_else"}, "asks for no feature"),
        ({"before": "eb00"}, "has no constant feature"),
        ({"before": "31ff"}, "has no constant feature"),
        ({"before": "4889df"}, "has no constant feature"),
        ({"before": relative("e8", TEST + 64, 0)}, "has no constant feature"),
    ],
    ids=[
        "GOT of another", "PLT of another", "no PLT entry", "the rare part", "another name",
        "a jump", "the register is cleared", "the register is copied", "a call of another",
    ],
)  # fmt: skip
def test_a_call_that_cannot_be_followed_is_told(how: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(LibraryUnreadable, match=told):
        guard_of(tmp_path, made_up(**how))


@pytest.mark.parametrize(
    ("limit", "value", "told"),
    [
        ("MOST_BYTES", 1000, "bytes: too large to be a library"),
        ("MOST_SECTIONS", 5, "a sane number of sections"),
        ("MOST_FUNCTIONS", 2, "far too often"),
    ],
)
def test_what_is_read_is_limited(
    limit: str, value: int, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = libraries.library(made_up())
    module = binary if hasattr(binary, limit) else guard_module
    monkeypatch.setattr(module, limit, value)
    with pytest.raises(LibraryUnreadable, match=told):
        read_guard(written(tmp_path, content), RELEASE)
