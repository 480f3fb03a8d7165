"""Instruction sets and flags: closed, monotone, never native, never a bare list where a level fits."""

import itertools
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from archspec.cpu import TARGETS
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from tests.cpu.machines import Machine, machine, machines
from tests.rows import each
from tfbuild import cpu, facts
from tfbuild.cpu import compilers, isa, names
from tfbuild.errors import Unsupported, UsageError

X86 = [row.name for row in facts.features("x86_64")]
ARM = [row.name for row in facts.features("aarch64")]
COMPILERS = [
    f"{name}-{version}" for name, versions in compilers.compiler_table().compiler.items() for version in versions
]
RELEASES = ["", "1.15.0", "2.5.0", "2.14.1", "2.15.1", "2.16.2", "2.17.1", "2.18.1", "2.19.1", "2.21.0"]
lists = st.one_of(
    st.tuples(st.just("x86_64"), st.sets(st.sampled_from(X86))),
    st.tuples(st.just("aarch64"), st.sets(st.sampled_from(ARM))),
)


@pytest.mark.parametrize(
    ("requested", "arch", "name", "level"),
    [
        ("x86-64-v3", "x86_64", "x86-64-v3", "x86-64-v3"),
        ("X86_64_V4", "x86_64", "x86-64-v4", "x86-64-v4"),
        ("avx", "x86_64", "avx", "x86-64-v1"),
        ("avx2,fma", "x86_64", "avx2-fma", "x86-64-v1"),
        ("haswell,exact", "x86_64", "x86-64-v3-aes-pclmulqdq", "x86-64-v3"),
        ("haswell,pclmulqdq", "x86_64", "x86-64-v3-pclmulqdq", "x86-64-v3"),
        # To GCC 11 a Zen 4 is "znver3"; who asks for znver3 has no AVX-512.
        ("znver3", "x86_64", "x86-64-v3", "x86-64-v3"),
        ("avx2+fma", "x86_64", "avx2-fma", "x86-64-v1"),
        (" avx2 , , fma ", "x86_64", "avx2-fma", "x86-64-v1"),
        ("haswell,EXACT", "x86_64", "x86-64-v3-aes-pclmulqdq", "x86-64-v3"),
        ("x86-64-v4,vnni,bf16,fp16,aes,gfni,sha_ni", "x86_64", "x86-64-v4-aes-sha_ni-gfni-vnni-bf16-fp16", "x86-64-v4"),
        ("zen5", "x86_64", "x86-64-v4-vnni-bf16", "x86-64-v4"),
        ("sapphirerapids", "x86_64", "x86-64-v4-vnni-bf16-fp16", "x86-64-v4"),
        ("sapphirerapids,exact", "x86_64", "x86-64-v4-b9bb6191", "x86-64-v4"),
        ("X86-64-v4-VNNI-bf16", "x86_64", "x86-64-v4-vnni-bf16", "x86-64-v4"),
        ("avx2-fma", "x86_64", "avx2-fma", "x86-64-v1"),
        ("x86-64-v1-avx", "x86_64", "avx", "x86-64-v1"),
        ("armv8.2-a", "aarch64", "armv8.2-a", "armv8.2-a"),
        ("neoverse-n1", "aarch64", "armv8.2-a-fp16", "armv8.2-a"),
        ("neoverse-v1", "aarch64", "armv8.2-a-sve", "armv8.2-a"),
        ("neoverse-v2", "aarch64", "armv8.2-a-sve2", "armv8.2-a"),
    ],
)
def test_names(requested: str, arch: str, name: str, level: str) -> None:
    """A set is found again by its name and its option."""
    resolved = isa.resolve(requested, arch=arch)
    assert (resolved.name, resolved.level) == (name, level)
    assert isa.resolve(resolved.option, arch=arch) == resolved
    assert re.search("-[0-9a-f]{8}$", name) or isa.resolve(name, arch=arch) == resolved


@pytest.mark.parametrize(
    ("requested", "arch", "hint"),
    [
        ("haswel", "x86_64", "nearest: haswell"),
        ("ICELEAK", "x86_64", "nearest: icelake"),
        ("x86-64-v9", "x86_64", "nearest: x86-64-v"),
        ("amx", "x86_64", "nearest: amx_tile, amx_int8, amx_bf16, amx_fp16; or --cpu host"),
        ("armv9-a", "aarch64", "nearest: armv8"),
        ("haswell,-avx999", "x86_64", "a level (x86-64-v1, "),
        ("", "x86_64", "a level (x86-64-v1, "),
        (" , exact", "x86_64", "a level (x86-64-v1, "),
        ("VIA Nano", "x86_64", "a level (x86-64-v1, "),
        ("NATIVE", "x86_64", "--cpu host is the CPU of this machine"),
        ("-march=native", "x86_64", "--cpu host is the CPU of this machine"),
        ("none", "x86_64", "a level (x86-64-v1, "),
        ("x86-64-v3,asimddp", "x86_64", "asimddp is for aarch64: --platform linux/arm64"),
        ("haswell", "aarch64", "haswell is for x86_64: --platform linux/amd64"),
    ],
)
def test_what_is_unknown_is_refused_with_the_nearest_or_what_is_meant(requested: str, arch: str, hint: str) -> None:
    with pytest.raises(Unsupported) as refusal:
        isa.resolve(requested, arch=arch)
    assert refusal.value.hint.startswith(hint)


@each(
    "requested, compiler, width, flags",
    [
        ("avx", "clang-16", "", "-march=x86-64 -mavx"),
        ("x86-64-v3", "gcc-12", "", "-march=x86-64-v3"),
        ("x86-64-v3", "gcc-9", "", "-march=x86-64 -mavx2 -mbmi -mbmi2 -mcx16 -mf16c -mfma -msahf -mlzcnt -mmovbe"),
        ("x86-64-v3", "gcc-12", "128", "-march=x86-64-v3 -mprefer-vector-width=128"),
        ("x86-64-v4", "gcc-12", "", "-march=x86-64-v4"),
        ("x86-64-v4", "gcc-12", "512", "-march=x86-64-v4 -mprefer-vector-width=512"),
        ("x86-64-v4", "clang-18", "", "-march=x86-64-v4 -mprefer-vector-width=512"),
        ("x86-64-v4", "clang-18", "256", "-march=x86-64-v4 -mprefer-vector-width=256"),
        ("x86-64-v4", "clang-18", "512", "-march=x86-64-v4 -mprefer-vector-width=512"),
        ("avx2,fma", "clang-18", "", "-march=x86-64 -mavx2 -mfma -mtune=haswell"),
        ("avx2,fma", "clang-18", "128", "-march=x86-64 -mavx2 -mfma -mtune=haswell -mprefer-vector-width=128"),
        ("x86-64-v4,avx512-vnni", "gcc-12", "", "-march=x86-64-v4 -mavx512vnni"),
        ("avx512_bf16", "gcc-9", "", "-march=x86-64 -mavx512bw -mf16c -mfma"),
        # GCC refuses Eigen with avx512f and without fma.
        ("avx512f", "gcc-12", "", "-march=x86-64 -mavx512f -mf16c -mfma"),
    ],
)
def test_flags_with_the_vector_width_that_is_asked_for(requested: str, compiler: str, width: str, flags: str) -> None:
    chosen = compilers.flags(isa.resolve(requested, arch="x86_64"), compiler, prefer_vector_width=width)
    assert " ".join(chosen.flags) == flags


@each(
    "requested, compiler, release, feature, reason",
    [
        ("sapphirerapids", "gcc-12", "2.15.1", "avx512_fp16", "2.15.1 with gcc-12: "),
        ("sapphirerapids", "clang-17", "2.16.1", "avx512_fp16", "invalid static_cast from eigen_packet_wrapper"),
        ("sapphirerapids", "gcc-13", "2.18.1", "avx512_fp16", "const Eigen::half to _Float16"),
        ("sapphirerapids", "clang-18", "2.21.0", "avx512_fp16", "predux_half_dowto4"),
        *(("sapphirerapids", name, release, "", "") for name, release in
          (("gcc-12", "2.17.0"), ("gcc-13", "2.19.1"), ("clang-18", "2.20.0"), ("gcc-13", ""))),
        ("avx512_bf16", "clang-18", "2.20.0", "avx512_bf16", "Clang crashes"),
        # Behind the whole level it does not.
        ("x86-64-v4,avx512_bf16", "clang-18", "2.20.0", "", ""),
        ("x86-64-v3,rdseed", "gcc-12", "", "rdseed", "only intrinsics use it"),
        ("x86-64-v4,amx_fp16", "gcc-10", "", "amx_fp16", "gcc-10 does not know -mamx-fp16 (gcc 13 does)"),
    ],
)  # fmt: skip
def test_a_feature_that_breaks_or_is_unknown_is_dropped_with_its_reason(
    requested: str, compiler: str, release: str, feature: str, reason: str
) -> None:
    flags = compilers.flags(isa.resolve(requested, arch="x86_64"), compiler, release=release)
    dropped = dict(flags.dropped)
    assert feature in dropped if feature else not dropped
    assert reason in dropped.get(feature, "")
    assert feature not in flags.instruction_set.features
    assert flags.instruction_set.level == isa.resolve(requested, arch="x86_64").level


@each("requested, width", [("x86-64-v3", "512"), ("x86-64-v2", "128"), ("armv8.2-a", "128"), ("x86-64-v4", "1024")])
def test_a_vector_width_that_changes_nothing_is_refused(requested: str, width: str) -> None:
    arch = "aarch64" if requested.startswith("arm") else "x86_64"
    with pytest.raises(UsageError, match="hint"):
        compilers.flags(isa.resolve(requested, arch=arch), "gcc-12", prefer_vector_width=width)


def test_a_feature_whose_needs_are_masked_is_not_used() -> None:
    masked = cpu.parse(machine("kvm-zen5-guest").core(without=("fma",)))
    assert "avx512f" in isa.hidden(masked)
    assert isa.of_cpu(masked).level == "x86-64-v2"
    assert "avx512f" not in isa.of_cpu(masked).features


@each("row", machines())
@each("compiler", COMPILERS)
def test_every_recorded_machine_gets_a_level_and_only_its_own_features(row: Machine, compiler: str) -> None:
    parsed = cpu.parse(row.cpuinfo())
    wanted = isa.of_cpu(parsed)
    flags = compilers.flags(wanted, compiler)
    assert set(wanted.features) <= set(parsed.features)
    assert set(wanted.features) <= set(isa.of_cpu(parsed, exact=True).features)
    assert not re.search(r"-[0-9a-f]{8}$", wanted.name), "a name to read"
    assert flags.flags[0].startswith("-march=")
    assert "native" not in " ".join(flags.flags)
    assert len(set(flags.flags)) == len(flags.flags)


@given(lists, st.sampled_from(COMPILERS), st.sampled_from(RELEASES), st.data())
def test_a_larger_set_never_switches_less_on(
    row: tuple[str, set[str]], compiler: str, release: str, data: st.DataObject
) -> None:
    arch, names = row
    fewer = data.draw(st.sets(st.sampled_from(sorted(names)))) if names else set()
    part, whole = (
        compilers.flags(isa.instruction_set(some, arch), compiler, release=release).instruction_set
        for some in (fewer, names)
    )
    assert set(part.features) <= set(whole.features)


@given(lists, st.sampled_from(COMPILERS), st.sampled_from(RELEASES))
def test_flags_switch_on_what_they_promise_and_name_all_that_is_left_out(
    row: tuple[str, set[str]], compiler: str, release: str
) -> None:
    arch, names = row
    requested = isa.instruction_set(names, arch)
    flags = compilers.flags(requested, compiler, release=release)
    assert switched_on(flags.flags, arch) == set(flags.instruction_set.features)
    assert dict(flags.dropped).keys() == set(requested.features) - set(flags.instruction_set.features)
    assert set(flags.instruction_set.features) - set(requested.features) <= facts.levels(arch)[0].features
    assert compilers.flags(flags.instruction_set, compiler, release=release).flags == flags.flags
    assert not compilers.flags(flags.instruction_set, compiler, release=release).dropped


@pytest.mark.parametrize(
    ("compiler", "march"),
    [("gcc-10", "x86-64"), ("gcc-11", "x86-64-v3"), ("clang-11", "x86-64"), ("clang-12", "x86-64-v3")],
)
def test_a_compiler_gets_a_level_from_the_version_on_that_knows_it(compiler: str, march: str) -> None:
    assert compilers.flags(isa.resolve("x86-64-v3", arch="x86_64"), compiler).flags[0] == f"-march={march}"


def switched_on(flags: tuple[str, ...], arch: str) -> set[str]:
    """What a compiler makes of the flags, by the rows: a level's features, and each flag's with what it implies."""
    march, *others = flags[0].removeprefix("-march=").split("+")
    level = next(row for row in facts.levels(arch) if row.march == march)
    by_flag = {row.flag: row.name for row in facts.features(arch) if row.flag}
    extras = tuple(row.flag for row in compilers.compiler_table().extra)
    todo = [by_flag[flag] for flag in (*others, *flags[1:]) if flag not in extras]
    held = set(level.features)
    while todo:
        name = todo.pop()
        held.add(name)
        todo += facts.feature(name).implies
    return held


@given(lists)
def test_closing_twice_changes_nothing_and_the_name_is_a_tag(row: tuple[str, set[str]]) -> None:
    arch, names = row
    resolved = isa.instruction_set(names, arch)
    assert isa.instruction_set(resolved.features, arch) == resolved
    assert len(resolved.name) < 60
    assert not set(resolved.name) - set("abcdefghijklmnopqrstuvwxyz0123456789-._")


@each("name", [*names.known_names("x86_64"), *names.known_names("aarch64")])
def test_a_cpus_set_is_part_of_all_that_it_has_and_its_name_names_it(name: str) -> None:
    arch = "x86_64" if names.features(name, "x86_64") is not None else "aarch64"
    kept, whole = (isa.resolve(text, arch=arch) for text in (name, f"{name},exact"))
    assert set(kept.features) <= set(whole.features)
    assert kept.level == whole.level
    named = {compilers.flags(isa.resolve(text, arch=arch), "gcc-12") for text in (name, kept.name, kept.option)}
    assert len(named) == 1
    left = [row for row in map(facts.feature, whole.features) if row.name not in kept.features]
    assert [row.name for row in left if row.relevant and row.unless not in kept.features] == []
    assert not {row.name for row in left} & facts.levels(arch)[-1].features


def test_the_hosts_set_takes_what_else_is_in_the_list() -> None:
    host = cpu.parse(machine("rhel7-haswell").cpuinfo())
    names = {"host": "x86-64-v3", "host,exact": "x86-64-v3-aes-pclmulqdq", "host,aes": "x86-64-v3-aes"}
    names["host,-avx2"] = isa.resolve("haswell,-avx2", arch="x86_64").name
    assert {text: isa.resolve(text, arch="x86_64", host=host).name for text in names} == names
    zen5 = cpu.parse(machine("rocky9-zen5").cpuinfo())
    assert isa.resolve("host,-avx512f", arch="x86_64", host=zen5).name == "x86-64-v3-avx_vnni"
    for text in ("", "avx2, host", "host,exact", "host +sve", "host -avx2", "+host", "-march=host"):
        assert isa.means_host(text)
    assert not isa.means_host("haswell,exact")
    with pytest.raises(Unsupported, match="no host CPU") as refusal:
        isa.resolve("host,exact", arch="aarch64")
    assert "--cpu armv8-a" in refusal.value.hint


def test_names_of_distinct_sets_differ() -> None:
    pairs = [isa.instruction_set(pair, "x86_64") for pair in itertools.combinations(X86, 2)]
    assert len({found.name for found in pairs}) == len({found.features for found in pairs})


def test_every_row_of_facts_is_closed_and_spelled_once() -> None:
    rows = facts.features()
    names = {row.name for row in rows}
    assert len(names) == len(rows)
    for row in rows:
        assert {*row.implies, *row.needs} <= {other.name for other in facts.features(row.arch)}
        assert row.name not in facts.closure([*row.implies, *row.needs])
    for arch in ("x86_64", "aarch64"):
        for level in facts.levels(arch):
            assert facts.closure(level.features) == level.features, level.name


# --- names and files --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spellings", "arch"),
    [
        ("zen4 znver4", "x86_64"),
        ("icelake icelake-client icelake_client", "x86_64"),
        ("skylake-avx512 skylake_avx512", "x86_64"),
        ("haswell core-avx2", "x86_64"),
        ("sandybridge corei7-avx", "x86_64"),
        ("nehalem corei7", "x86_64"),
        ("neoverse-v1 neoverse_v1", "aarch64"),
        ("neoverse_v2 grace", "aarch64"),
        ("m1 apple-m1", "aarch64"),
    ],
)
def test_spellings_of_one_cpu_are_one_set(spellings: str, arch: str) -> None:
    first, *others = (isa.resolve(name, arch=arch) for name in spellings.split())
    assert [other for other in others if other != first] == []


# The rows of facts/names.toml that GCC 12 knows. GCC gives btver1 XSAVE, which Clang does not.
GCC_12 = ["btver1", "btver2", "cooperlake", "icelake-server", "tigerlake", "rocketlake", "silvermont", "goldmont"]


@pytest.mark.skipif(not shutil.which("gcc-12"), reason="compares with Debian 12's GCC")
@each("name", [*GCC_12, "tremont", "knm"])
def test_a_compilers_name_stands_for_what_that_compiler_makes_of_it(name: str) -> None:
    by_gcc, exact = defined_by_gcc(f"-march={name}"), isa.resolve(f"{name},exact", arch="x86_64")
    assert by_gcc - ({"xsave"} if name == "btver1" else set()) == set(exact.features)


def defined_by_gcc(*flags: str) -> set[str]:
    """The features whose macros GCC 12 defines with these flags."""
    command = ["gcc-12", *flags, "-Werror", "-E", "-dM", "-x", "c", "-"]
    done = subprocess.run(command, input="", capture_output=True, text=True, check=True)
    defined = set(re.findall(r"#define (\w+)", done.stdout))
    return {row.name for row in facts.features("x86_64") if row.use and row.macro in defined}


def test_a_recorded_machines_file_is_an_instruction_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "rack-7"
    file.write_text(machine("rhel7-haswell").cpuinfo())
    expected = isa.of_cpu(cpu.parse(machine("rhel7-haswell").cpuinfo()))
    assert isa.resolve(str(file), arch="x86_64") == expected
    assert expected.name == "x86-64-v3"
    for text in (f"{file},exact", f"{file},exact,exact"):  # a request with `exact` may get another one
        assert isa.resolve(text, arch="x86_64").name == "x86-64-v3-aes-pclmulqdq"
    with pytest.raises(Unsupported, match="describes an x86_64 CPU, not an aarch64 one") as refusal:
        isa.resolve(str(file), arch="aarch64")
    assert refusal.value.hint == "--platform linux/amd64"
    with pytest.raises(Unsupported, match="No such file"):
        isa.resolve("./none", arch="x86_64")
    monkeypatch.chdir(tmp_path)
    assert isa.resolve("rack-7", arch="x86_64") == expected
    (tmp_path / "avx").write_text(machine("rhel7-haswell").cpuinfo())
    assert isa.resolve("avx", arch="x86_64").name == "avx"
    assert isa.resolve("./avx", arch="x86_64") == expected
    with pytest.raises(Unsupported):
        isa.resolve("n" * 5000, arch="x86_64")


@given(st.text(max_size=40), st.sampled_from(["x86_64", "aarch64"]))
def test_no_name_raises_anything_but_the_projects_error(requested: str, arch: str) -> None:
    try:
        isa.resolve(requested, arch=arch)
    except Unsupported:
        return


# --- what is left out, and what is said -------------------------------------------------------------------------------


def test_rows_name_features_and_compilers_that_exist() -> None:
    table = compilers.compiler_table()
    tried = set(table.compiler)
    known = {row.name for row in facts.features()}
    levels = {row.name for arch in ("x86_64", "aarch64") for row in facts.levels(arch)}
    for row in table.broken:
        assert {row.compiler} <= tried | {""}
        assert row.reason
        assert row.source
        assert not row.before or Version(row.start) < Version(row.before)
    for feature, below in [(row.feature, row.below) for row in table.broken] + [
        (row.feature, row.below) for row in table.extra
    ]:
        assert feature in known
        assert below in levels | {""}


def test_rows_of_names_are_closed_and_archspec_has_none_of_them() -> None:
    for row in facts.rows("names", names.CpuName):
        held = names.features(row.name, row.arch)
        assert held is not None
        assert facts.closure(held) == held
        if row.level:
            assert isa.largest_level(held, row.arch).name == row.level
            for target in (TARGETS[name] for name in TARGETS if facts.squeeze(name) == facts.squeeze(row.name)):
                listed = (facts.spelled(name, row.arch) for name in target.features)
                assert held < {feature.name for feature in listed if feature is not None}
        else:
            assert row.same in TARGETS


def test_a_zen_has_what_the_one_before_it_has() -> None:
    held = [names.features(name, "x86_64") or frozenset() for name in ("zen", "zen2", "zen3", "zen4", "zen5", "zen6")]
    assert all(older <= newer for older, newer in itertools.pairwise(held))


def test_cryptography_is_optional_on_a_cortex_a72() -> None:
    assert isa.resolve("Cortex-A72,exact", arch="aarch64") == isa.resolve("Raspberry Pi 4,exact", arch="aarch64")


# --- what a list takes away, and two CPUs in one ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cpu", "same"),
    [
        ("haswell,-avx2", "x86-64-v2,avx,bmi1,bmi2,f16c,fma,lzcnt,movbe"),
        ("Skylake-Server,-avx512f", "x86-64-v3"),
        ("skylake-avx512, -avx512cd", "x86-64-v3,avx512bw,avx512dq,avx512vl"),
        ("x86-64-v4,-avx512f", "x86-64-v3"),
        ("x86-64-v2,-avx512f", "x86-64-v2"),  # what it has not
        ("icelake-server,-avx512_vnni", "x86-64-v4"),
        ("zen5,-avx512f", "x86-64-v3,avx_vnni"),  # which stands back behind AVX512_VNNI alone
        ("x86-64-v3,-fma", "x86-64-v2,avx2,bmi1,bmi2,f16c,lzcnt,movbe"),
        ("x86-64-v2,+avx2,-popcnt", "cx16,lahf_lm,sse4_1,xsave"),
        ("-march=skylake-avx512 -avx512f", "x86-64-v3"),
        ("x86-64-v4,no-avx512f", "x86-64-v3"),
        ("x86-64-v4,!avx512f", "x86-64-v3"),
        ("x86-64-v4,avx512f=off", "x86-64-v3"),
        ("AVX2 FMA", "avx2,fma"),
    ],
)
def test_a_minus_takes_a_feature_away_with_all_that_need_it(cpu: str, same: str) -> None:
    """QEMU's and libvirt's way to switch a feature off."""
    assert isa.resolve(cpu, arch="x86_64") == isa.resolve(same, arch="x86_64")


def test_two_cpus_are_refused_with_what_runs_on_both() -> None:
    with pytest.raises(UsageError, match="haswell and icelake-server are 2 CPUs") as refusal:
        isa.resolve("haswell,icelake-server", arch="x86_64")
    assert refusal.value.hint.startswith("--cpu x86-64-v3 runs on all of them; invoke fleet ")
    # Two names of one CPU, and a level beside it, are no two machines.
    assert isa.resolve("haswell,core-avx2", arch="x86_64") == isa.resolve("haswell,x86-64-v2", arch="x86_64")
