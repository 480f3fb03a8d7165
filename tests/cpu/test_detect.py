"""Detection: recorded machines against archspec's database, and the kernel's list over all cores."""

import io
import json
import platform
import re
from pathlib import Path

import pytest
from archspec.cpu import TARGETS
from hypothesis import given
from hypothesis import strategies as st

from tests.cpu.machines import Machine, Recording, machine, machines, recording, recordings
from tfbuild import cpu, facts
from tfbuild.cli import planning
from tfbuild.cpu import compilers, detection, isa
from tfbuild.cpu import recordings as cpuid
from tfbuild.errors import Unsupported


def of_archspec(row: Machine | Recording, arch: str) -> set[str]:
    """The features of the microarchitecture, as far as tfbuild knows them."""
    rows = (facts.spelled(name, arch) for name in TARGETS[row.microarchitecture].features)
    return {feature.name for feature in rows if feature is not None}


@pytest.mark.parametrize("row", machines(), ids=lambda row: row.name)
def test_recorded_machine_has_all_that_archspec_says_of_it_but_what_is_hidden(row: Machine) -> None:
    parsed = cpu.parse(row.cpuinfo())
    assert of_archspec(row, parsed.arch) - set(parsed.features) == set(row.hides)
    assert (parsed.level, parsed.arch) == (row.level, row.arch)
    assert row.model in ("", parsed.model)
    assert row.vendor in ("", parsed.vendor)


def test_nothing_is_found_that_the_kernel_does_not_print() -> None:
    for row in machines():
        printed = set(row.flags.split())
        features_held = [facts.feature(name) for name in cpu.parse(row.cpuinfo()).features]
        assert {feature.cpuinfo or feature.name for feature in features_held} <= printed


@pytest.mark.parametrize("between", ["\n", "", " \n"], ids=["empty line", "nothing", "a blank"])
def test_features_are_those_of_all_cores_whatever_stands_between_them(between: str) -> None:
    row = machine("kvm-zen5-guest")
    hybrid = row.core(1, without=("avx512f", "avx512_vnni")).rstrip("\n") + "\n" + between + row.core(0)
    one, both = cpu.parse(row.core(0)), cpu.parse(hybrid)
    assert set(one.features) - set(both.features) == {"avx512f", "avx512_vnni"}
    assert both.level == "x86-64-v3"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n\n",
        "processor : 0\n",
        "flags : fpu sse sse2\n",
        "Features : neon\nCPU architecture: 7\n",
        "\0\0\0",
        "a" * 99,
        "{",
        "{}",
        '{"arch": 5}',
        '{"arch": "X86_64", "flags": [1]}',
        '{"arch": "X86_64", "flags": []}',
        '{"arch": "ARM_8", "brand_raw": "Apple M1"}',
        '{"arch": ' + "[" * 100_000,
        "1, 0, 1, 2, 3, 4\n",
        "hw.optional.arm64: 1\n",
        "Features : half thumb fastmult vfp edsp neon crc32\nCPU architecture: 8\n",
    ],
)
def test_text_of_any_format_that_describes_no_cpu_is_refused_with_the_way_to_record_one(text: str) -> None:
    with pytest.raises(Unsupported) as refusal:
        cpu.parse(text, origin="FILE")
    assert "FILE" in str(refusal.value)
    assert "hint: record one" in str(refusal.value)


def test_windows_line_ends_and_a_last_line_without_an_end_are_read() -> None:
    row = machine("rhel7-haswell")
    whole = cpu.parse(row.cpuinfo())
    assert cpu.parse(row.cpuinfo().replace("\n", "\r\n")) == whole
    assert cpu.parse(f"{row.cpuinfo()}power management:") == whole


@pytest.mark.parametrize("name", ["rhel7-haswell", "amazon-neoverse_n1"])
def test_a_recording_that_is_cut_off_within_a_word_of_its_features_is_refused(name: str) -> None:
    """The first half of a Haswell's list is an SSE2 machine's."""
    row = machine(name)
    for text in (row.core(), f"{row.core()}\n{row.core(1)}"):
        for kept in (row.flags.index(" pni " if row.arch == "x86_64" else " crc32 ") + 3, len(row.flags) - 1):
            with pytest.raises(Unsupported, match="it ends in the middle of a list of features"):
                cpu.parse(text[: text.rindex(row.flags) + kept])


@pytest.mark.parametrize("row", machines(), ids=lambda row: row.name)
def test_a_file_without_a_final_newline_is_a_file(row: Machine) -> None:
    """Its last line is the list of features: grep's, or what a shell's $(...) leaves of it."""
    key = "Features" if row.arch == "aarch64" else "flags"
    text = f"{key} : {row.flags}"
    assert cpu.parse(text).features == cpu.parse(f"{text}\n").features


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
    fields = [
        {"field": f"{key.strip()}:", "data": value.strip()}
        for key, _, value in (line.partition(":") for line in text.splitlines())
    ]
    assert cpu.parse(json.dumps({"lscpu": [{"field": "CPU:", "data": None, "children": fields}]})) == read


def test_json_of_lscpu_that_cannot_be_read_is_refused() -> None:
    for text in ('{"lscpu": 1}', '{"lscpu": [' + '{"field": "", "children": [' * 2000, '{"lscpu": []}'):
        with pytest.raises(Unsupported, match="does not describe a CPU"):
            cpu.parse(text)


def test_a_dash_is_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    row = machine("rhel7-haswell")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(row.cpuinfo().encode())))
    detection._stdin.cache_clear()
    try:
        assert cpu.detect(Path("-")) == cpu.parse(row.cpuinfo())
        # Once read, it is read again from memory.
        assert isa.resolve("-", arch="x86_64") == isa.of_cpu(cpu.parse(row.cpuinfo()))
    finally:
        detection._stdin.cache_clear()


@given(st.sampled_from(machines()), st.integers(0, 3000), st.integers(0, 3000))
def test_no_cut_raises_anything_but_the_projects_error_and_none_adds_a_feature(
    row: Machine, start: int, end: int
) -> None:
    """What is found stands as a word in what is left."""
    text = row.cpuinfo()
    left = text[:start] + text[end:]
    try:
        parsed = cpu.parse(left)
    except Unsupported:
        return
    if start <= end:
        assert parsed.arch == row.arch
    assert {facts.feature(name).cpuinfo or name for name in parsed.features} <= set(left.split())


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


def test_sources_that_agree_dispute_nothing() -> None:
    assert cpu.parse(GUEST).disagreements == ()


def test_what_the_kernel_switched_off_is_off_though_cpuid_has_it() -> None:
    parsed = cpu.parse(edited((" rdseed ", " ")))
    assert [(row.feature, row.rule, row.held) for row in parsed.disagreements] == [("rdseed", "kernel", False)]
    assert "rdseed" not in parsed.features


def test_what_no_kernel_prints_comes_from_the_loader_also_where_an_older_glibc_has_no_active_bit_for_it() -> None:
    parsed = cpu.parse(edited(*NEWER))
    unprinted = {"amx_fp16", "avx_ifma", "avx_ne_convert", "avx_vnni_int8"}
    assert {row.feature for row in parsed.disagreements if row.rule == "unprinted" and row.held} == unprinted
    assert unprinted <= set(parsed.features)
    assert "-mavxvnniint8" in compilers.flags(isa.all_of_cpu(parsed), "gcc-13").flags


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


def test_another_architectures_list_is_refused() -> None:
    with pytest.raises(Unsupported, match="emulator"):
        cpu.parse(machine("rhel7-haswell").cpuinfo(), machine="aarch64")
    with pytest.raises(Unsupported, match="emulator"):
        cpu.parse(machine("asahi-m1").cpuinfo(), machine="x86_64")


def test_every_disagreement_of_a_hybrid_cpu_is_told() -> None:
    row = machine("kvm-zen5-guest")
    both = cpu.parse(row.core(0) + "\n" + row.core(1, without=("avx512f", "avx512_vnni")))
    assert [(item.feature, item.rule) for item in both.disagreements] == [
        ("avx512_vnni", "cores"),
        ("avx512f", "cores"),
    ]


def test_this_machines_loader_agrees_with_its_kernel() -> None:
    """The real sources of the machine that runs this: both say the same, but for what a kernel chose."""
    if platform.system() != "Linux" or platform.machine() != "x86_64" or not cpuid.loader():
        pytest.skip("no glibc for x86-64 here")
    parsed = cpu.detect()
    assert {row.rule for row in parsed.disagreements} <= {"kernel", "unprinted"}
    assert parsed.features


def test_a_system_without_glibcs_loader_is_read_without_it(tmp_path: Path) -> None:
    assert cpuid.loader(tmp_path / "none") == ""
    other = tmp_path / "ld.so"
    other.write_text("#!/bin/sh\nexit 127\n")
    other.chmod(0o755)
    assert cpuid.loader(other) == ""


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


# --- the parts of a reading -------------------------------------------------------------------------------------------


def test_a_cpu_without_even_the_smallest_level_has_none() -> None:
    row = machine("rhel7-haswell")
    assert cpu.parse(row.core(without=("pni", "cx16"))).level == cpu.parse(row.core(without=("pni",))).level
    assert cpu.Cpu(vendor="", model="", arch="aarch64", features=()).level == ""
    assert cpu.Cpu(vendor="", model="", arch="x86_64", features=("sse3",)).level == "x86-64-v1"


@pytest.mark.parametrize("name", ["x\0y", "", "none"])
def test_a_file_that_cannot_be_read_is_refused_with_the_reason(name: str, tmp_path: Path) -> None:
    with pytest.raises(
        Unsupported, match=r"cannot read .*: (embedded null byte|Is a directory|No such file.*)"
    ) as refused:
        cpu.detect(tmp_path / name)
    assert refused.value.hint == "record one with: cat /proc/cpuinfo > FILE"


def test_names_of_any_length_are_cut() -> None:
    row = machine("rhel7-haswell")
    text = row.core().replace(row.model, "m" * 1000).replace(row.vendor, "v" * 1000)
    parsed = cpu.parse(text)
    assert (parsed.model, parsed.vendor) == ("m" * 100, "v" * 100)


@pytest.mark.parametrize(
    ("code", "vendor"),
    [("0x41", "ARM"), ("0x43", "Cavium"), ("0x46", "Fujitsu"), ("0x48", "HiSilicon"), ("0x61", "Apple"),
     ("0xc0", "Ampere"), ("0x99", "unknown"), ("", "unknown")],
)  # fmt: skip
def test_an_arm_cpu_s_implementer_is_named(code: str, vendor: str) -> None:
    parsed = cpu.parse(f"Features : fp asimd\nCPU implementer : {code}\nCPU part : 0xd0c\n")
    assert (parsed.arch, parsed.vendor, parsed.model) == ("aarch64", vendor, "0xd0c")
    assert cpu.parse("Features : fp asimd\n").model == "unknown"


def test_the_first_core_s_names_are_the_machine_s() -> None:
    first, second = machine("rhel7-haswell"), machine("rocky9-zen5")
    parsed = cpu.parse(f"{first.core(0)}\n{second.core(1)}")
    assert (parsed.vendor, parsed.model) == (first.vendor, first.model)


def loader_that(tmp_path: Path, script: str) -> Path:
    path = tmp_path / "ld.so"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_the_loader_is_asked_without_an_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.cpu.hwcaps=-AVX2")
    path = loader_that(tmp_path, 'echo "$@:${GLIBC_TUNABLES-unset}"')
    assert cpuid.loader(path) == "--list-diagnostics:unset\n"


def test_a_loader_that_fails_or_hangs_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpuid, "LOADER_SECONDS", 0.05)
    for name, script in (("fails", "echo x; exit 1"), ("hangs", "exec sleep 5")):
        (tmp_path / name).mkdir()
        assert cpuid.loader(loader_that(tmp_path / name, script)) == ""


def test_diagnostics_without_active_words_are_none() -> None:
    cpuid_alone = "\n".join(line for line in GUEST.splitlines() if ".active[" not in line)
    active_alone = "\n".join(line for line in GUEST.splitlines() if ".cpuid[" not in line)
    assert cpuid.diagnostics(GUEST) is not None
    assert cpuid.diagnostics(cpuid_alone) is cpuid.diagnostics(active_alone) is None
    assert cpu.parse(cpuid_alone).features == cpu.parse(GUEST).features


def test_a_bit_is_that_of_its_leaf_and_register() -> None:
    words = {(0x7, 0): (0, 1 << 5, 0, 0), (0x7, 1): (1 << 4, 0, 0, 1 << 31)}
    assert cpuid._is_set(words, "7.0.ebx.5")
    assert cpuid._is_set(words, "7.1.eax.4")
    assert cpuid._is_set(words, "7.1.edx.31")
    for other in ("7.0.ebx.4", "7.0.ebx.6", "7.0.eax.5", "7.1.ebx.5", "1.0.ebx.5"):
        assert not cpuid._is_set(words, other)
    assert cpuid.features(words) == {
        row.name for row in facts.features("x86_64") if row.cpuid in ("7.0.ebx.5", "7.1.eax.4")
    }


def test_an_unknown_architecture_without_proc_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Windows")
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(Unsupported, match="unknown architecture 'riscv64'") as refused:
        cpu.detect()
    assert refused.value.hint == "tfbuild knows x86-64 and aarch64"


@pytest.mark.parametrize(
    ("name", "machine_name"),
    [("rhel7-haswell", "x86_64"), ("rhel7-haswell", "AMD64"), ("asahi-m1", "aarch64"), ("asahi-m1", "arm64"),
     ("asahi-m1", "armv9"), ("rhel7-haswell", "")],
)  # fmt: skip
def test_each_name_of_the_machine_fits_its_own_list(name: str, machine_name: str) -> None:
    row = machine(name)
    assert cpu.parse(row.cpuinfo(), machine=machine_name).arch == row.arch


def test_what_needs_no_registers_is_usable_though_none_are_saved() -> None:
    unsaved = re.sub(r"(\.active\[0x[0-3]\]=0x)[0-9a-f]+", r"\g<1>0", GUEST)
    found = cpuid.diagnostics(unsaved)
    assert found is not None
    assert {"sse3", "popcnt", "bmi1", "rdseed"} <= found.usable < found.cpuid
    assert not {"avx", "f16c", "avx512f", "amx_tile"} & found.usable


def test_py_cpuinfo_s_json_may_lack_names_and_not_flags() -> None:
    parsed = cpu.parse('{"arch": "X86_64", "flags": ["pni", "avx"]}')
    assert (parsed.vendor, parsed.model) == ("unknown", "unknown")
    assert {"sse3", "avx"} <= set(parsed.features)
    arm = cpu.parse('{"arch": "ARM_8", "flags": ["asimd"], "vendor_id_raw": "ARM", "brand_raw": "N1"}')
    assert (arm.arch, arm.vendor, arm.model) == ("aarch64", "ARM", "N1")
    for text, told in (
        ('{"arch": "PPC_64", "flags": ["x"]}', "py-cpuinfo calls its architecture PPC_64"),
        ('{"arch": "X86_64", "flags": []}', "it has no flags at all"),
    ):
        with pytest.raises(Unsupported, match=told):
            cpu.parse(text)
