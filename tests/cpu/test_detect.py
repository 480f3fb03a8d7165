"""Detection: recorded machines against archspec's database, and the kernel's list over all cores."""

import contextlib
import io
import json
import platform
import re
from pathlib import Path

import pytest
from archspec.cpu import TARGETS
from hypothesis import given
from hypothesis import strategies as st

from tests.commandline import executable
from tests.cpu.machines import Machine, Recording, machine, machines, recording, recordings
from tfbuild import cpu, facts
from tfbuild.cli import planning
from tfbuild.cpu import compilers, detection, isa
from tfbuild.cpu import recordings as cpuid
from tfbuild.errors import Unsupported
from tfbuild.util import process


def of_archspec(row: Machine | Recording, arch: str) -> set[str]:
    """The features of the microarchitecture, as far as tfbuild knows them."""
    rows = (facts.spelled(name, arch) for name in TARGETS[row.microarchitecture].features)
    return {feature.name for feature in rows if feature is not None}


@pytest.mark.parametrize("row", machines(), ids=lambda row: row.name)
def test_recorded_machine_has_all_that_archspec_says_of_it_but_what_is_hidden(row: Machine) -> None:
    parsed = cpu.parse(row.cpuinfo())
    assert of_archspec(row, parsed.arch) - set(parsed.features) == set(row.hides)
    assert (parsed.level, parsed.arch, parsed.virtual) == (row.level, row.arch, " hypervisor " in row.flags)
    assert row.model in ("", parsed.model)
    assert row.vendor in ("", parsed.vendor)


@pytest.mark.parametrize("between", ["\n", "", " \n"], ids=["empty line", "nothing", "a blank"])
def test_features_are_those_of_all_cores_whatever_stands_between_them(between: str) -> None:
    row = machine("kvm-zen5-guest")
    hybrid = row.core(1, without=("avx512f", "avx512_vnni")).rstrip("\n") + "\n" + between + row.core(0)
    one, both = cpu.parse(row.core(0)), cpu.parse(hybrid)
    assert set(one.features) - set(both.features) == {"avx512f", "avx512_vnni"}
    assert [(item.feature, item.rule) for item in both.disagreements] == [
        ("avx512_vnni", "cores"), ("avx512f", "cores")
    ]  # fmt: skip
    assert both.level == "x86-64-v3"


@pytest.mark.parametrize(
    "text",
    [
        "", "\n\n", "processor : 0\n", "flags : fpu sse sse2\n", "Features : neon\nCPU architecture: 7\n", "\0\0\0",
        "a" * 99, "{", "{}", '{"lscpu": []}', '{"arch": 5}', '{"arch": "PPC_64", "flags": ["x"]}',
        '{"arch": "X86_64", "flags": [1]}', '{"arch": "X86_64", "flags": []}',
        '{"arch": "ARM_8", "brand_raw": "Apple M1"}', '{"arch": ' + "[" * 100_000, "1, 0, 1, 2, 3, 4\n",
        "hw.optional.arm64: 1\n", "Features : half thumb fastmult vfp edsp neon crc32\nCPU architecture: 8\n",
    ],
)  # fmt: skip
def test_text_of_any_format_that_describes_no_cpu_is_refused_with_the_way_to_record_one(text: str) -> None:
    with pytest.raises(Unsupported) as refusal:
        cpu.parse(text, origin="FILE")
    assert "FILE" in str(refusal.value)
    assert "hint: record one" in str(refusal.value)


@pytest.mark.parametrize("name", ["rocky9-zen5", "amazon-neoverse_n1"])
def test_what_lscpu_prints_is_read(name: str) -> None:
    row = machine(name)
    named = f"Model name:              {row.model or 'Neoverse-N1'}"
    vendor = row.vendor or "ARM"
    text = (
        f"Architecture:            {row.arch}\n  CPU op-mode(s):        64-bit\nVendor ID:  {vendor}\n"
        f"  {named}\n    BogoMIPS:            8599.98\n    Flags:               {row.flags}\n"
        "Vulnerabilities:         \n  Spectre v1:            Mitigation; usercopy/swapgs barriers\n"
    )
    read = cpu.parse(text)
    assert read.features == cpu.parse(row.cpuinfo()).features
    assert (read.arch, read.vendor, read.model) == (row.arch, vendor, row.model or "Neoverse-N1")


def test_a_dash_is_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    row = machine("rhel7-haswell")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(row.cpuinfo().encode())))
    detection._once.cache_clear()
    try:
        assert cpu.detect(Path("-")) == cpu.parse(row.cpuinfo())
        # Once read, it is read again from memory.
        assert isa.resolve("-", arch="x86_64") == isa.of_cpu(cpu.parse(row.cpuinfo()))
    finally:
        detection._once.cache_clear()


@pytest.mark.parametrize("row", machines(), ids=lambda row: row.name)
def test_a_file_without_a_final_newline_or_with_windows_ends_is_a_file(row: Machine) -> None:
    """Its last line is the list of features: grep's, or what a shell's $(...) leaves of it."""
    text = f"{'Features' if row.arch == 'aarch64' else 'flags'} : {row.flags}"
    assert cpu.parse(text).features == cpu.parse(f"{text}\r\n").features


@pytest.mark.parametrize(
    ("text", "vendor", "model"),
    [
        *((f"Features : fp asimd\nCPU implementer : {code}\nCPU part : 0xd0c\n", name, "0xd0c") for code, name in
          (("0x41", "ARM"), ("0x61", "Apple"), ("0xc0", "Ampere"), ("0x99", "unknown"), ("0x6d", "Microsoft"))),
        ("Features : fp asimd\n", "unknown", "unknown"),
        ('{"arch": "X86_64", "flags": ["pni", "avx"]}', "unknown", "unknown"),
        ('{"arch": "ARM_8", "flags": ["asimd"], "vendor_id_raw": "ARM", "brand_raw": "N1"}', "ARM", "N1"),
        (f"vendor_id : {'v' * 1000}\nmodel name : {'m' * 1000}\nflags : lm\nmodel name : x", "v" * 100, "m" * 100),
    ],
)  # fmt: skip
def test_the_vendor_and_the_model_are_those_of_the_first_core(text: str, vendor: str, model: str) -> None:
    parsed = cpu.parse(text)
    assert (parsed.vendor, parsed.model) == (vendor, model)


# --- recordings in other formats --------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", recordings(), ids=lambda row: row.name)
def test_recording_is_read_as_its_source_and_archspec_say(row: Recording) -> None:
    if row.refused:
        with pytest.raises(Unsupported, match=row.name):
            cpu.parse(row.text, origin=row.name)
        return
    parsed = cpu.parse(row.text, origin=row.name)
    assert " ".join(parsed.features) == row.features
    assert (parsed.level, parsed.vendor, parsed.model) == (row.level, row.vendor, row.model)
    assert not row.microarchitecture or of_archspec(row, parsed.arch) <= set(parsed.features)


# --- the rules --------------------------------------------------------------------------------------------------------
# The recorded diagnostics have CPUID leaf 7.1 in features[0x6]; what is changed here are its bits, by hand.
GUEST = recording("kvm-sapphirerapids-guest").text
NEWER = [
    ("[0x6].cpuid[0x0]=0x1c30", "[0x6].cpuid[0x0]=0xa01c30"),
    ("[0x6].cpuid[0x3]=0x84000", "[0x6].cpuid[0x3]=0x84030"),
]


def edited(*changes: tuple[str, str]) -> str:
    text = GUEST
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return text


def test_what_the_kernel_switched_off_is_off_though_cpuid_has_it() -> None:
    parsed = cpu.parse(edited((" rdseed ", " ")))
    assert [(row.feature, row.rule, row.held) for row in parsed.disagreements] == [("rdseed", "kernel", False)]
    assert "rdseed" not in parsed.features


def test_what_no_kernel_prints_comes_from_the_loader_also_where_an_older_glibc_has_no_active_bit_for_it() -> None:
    parsed = cpu.parse(edited(*NEWER))
    unprinted = {"amx_fp16", "avx_ifma", "avx_ne_convert", "avx_vnni_int8"}
    assert {row.feature for row in parsed.disagreements if row.rule == "unprinted" and row.held} == unprinted
    assert unprinted <= set(parsed.features)
    assert "-mavxvnniint8" in compilers.flags(isa.of_cpu(parsed, exact=True), "gcc-13").flags


def test_registers_that_the_system_does_not_save_switch_off_all_that_works_on_them() -> None:
    no_tiles = cpu.parse(edited(*NEWER, ("[0x1].active[0x3]=0x3c14010", "[0x1].active[0x3]=0x2c14010")))
    assert {row.feature for row in no_tiles.disagreements if row.rule == "saved"} == {
        "amx_bf16",
        "amx_fp16",
        "amx_int8",
        "amx_tile",
    }
    assert "avx_ifma" in no_tiles.features
    no_zmm = cpu.parse(edited(("[0x1].active[0x1]=0xf1af0b38", "[0x1].active[0x1]=0xf1ae0b38")))
    assert no_zmm.level == "x86-64-v3"
    assert not any(name.startswith("avx512") for name in no_zmm.features)
    assert {row.rule for row in no_zmm.disagreements} == {"saved"}


def test_an_emulated_process_has_what_its_own_cpuid_says_and_not_its_hosts_list() -> None:
    haswell = edited(
        ("[0x1].cpuid[0x1]=0xf1bf2ffb", "[0x1].cpuid[0x1]=0x000007ab"),
        ("[0x1].cpuid[0x2]=0x1a415f46", "[0x1].cpuid[0x2]=0x0"),
        ("[0x1].cpuid[0x3]=0x23c14010", "[0x1].cpuid[0x3]=0x0"),
        ("[0x6].cpuid[0x0]=0x1c30", "[0x6].cpuid[0x0]=0x0"),
    )
    parsed = cpu.parse(haswell)
    assert parsed.level == "x86-64-v3"
    assert {"avx512f", "amx_tile", "avx_vnni", "gfni"} <= {
        row.feature for row in parsed.disagreements if row.rule == "process"
    }
    assert set(parsed.features) == set(cpu.parse(GUEST).features) - {row.feature for row in parsed.disagreements}


def test_a_list_of_another_architecture_than_the_machine_s_is_an_emulator_s_host_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x86, arm = machine("rhel7-haswell").cpuinfo(), machine("asahi-m1").cpuinfo()
    for text, names in ((x86, ("x86_64", "AMD64", "")), (arm, ("aarch64", "arm64", "armv9"))):
        assert {cpu.parse(text, machine=name) for name in names} == {cpu.parse(text)}
    for text, name in ((x86, "aarch64"), (x86, "ARM64"), (arm, "x86_64"), (arm, "AMD64")):
        with pytest.raises(Unsupported, match="emulator"):
            cpu.parse(text, machine=name)
    monkeypatch.setattr(platform, "system", lambda: "Windows")
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(Unsupported, match="unknown architecture 'riscv64'"):
        cpu.detect()


def test_this_machines_loader_agrees_with_its_kernel() -> None:
    """The real sources of the machine that runs this: both say the same, but for what a kernel chose."""
    if platform.system() != "Linux" or platform.machine() != "x86_64" or not cpuid.loader_text():
        pytest.skip("no glibc for x86-64 here")
    parsed = cpu.detect()
    assert {row.rule for row in parsed.disagreements} <= {"kernel", "unprinted"}
    assert parsed.features


def test_the_loader_is_asked_without_an_environment_and_may_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.cpu.hwcaps=-AVX2")
    scripts = {'echo "$@:${GLIBC_TUNABLES-unset}"': "--list-diagnostics:unset", "echo x; exit 1": "", "sleep 5": ""}
    for number, (script, said) in enumerate(scripts.items()):
        if script.startswith("sleep"):
            monkeypatch.setattr(process, "PROBE_SECONDS", 0.2)
        assert cpuid.loader_text(executable(tmp_path / str(number), f"exec 2>&1\n{script}")) == said
    assert cpuid.loader_text(tmp_path / "none") == ""


def test_windows_is_read_by_py_cpuinfo_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its real answer about this machine, through the code that runs where there is no /proc/cpuinfo."""
    if platform.machine() != "x86_64":
        pytest.skip("py-cpuinfo reads CPUID on x86-64 alone")
    monkeypatch.setattr(platform, "system", lambda: "Windows")
    parsed = cpu.detect()
    assert parsed.arch == "x86_64"
    assert {"sse3", "ssse3"} <= set(parsed.features)
    assert parsed.disagreements == ()


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_what_powershell_writes_is_read(tmp_path: Path, encoding: str) -> None:
    row = recording("py-cpuinfo-windows-8-x86-64")
    (tmp_path / "file").write_text(row.text, encoding=encoding)
    assert " ".join(cpu.detect(tmp_path / "file").features) == row.features


def test_letters_of_another_encoding_harm_nothing(tmp_path: Path) -> None:
    row = machine("rhel7-haswell")
    (tmp_path / "file").write_bytes(row.cpuinfo().encode().replace(b"Intel(R)", b"Int\xe9l"))
    assert cpu.detect(tmp_path / "file").features == cpu.parse(row.cpuinfo()).features


def test_a_text_without_a_cpu_is_refused_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "notes.txt").write_text("none")
    with pytest.raises(Unsupported, match=r"notes\.txt does not describe a CPU"):
        cpu.detect(tmp_path / "notes.txt")
    monkeypatch.setattr(detection, "_once", lambda _: b"none")
    with pytest.raises(Unsupported, match="stdin does not describe a CPU"):
        cpu.detect(Path("-"))


def test_detect_prints_each_disagreement_with_its_rule(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(edited((" rdseed ", " "), *NEWER), encoding="utf-8")
    planning.detect(cpuinfo=str(file), json=True)
    printed_json = json.loads(capsys.readouterr().out)
    assert {row["feature"]: row["held"] for row in printed_json["disagreements"]} == {
        "amx_fp16": True,
        "avx_ifma": True,
        "avx_ne_convert": True,
        "avx_vnni_int8": True,
        "rdseed": False,
    }
    planning.detect(cpuinfo=str(file), json=False)
    assert f"disputed  rdseed: {detection.RULES['kernel']}" in capsys.readouterr().out


@given(st.sampled_from(recordings()), st.integers(0, 5000), st.integers(0, 5000), st.text(max_size=20))
def test_no_damaged_recording_raises_anything_but_the_projects_error(
    row: Recording, start: int, end: int, put: str
) -> None:
    try:
        parsed = cpu.parse(row.text[:start] + put + row.text[end:])
    except Unsupported:
        return
    assert set(isa.of_cpu(parsed).features) <= {feature.name for feature in facts.features(parsed.arch)}


@given(st.sampled_from(machines()), st.integers(0, 3000), st.integers(0, 3000))
def test_no_cut_of_a_recording_adds_a_feature(row: Machine, start: int, end: int) -> None:
    left = row.cpuinfo()[:start] + row.cpuinfo()[end:]
    with contextlib.suppress(Unsupported):
        assert {facts.feature(name).cpuinfo or name for name in cpu.parse(left).features} <= set(left.split())


# --- the parts of a reading -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["x\0y", "", "none"])
def test_a_file_that_cannot_be_read_is_refused_with_the_reason(name: str, tmp_path: Path) -> None:
    with pytest.raises(
        Unsupported, match=r"cannot read .*: (embedded null byte|Is a directory|No such file.*)"
    ) as refused:
        cpu.detect(tmp_path / name)
    assert refused.value.hint == "record one with: cat /proc/cpuinfo > FILE"


def test_diagnostics_without_active_words_are_none() -> None:
    cpuid_alone = "\n".join(line for line in GUEST.splitlines() if ".active[" not in line)
    active_alone = "\n".join(line for line in GUEST.splitlines() if ".cpuid[" not in line)
    assert cpuid.diagnostics(GUEST) is not None
    assert cpuid.diagnostics(cpuid_alone) is cpuid.diagnostics(active_alone) is None
    assert cpu.parse(cpuid_alone).features == cpu.parse(GUEST).features


def test_what_needs_no_registers_is_usable_though_none_are_saved() -> None:
    unsaved = re.sub(r"(\.active\[0x[0-3]\]=0x)[0-9a-f]+", r"\g<1>0", GUEST)
    found = cpuid.diagnostics(unsaved)
    assert found is not None
    assert {"sse3", "popcnt", "bmi1", "rdseed"} <= found[1] < found[0]
    assert not {"avx", "f16c", "avx512f", "amx_tile"} & found[1]
