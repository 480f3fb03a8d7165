"""What a library was compiled for, on small ELF files; those of real wheels: tests/with_engine/test_inspect.py."""

import io
import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.binary import assembled, libraries
from tests.binary.libraries import PROGBITS, STRTAB, SYMTAB, Part
from tests.commandline import invoke
from tfbuild import binary, facts
from tfbuild.binary import SYMBOL, LibraryUnreadable, inspector, scan
from tfbuild.binary.inspector import Inspection
from tfbuild.binary.scan import ScannedCode
from tfbuild.cpu import isa
from tfbuild.errors import BadInput
from tfbuild.plan import wheel
from tfbuild.util.progress import Progress

BASE = 0x1000
NOP, RETURN = bytes.fromhex("0f1f840000000000"), b"\xc3"
CODE = {row.text: row.code for row in assembled.recorded("x86_64")}
AVX, AVX2, ZMM, BMI2 = (
    CODE[text]
    for text in (
        "vaddps %xmm1,%xmm2,%xmm3",
        "vpaddd %ymm1,%ymm2,%ymm3",
        "vaddps %zmm1,%zmm2,%zmm3",
        "shlx %rax,%rbx,%rcx",
    )
)
SIZE = 1024  # of a function
REGIONS = 64
FUNCTIONS = REGIONS * scan.WINDOW // SIZE
Name = Callable[[int], str]


def eigen(number: int) -> str:
    return f"_ZN5Eigen8internal{len(str(number)) + 1}f{number}Ev"


def function(*instructions: bytes) -> bytes:
    body = b"".join(instructions)
    return body + NOP * ((SIZE - len(body) - 1) // len(NOP)) + RETURN * ((SIZE - len(body) - 1) % len(NOP) + 1)


def library(
    content: Callable[[int], bytes], name: Name | None = eigen, *, frames: bool = True, count: int = FUNCTIONS
) -> bytes:
    """An x86-64 library of `count` functions; without `name` it is stripped."""
    text = b"".join(function(AVX, content(number)) for number in range(count))
    addresses = [BASE + number * SIZE for number in range(count)]
    parts = [Part(name=".text", kind=PROGBITS, address=BASE, content=text)]
    if frames:
        head = BASE + len(text)
        rows = b"".join(struct.pack("<ii", address - head, 0) for address in addresses)
        header = scan.FRAME_HEADER.pack(*scan.FRAME_ENCODINGS, 0, count)
        parts.append(Part(name=".eh_frame_hdr", kind=PROGBITS, address=head, content=header + rows))
    if name:
        strings, table = libraries._symbols([(name(number), a, SIZE) for number, a in enumerate(addresses)])
        parts.append(Part(name=".symtab", kind=SYMTAB, address=0, content=table))
        parts.append(Part(name=".strtab", kind=STRTAB, address=0, content=strings))
    return libraries.elf(parts, libraries.X86_64)


@pytest.fixture
def scanned(tmp_path: Path) -> Callable[..., ScannedCode]:
    def read(content: bytes, **more: Any) -> ScannedCode:
        path = tmp_path / "lib.so"
        path.write_bytes(content)
        return scan.read_code(path, **more)

    return read


def everywhere(*instructions: bytes) -> Callable[[int], bytes]:
    return lambda number: b"".join(instructions) if number % 10 == 0 else b""


def test_what_is_all_over_a_library_it_was_compiled_for(scanned: Callable[..., ScannedCode]) -> None:
    shown = scanned(library(everywhere(AVX2, BMI2)))
    assert shown.compiled == {"avx", "avx2", "bmi2"}
    assert (shown.method, shown.arch, shown.regions) == ("symbols", "x86_64", REGIONS)
    assert shown.share("avx") == 1.0
    assert shown.coverage == 1.0
    assert shown.name == "avx2-bmi2"


@pytest.mark.parametrize(
    ("name", "project"),
    [
        ("xnn_f32_gemm_minmax_ukernel_7x16__avx512f_broadcast_{}", "XNNPACK"),
        ("_ZN3ynn31sum_squared_int8_int32_avx512bwEmmmmmmmPKvmPv{}", "YNNPACK"),
        ("_ZN3ruy16Kernel8bitAvx512ERKNS_16KernelParams8bitILi16ELi16EEE{}", "ruy"),
        ("_ZN4dnnl4impl3cpu3x645gemm{}", "oneDNN"),
        ("jsimd_idct_islow_avx2.{}", "libjpeg-turbo"),
        ("sha1_block_data_order_avx2.{}", "BoringSSL"),
        ("_ZN3jxl6N_AVX312_GLOBAL__N_117TransformToPixelsENS_14AcStrategyTypeE{}", "Highway (libjxl)"),
        ("_ZZN3jxl9N_AVX10_211InvHSqueezeERNS_5ImageEjjPNS_10ThreadPoolEE{}", "Highway (libjxl)"),
        ("dgemm_kernel_{}_SKYLAKEX", "OpenBLAS"),
    ],
)
def test_code_chosen_at_run_time_does_not_count(scanned: Callable[..., ScannedCode], name: str, project: str) -> None:
    def named(number: int) -> str:
        return name.format(number) if number % 10 == 0 else eigen(number)

    shown = scanned(library(everywhere(AVX2, ZMM), named))
    assert shown.compiled == {"avx"}
    assert list(shown.dispatched) == [project]
    assert shown.share("avx512f") == 0.0


@pytest.mark.parametrize(
    "name", ["_ZN5Eigen8internal11gebp_kernelINS_4halfES2_lE", "_ZN10tensorflow4dnnlE", "MatMulAVX2"]
)
def test_other_code_counts(name: str) -> None:
    assert scan.project(name.encode()) == ""


def test_a_stripped_library_is_judged_by_how_far_a_feature_is_spread(scanned: Callable[..., ScannedCode]) -> None:
    one_place = scanned(library(lambda number: (ZMM + AVX2) * 40 if number < 8 else b"", None))
    assert one_place.method == "spread"
    assert one_place.compiled == {"avx"}
    assert "no symbols" in one_place.how()
    # More than all of what is spread in the next one: a rate could not tell them apart.
    spread = scanned(library(everywhere(ZMM), None))
    assert spread.compiled == {"avx", "avx512f"}
    rates = [next(row.rate for row in shown.families if row.feature == "avx512f") for shown in (one_place, spread)]
    assert rates[0] > rates[1]


def test_a_library_with_a_few_names_left_is_a_stripped_one(scanned: Callable[..., ScannedCode]) -> None:
    content = library(everywhere(AVX2), lambda number: "guard" if number else "xnn_all_that_follows")
    assert scanned(content).method == "symbols"
    table = content.replace(b".symtab", b".symtax")
    assert scanned(table).method == "spread"


def test_without_any_table_the_whole_is_sampled_all_the_same(scanned: Callable[..., ScannedCode]) -> None:
    shown = scanned(library(everywhere(AVX2), None, frames=False), regions=REGIONS // 2)
    assert (shown.regions, shown.coverage) == (REGIONS // 2, 0.5)
    assert shown.compiled == {"avx", "avx2"}


def test_a_large_library_is_sampled_and_full_reads_all(
    scanned: Callable[..., ScannedCode], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "WINDOW", 4 * SIZE)
    content = library(everywhere(AVX2), None)
    sample, again = scanned(content, regions=64), scanned(content, regions=64)
    full = scanned(content, full=True, regions=64)
    assert sample == again
    assert (sample.regions, sample.coverage) == (64, 0.25)
    assert (full.regions, full.coverage) == (256, 1.0)
    assert sample.compiled == full.compiled == {"avx", "avx2"}
    # Of windows of one size, so that what is rare in the one is no more often in the other.
    assert full.share("avx2") == pytest.approx(sample.share("avx2"), abs=0.1)


def test_code_that_the_decoder_does_not_know_is_refused(scanned: Callable[..., ScannedCode]) -> None:
    """APX: addq %r16,%r17 and addq %rax,%rbx,%rcx."""
    content = library(lambda number: bytes.fromhex("d55801c1 62f4f41801c3") * (8 * number % 16))
    with pytest.raises(LibraryUnreadable, match="could not be decoded: the library is for a newer CPU"):
        scanned(content)


def test_rates_and_shares_are_those_of_the_regions(scanned: Callable[..., ScannedCode]) -> None:
    shown = scanned(library(lambda number: AVX2 if number < 16 else b"", count=64))
    rows = {row.feature: row for row in shown.families}
    # Four regions of sixteen functions; each function has the AVX instruction, and the first region's AVX2's too.
    assert (shown.regions, rows["avx"].share, rows["avx2"].share) == (4, 1.0, 0.25)
    assert rows["avx"].rate == pytest.approx(1000 * 64 / shown.instructions)
    assert rows["avx2"].rate == pytest.approx(1000 * 16 / shown.instructions)
    assert shown.share("avx512f") == 0.0
    assert [row.feature for row in shown.families] == ["avx", "avx2"], "in the order of the facts"


def test_what_was_left_out_is_counted_by_project(scanned: Callable[..., ScannedCode]) -> None:
    def named(number: int) -> str:
        return {0: "xnn_f32_gemm", 1: "xnn_f32_dwconv", 2: "_ZN4dnnl4impl3cpu3x641fE"}.get(number, eigen(number))

    shown = scanned(library(everywhere(AVX2), named, count=64))
    whole = scanned(library(everywhere(AVX2), count=64))
    assert [*shown.dispatched] == ["XNNPACK", "oneDNN"], "most first"
    assert shown.instructions + sum(shown.dispatched.values()) == whole.instructions


@pytest.mark.parametrize(
    ("limit", "told"),
    [
        ("MOST_BYTES", "bytes: too large to be a library"),
        ("MOST_TABLE", r"\.symtab is far too large"),
        # Each takes its time, so that millions of a byte would take hours.
        ("MOST_DECODED", "the library has more than 63 functions in the part that is read"),
    ],
)
def test_what_is_read_is_limited(
    limit: str, told: str, scanned: Callable[..., ScannedCode], monkeypatch: pytest.MonkeyPatch
) -> None:
    content = library(everywhere(AVX2), count=64)
    most = {"MOST_BYTES": len(content), "MOST_TABLE": 65 * SYMBOL.size, "MOST_DECODED": 64}[limit]
    module = binary if hasattr(binary, limit) else scan
    monkeypatch.setattr(module, limit, most)
    assert scanned(content).compiled == {"avx", "avx2"}
    monkeypatch.setattr(module, limit, most - 1)
    with pytest.raises(LibraryUnreadable, match=told):
        scanned(content)


def test_a_table_of_frames_of_another_form_is_left_alone(scanned: Callable[..., ScannedCode]) -> None:
    content = library(everywhere(AVX2), None, count=64)
    frames = scan.FRAME_HEADER.pack(*scan.FRAME_ENCODINGS, 0, 64)
    # Its rows would tell: they begin within instructions.
    head, rows = content.split(frames)
    shifted = [scan.FRAME_ENTRY.pack(place + 1, 0) for place, _ in scan.FRAME_ENTRY.iter_unpack(rows[: 64 * 8])]
    content = head + frames + b"".join(shifted) + rows[64 * 8 :]
    assert scanned(content).compiled != {"avx", "avx2"}
    for form in ((2, 0x1B, 3, 0x3B), (1, 0x1C, 3, 0x3B), (1, 0x1B, 4, 0x3B), (1, 0x1B, 3, 0x3C)):
        other = content.replace(frames, scan.FRAME_HEADER.pack(*form, 0, 64))
        assert scanned(other).compiled == {"avx", "avx2"}
    # One of a function beyond the last address.
    other = scan.FRAME_HEADER.pack(*scan.FRAME_ENCODINGS, 0, 1) + scan.FRAME_ENTRY.pack(SIZE, 0)
    text = Part(name=".text", kind=PROGBITS, address=2**64 - 16, content=function(NOP) * 4)
    table = Part(name=".eh_frame_hdr", kind=PROGBITS, address=2**64 - 8, content=other)
    assert scanned(libraries.elf([text, table])).regions == 1


# --- odd input -----------------------------------------------------------------------------------------------------

WHOLE = library(everywhere(AVX2))


@pytest.mark.parametrize(
    "content",
    [b"", b"\x7fELF", b"MZ" + bytes(100), WHOLE[:100], WHOLE[:5000], WHOLE[:-64], bytes(10_000)],
    ids=["empty", "magic alone", "another format", "header alone", "cut off", "a section cut off", "zeros"],
)
def test_what_is_no_library_is_refused(scanned: Callable[..., ScannedCode], content: bytes) -> None:
    with pytest.raises(LibraryUnreadable):
        scanned(content)


def test_odd_libraries_are_refused_with_the_reason(scanned: Callable[..., ScannedCode]) -> None:
    with pytest.raises(LibraryUnreadable, match="x86-64 and AArch64"):
        scanned(libraries.elf([Part(name=".text", kind=PROGBITS, address=BASE, content=NOP)], 8))
    with pytest.raises(LibraryUnreadable, match=r"no \.text"):
        scanned(libraries.elf([Part(name=".data", kind=PROGBITS, address=BASE, content=NOP)], libraries.X86_64))


def zipped(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def look(subject: Path | str) -> Inspection:
    assert not inspector.is_image(str(subject))
    return inspector.inspect(Path(subject), full=False, progress=Progress(io.StringIO()))


def test_broken_wheels_are_refused_with_a_hint(tmp_path: Path) -> None:
    good = zipped(tmp_path / "good-1.0-py3-none-any.whl", {"a.so": WHOLE}).read_bytes()
    central = good.index(b"PK\x01\x02")
    huge = bytearray(good)
    struct.pack_into("<I", huge, central + 24, 0xFFFFFFF0)  # the size that the member is said to have
    locked = bytearray(good)
    locked[central + 8] |= 1
    locked[6] |= 1
    spoiled = bytearray(good)
    spoiled[60:90] = bytes(30)
    empty = zipped(tmp_path / "empty.zip", {"a.py": b""}).read_bytes()
    broken = {"huge": huge, "locked": locked, "spoiled": spoiled, "cut": good[:-30], "none": b"", "empty": empty}
    for name, content in broken.items():
        path = tmp_path / f"{name}-1.0-py3-none-any.whl"
        path.write_bytes(bytes(content))
        with pytest.raises(BadInput) as caught:
            look(path)
        assert caught.value.hint, name


def test_a_broken_wheel_is_refused_by_the_plan_too(tmp_path: Path) -> None:
    name = "tensorflow_cpu-2.14.0-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"
    library = "tensorflow/libtensorflow_framework.so.2"
    whole = zipped(tmp_path / name, {library: bytes(range(256)) * 100}).read_bytes()
    start = 30 + len(library)
    path = tmp_path / name
    for content in (whole[:start] + b"\xff" * 20 + whole[start + 20 :], whole[:-30], b""):
        path.write_bytes(content)
        with pytest.raises(BadInput, match="cannot be read") as caught:
            wheel.instruction_set(wheel.from_path(path, "cpu"), "2.14.0", claimed=())
        assert caught.value.hint
    zipped(path, {"a.so": b""})
    with pytest.raises(BadInput, match=r"has no tensorflow/libtensorflow_framework\.so\.2 in it"):
        wheel.instruction_set(wheel.from_path(path, "cpu"), "2.14.0", claimed=())
    with pytest.raises(BadInput, match="no wheel at"):
        wheel.from_path(tmp_path / ("a" * 300 + ".whl"), "cpu")


def test_the_verb_gives_json_and_ends_in_the_project_s_errors(tmp_path: Path) -> None:
    path = tmp_path / "lib.so"
    path.write_bytes(WHOLE)
    first, *_, last = invoke("inspect", path).stdout.splitlines()
    assert (first, last.split()[0]) == (f"{path}: compiled for avx2", "avx2")
    shown = json.loads(invoke("inspect", path, "--json").stdout)
    assert (shown["instruction_set"], shown["libraries"][0]["features"]["avx2"]["compiled"]) == ("avx2", True)
    path.write_bytes(WHOLE[:1000])
    assert "hint: " in invoke("inspect", path, code=16).stderr
    done = invoke("inspect", zipped(tmp_path / "x-1-py3-none-any.whl", {"a\x1b[2J.so": WHOLE}))
    assert ("a [2J.so: " in done.stdout, "\x1b" in done.stdout + done.stderr) == (True, False)


# --- facts ---------------------------------------------------------------------------------------------------------


def test_every_row_names_known_features() -> None:
    rows = scan.code_table()
    names = {facts.feature(name).name for name in rows.written}
    assert {"avx", "avx2", "avx512f"} <= names
    assert {row.method for row in rows.judged} == {"symbols", "spread", "beside"}
    assert [row for row in rows.judged if not (0 < row.share < 0.25 and row.measured)] == []
    assert [row for row in rows.dispatched if not (row.reason and row.source)] == []


AVX_512 = {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
AVX_512 |= {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "lzcnt", "popcnt"}


@pytest.mark.parametrize(
    ("held", "rounded"),
    [
        # What code never shows (cx16, lahf_lm) is all that is missing of the level.
        (AVX_512, "x86-64-v4"),
        (AVX_512 | {"avx512_vnni", "avx512_bf16"}, "x86-64-v4-vnni-bf16"),
        ({"sse4_2", "aes"}, "x86-64-v2-aes"),
        ({"sse4_2"}, "x86-64-v2"),
        # Of x86-64-v3 more is missing than that.
        ({"avx"}, "avx"),
        ({"avx", "f16c"}, "f16c"),
        # A Core 2 has no SSE4.2, without which TensorFlow's guard would not be that of x86-64-v2.
        ({"ssse3"}, "ssse3"),
        (AVX_512 - {"avx512bw"}, ""),
        (set[str](), "x86-64-v1"),
    ],
)
def test_features_are_rounded_to_a_level_by_what_code_never_shows(held: set[str], rounded: str) -> None:
    resolved = scan.instruction_set(frozenset(held), "x86_64")
    assert resolved.name == rounded or (not rounded and resolved.level != "x86-64-v4")
    assert scan.instruction_set(frozenset({"atomics"}), "aarch64") == isa.instruction_set({"atomics"}, "aarch64")
