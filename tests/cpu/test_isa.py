"""Instruction sets and flags: closed, monotone, never native, never a bare list where a level fits."""

import itertools
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from archspec.cpu import TARGETS
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from tests import checkout
from tests.cpu.machines import Machine, machine, machines
from tests.rows import each
from tfbuild import cpu, facts
from tfbuild.cpu import compilers, isa, names, uses
from tfbuild.errors import TfbuildError, Unsupported, UsageError

X86 = [row.name for row in facts.features("x86_64")]
ARM = [row.name for row in facts.features("aarch64")]
COMPILERS = [f"{row.name}-{version}" for row in compilers.table().compiler for version in row.versions]
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
        ("haswell", "x86_64", "x86-64-v3", "x86-64-v3"),
        ("haswell,exact", "x86_64", "x86-64-v3-aes-pclmulqdq", "x86-64-v3"),
        ("haswell,pclmulqdq", "x86_64", "x86-64-v3-pclmulqdq", "x86-64-v3"),
        ("skylake-avx512", "x86_64", "x86-64-v4", "x86-64-v4"),
        ("cascadelake", "x86_64", "x86-64-v4-vnni", "x86-64-v4"),
        ("zen4", "x86_64", "x86-64-v4-vnni-bf16", "x86-64-v4"),
        ("zen5", "x86_64", "x86-64-v4-vnni-bf16", "x86-64-v4"),
        ("sapphirerapids", "x86_64", "x86-64-v4-vnni-bf16-fp16", "x86-64-v4"),
        ("sapphirerapids,exact", "x86_64", "x86-64-v4-b9bb6191", "x86-64-v4"),
        ("alderlake", "x86_64", "x86-64-v3-avx_vnni", "x86-64-v3"),
        ("X86-64-v4-VNNI-bf16", "x86_64", "x86-64-v4-vnni-bf16", "x86-64-v4"),
        ("avx2-fma", "x86_64", "avx2-fma", "x86-64-v1"),
        ("armv8.2-a", "aarch64", "armv8.2-a", "armv8.2-a"),
        ("neoverse-n1", "aarch64", "armv8.2-a-fp16", "armv8.2-a"),
        ("neoverse-v1", "aarch64", "armv8.2-a-sve", "armv8.2-a"),
        ("neoverse-v2", "aarch64", "armv8.2-a-sve2", "armv8.2-a"),
    ],
)
def test_names(requested: str, arch: str, name: str, level: str) -> None:
    resolved = isa.resolve(requested, arch=arch)
    assert (resolved.name, resolved.level) == (name, level)


@pytest.mark.parametrize("requested", ["haswel", "ICELEAK", "x86-64-v5", "avx3", "x86-64-v4-vnnni", "sse4_2;rm"])
def test_unknown_names_are_refused_with_the_nearest(requested: str) -> None:
    with pytest.raises(Unsupported) as refusal:
        isa.resolve(requested, arch="x86_64")
    assert "hint: nearest: " in str(refusal.value)


@pytest.mark.parametrize("requested", ["", ",", "exact", "VIA Nano"])
def test_what_is_like_no_name_is_refused_with_the_kinds_of_names(requested: str) -> None:
    with pytest.raises(Unsupported, match=r"hint: a level \(x86-64-v1, .*, or --cpu host; invoke cpus lists all"):
        isa.resolve(requested, arch="x86_64")


@pytest.mark.parametrize(
    ("requested", "arch", "place"),
    [
        ("neoverse-n1", "x86_64", "linux/arm64"),
        ("armv8.2-a", "x86_64", "linux/arm64"),
        ("x86-64-v3,asimddp", "x86_64", "linux/arm64"),
        ("haswell", "aarch64", "linux/amd64"),
        ("avx2", "aarch64", "linux/amd64"),
    ],
)
def test_what_the_other_architecture_knows_is_refused_with_its_platform(requested: str, arch: str, place: str) -> None:
    with pytest.raises(Unsupported) as refusal:
        isa.resolve(requested, arch=arch)
    assert refusal.value.hint.endswith(f": --platform {place}")


def refusal_of(text: str, arch: str = "x86_64") -> str:
    with pytest.raises(Unsupported) as refusal:
        isa.resolve(text, arch=arch)
    return refusal.value.hint


OF_THIS_MACHINE = "native auto local this mine current NATIVE -march=native march=native -mcpu=native"


@each(
    "requested, hint",
    [
        *((word, "--cpu host is the CPU of this machine") for word in OF_THIS_MACHINE.split()),
        ("amx", "nearest: amx_tile, amx_int8, amx_bf16, amx_fp16; or --cpu host"),
        ("all", "--cpu host,exact keeps every feature of this machine's CPU"),
        ("none", "--cpu x86-64-v1 runs on every x86_64 CPU"),
    ],
)
def test_a_word_that_is_no_name_gets_what_it_means(requested: str, hint: str) -> None:
    assert refusal_of(requested) == hint


def test_a_plus_stands_between_features_as_compilers_write_it() -> None:
    assert isa.resolve("avx2+fma", arch="x86_64") == isa.resolve("avx2,fma", arch="x86_64")
    assert isa.resolve("armv8.2-a+sve", arch="aarch64") == isa.resolve("armv8.2-a,sve", arch="aarch64")


@pytest.mark.parametrize(
    ("requested", "arch", "hint"),
    [
        ("amx_tile", "x86_64", "--cpu x86-64-v4,amx_tile"),
        ("avx_vnni", "x86_64", "--cpu x86-64-v3,avx_vnni"),
        ("avx2,vnni", "x86_64", "--cpu x86-64-v4,avx2,avx512_vnni"),
        ("sve2", "aarch64", "--cpu armv8.2-a,sve2"),
    ],
)
def test_a_feature_without_the_level_of_its_cpus_is_refused_with_it(requested: str, arch: str, hint: str) -> None:
    with pytest.raises(UsageError, match="which this list leaves out") as refusal:
        isa.refuse_without_level(requested, arch)
    assert refusal.value.hint == hint
    isa.refuse_without_level(hint.removeprefix("--cpu "), arch)


@each("requested", ["avx2", "avx2,fma", "avx512f", "x86-64-v3", "x86-64-v1,amx_tile", "haswell,amx_tile", "avx2-fma"])
def test_features_of_a_level_and_those_beside_a_level_are_taken(requested: str) -> None:
    isa.refuse_without_level(requested, "x86_64")


def test_without_a_host_the_levels_of_the_architecture_are_named() -> None:
    with pytest.raises(Unsupported) as refusal:
        isa.resolve("host", arch="aarch64")
    assert "--cpu armv8-a" in refusal.value.hint
    assert "x86" not in refusal.value.hint


def test_avx512f_brings_fma_since_gcc_refuses_eigen_without_it() -> None:
    assert {"fma", "f16c", "avx2"} <= facts.closure(["avx512f"])
    assert "-mfma" in compilers.flags(isa.resolve("avx512f", arch="x86_64"), "gcc-12").flags


@each(
    "requested, compiler, width, flags",
    [
        ("avx", "clang-16", "", "-march=x86-64 -mavx"),
        ("x86-64-v3", "gcc-12", "", "-march=x86-64-v3"),
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
    ],
)
def test_flags_with_the_vector_width_that_is_asked_for(requested: str, compiler: str, width: str, flags: str) -> None:
    chosen = compilers.flags(isa.resolve(requested, arch="x86_64"), compiler, prefer_vector_width=width)
    assert " ".join(chosen.flags) == flags


def test_what_a_compiler_does_not_know_is_dropped_with_its_reason() -> None:
    flags = compilers.flags(isa.resolve("sapphirerapids,exact", arch="x86_64"), "gcc-10")
    reasons = {item.feature: item.reason for item in flags.dropped}
    assert reasons["amx_bf16"] == "gcc-10 does not know -mamx-bf16 (gcc 11 does)"
    assert not any("amx" in flag for flag in flags.flags)


def test_a_compiler_too_old_for_the_level_gets_the_features_one_by_one() -> None:
    switches = compilers.flags(isa.resolve("x86-64-v3", arch="x86_64"), "gcc-9").flags
    assert switches[0] == "-march=x86-64"
    assert {"-mavx2", "-mfma", "-mbmi2", "-mlzcnt", "-mmovbe"} <= set(switches)


def test_a_hypervisor_that_hides_fma_takes_nothing_else_along() -> None:
    guest = cpu.parse(machine("fedora29-zen-guest").cpuinfo())
    resolved = isa.of_cpu(guest)
    assert "avx2" in resolved.features
    assert "fma" not in resolved.features
    assert not isa.hidden(guest)


def test_a_feature_whose_needs_are_masked_is_not_used() -> None:
    masked = cpu.parse(machine("kvm-zen5-guest").core(without=("fma",)))
    assert "avx512f" in {item.feature for item in isa.hidden(masked)}
    assert isa.of_cpu(masked).level == "x86-64-v2"
    assert "avx512f" not in isa.of_cpu(masked).features


@each("row", machines())
@each("compiler", COMPILERS)
def test_every_recorded_machine_gets_a_level_and_only_its_own_features(row: object, compiler: str) -> None:
    parsed = cpu.parse(row.cpuinfo())  # type: ignore[attr-defined]
    wanted = isa.of_cpu(parsed)
    flags = compilers.flags(wanted, compiler)
    assert set(wanted.features) <= set(parsed.features)
    assert flags.flags[0].startswith("-march=")
    assert "native" not in " ".join(flags.flags)
    assert len(set(flags.flags)) == len(flags.flags)


@given(lists, st.sampled_from(COMPILERS))
def test_flags_are_monotone_in_features(row: tuple[str, set[str]], compiler: str) -> None:
    arch, names = row
    whole = isa.instruction_set(names, arch)
    covered = {needed for name in names for needed in facts.closure([name])}
    assert set(whole.features) == covered
    for name in names:
        part = isa.instruction_set(names - {name}, arch)
        assert set(part.features) <= set(whole.features)
        levels = [level.name for level in facts.levels(arch)]
        assert levels.index(part.level) <= levels.index(whole.level)
    dropped = {item.feature for item in compilers.flags(whole, compiler).dropped}
    assert dropped <= set(whole.features)


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
    assert {item.feature for item in flags.dropped} == set(requested.features) - set(flags.instruction_set.features)
    assert set(flags.instruction_set.features) - set(requested.features) <= facts.levels(arch)[0].features
    assert compilers.flags(flags.instruction_set, compiler, release=release).flags == flags.flags
    assert not compilers.flags(flags.instruction_set, compiler, release=release).dropped


def switched_on(flags: tuple[str, ...], arch: str) -> set[str]:
    """What a compiler makes of the flags, by the rows: a level's features, and each flag's with what it implies."""
    march, *others = flags[0].removeprefix("-march=").split("+")
    level = next(row for row in facts.levels(arch) if row.march == march)
    by_flag = {row.flag: row.name for row in facts.features(arch) if row.flag}
    extras = tuple(row.flag for row in compilers.table().extra)
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


@given(st.sampled_from(["x86_64", "aarch64"]), st.data())
def test_intersection_is_commutative_associative_idempotent_and_never_wider_than_a_member(
    arch: str, data: st.DataObject
) -> None:
    names = X86 if arch == "x86_64" else ARM
    a, b, c = (isa.instruction_set(data.draw(st.sets(st.sampled_from(names))), arch) for _ in range(3))
    both = isa.intersection([a, b])
    assert both == isa.intersection([b, a])
    assert isa.intersection([a]) == a == isa.intersection([a, a])
    whole = isa.intersection([a, b, c])
    assert whole == isa.intersection([both, c]) == isa.intersection([a, isa.intersection([b, c])])
    for member in (a, b, c):
        assert set(whole.features) <= set(member.features)
    assert set(both.features) == set(a.features) & set(b.features)
    assert facts.closure(whole.features) == set(whole.features)


@each("name", [*names.known("x86_64"), *names.known("aarch64")])
def test_a_cpus_set_is_part_of_all_that_it_has_and_its_name_names_it(name: str) -> None:
    arch = "x86_64" if names.features(name, "x86_64") is not None else "aarch64"
    kept, whole = (isa.resolve(text, arch=arch) for text in (name, f"{name},exact"))
    assert set(kept.features) <= set(whole.features)
    assert kept.level == whole.level
    named = {compilers.flags(isa.resolve(text, arch=arch), "gcc-12") for text in (name, kept.name, kept.option)}
    assert len(named) == 1
    left = set(whole.features) - set(kept.features)
    assert all(uses.left_out(feature) for feature in left)
    assert not left & set(facts.levels(arch)[-1].features)


@each("row", machines())
def test_a_recorded_machines_set_has_a_name_to_read(row: Machine) -> None:
    own = isa.of_cpu(cpu.parse(row.cpuinfo()))
    assert not re.search(r"-[0-9a-f]{8}$", own.name)
    assert set(own.features) <= set(isa.all_of_cpu(cpu.parse(row.cpuinfo())).features)


def test_the_hosts_set_takes_what_else_is_in_the_list() -> None:
    host = cpu.parse(machine("rhel7-haswell").cpuinfo())
    named = {text: isa.resolve(text, arch="x86_64", host=host).name for text in ("host", "host,exact", "host,aes")}
    assert named == {"host": "x86-64-v3", "host,exact": "x86-64-v3-aes-pclmulqdq", "host,aes": "x86-64-v3-aes"}
    assert isa.means_host("host,exact")
    assert not isa.means_host("haswell,exact")
    with pytest.raises(Unsupported, match="no host CPU"):
        isa.resolve("host,exact", arch="x86_64")


def test_nothing_is_common_to_two_architectures_or_to_no_machine() -> None:
    pair = (isa.resolve("x86-64-v3", arch="x86_64"), isa.resolve("armv8.2-a", arch="aarch64"))
    with pytest.raises(UsageError, match="aarch64 and x86_64"):
        isa.intersection(pair)
    with pytest.raises(UsageError, match="no instruction set"):
        isa.intersection([])


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
        ("zen3 znver3", "x86_64"),
        ("icelake icelake-client icelake_client", "x86_64"),
        ("skylake-avx512 skylake_avx512", "x86_64"),
        ("haswell core-avx2", "x86_64"),
        ("ivybridge core-avx-i", "x86_64"),
        ("sandybridge corei7-avx", "x86_64"),
        ("nehalem corei7", "x86_64"),
        ("piledriver bdver2", "x86_64"),
        ("k10 amdfam10", "x86_64"),
        ("zen6 znver6", "x86_64"),
        ("neoverse-v1 neoverse_v1", "aarch64"),
        ("neoverse_v2 grace", "aarch64"),
        ("neoverse_n2 cobalt-100", "aarch64"),
        ("m1 apple-m1", "aarch64"),
        ("thunderx2 thunderx2t99", "aarch64"),
    ],
)
def test_spellings_of_one_cpu_are_one_set(spellings: str, arch: str) -> None:
    first, *others = (isa.resolve(name, arch=arch) for name in spellings.split())
    assert all(other == first for other in others)


@pytest.mark.parametrize("requested", ["armv8.4-a", "armv8.6a", "armv9-a", "armv9.0-a"])
def test_an_arm_level_whose_features_are_not_known_is_refused_rather_than_made_smaller(requested: str) -> None:
    with pytest.raises(Unsupported, match="unknown CPU, level or feature") as refusal:
        isa.resolve(requested, arch="aarch64")
    assert "armv8.2-a" in refusal.value.hint


def test_an_old_compilers_name_of_a_newer_cpu_is_the_older_cpu() -> None:
    """To GCC 11 a Zen 4 is "znver3"; who asks for znver3 has no AVX-512."""
    assert not any(name.startswith("avx512") for name in isa.resolve("znver3", arch="x86_64").features)


# The rows of facts/names.toml that GCC 12 knows. GCC gives btver1 XSAVE, which Clang does not.
GCC_12 = ["btver1", "btver2", "cooperlake", "icelake-server", "tigerlake", "rocketlake", "silvermont", "goldmont"]


@pytest.mark.skipif(not shutil.which("gcc-12"), reason="compares with Debian 12's GCC")
@each("name", [*GCC_12, "tremont", "knm"])
def test_a_compilers_name_stands_for_what_that_compiler_makes_of_it(name: str) -> None:
    by_gcc, exact = defined_by_gcc(f"-march={name}"), isa.resolve(f"{name},exact", arch="x86_64")
    assert by_gcc - ({"xsave"} if name == "btver1" else set()) == set(exact.features)


@pytest.mark.skipif(not shutil.which("gcc-12"), reason="asks Debian 12's GCC")
@each("requested", [*names.known("x86_64"), "avx", "avx2,fma", "avx512f", "amx_fp16", "avx512_bf16,rdseed"])
def test_the_flags_switch_on_in_a_real_compiler_what_they_promise(requested: str) -> None:
    for text in (requested, f"{requested},exact"):
        flags = compilers.flags(isa.resolve(text, arch="x86_64"), "gcc-12")
        assert defined_by_gcc(*flags.flags) == set(flags.instruction_set.features)


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
    assert isa.resolve(f"{file},exact", arch="x86_64").name == "x86-64-v3-aes-pclmulqdq"
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


@pytest.mark.parametrize(
    ("compiler", "release", "reason"),
    [
        ("gcc-12", "2.15.1", "invalid static_cast from eigen_packet_wrapper"),
        ("clang-17", "2.16.1", "invalid static_cast from eigen_packet_wrapper"),
        ("gcc-13", "2.18.1", "const Eigen::half to _Float16"),
        ("clang-18", "2.21.0", "predux_half_dowto4"),
    ],
)
def test_avx512_fp16_is_left_out_where_it_breaks_the_release(compiler: str, release: str, reason: str) -> None:
    requested = isa.resolve("sapphirerapids", arch="x86_64")
    flags = compilers.flags(requested, compiler, release=release)
    assert [item.feature for item in flags.dropped] == ["avx512_fp16"]
    assert reason in flags.dropped[0].reason
    assert f"{release} with {compiler}" in flags.dropped[0].reason
    assert "-mavx512fp16" not in flags.flags
    assert "avx512_fp16" not in flags.instruction_set.features
    assert flags.instruction_set.level == "x86-64-v4"


@pytest.mark.parametrize(
    ("compiler", "release"), [("gcc-12", "2.17.0"), ("gcc-13", "2.19.1"), ("clang-18", "2.20.0"), ("gcc-13", "")]
)
def test_avx512_fp16_stays_where_no_failure_is_known(compiler: str, release: str) -> None:
    flags = compilers.flags(isa.resolve("sapphirerapids", arch="x86_64"), compiler, release=release)
    assert "-mavx512fp16" in flags.flags
    assert not flags.dropped


def test_clang_gets_bf16_only_behind_the_level_that_it_does_not_crash_with() -> None:
    whole = compilers.flags(isa.resolve("x86-64-v4,avx512_bf16", arch="x86_64"), "clang-18", release="2.20.0")
    assert "-mavx512bf16" in whole.flags
    bare = compilers.flags(isa.resolve("avx512_bf16", arch="x86_64"), "clang-18", release="2.20.0")
    assert [item.feature for item in bare.dropped] == ["avx512_bf16"]
    assert "-mavx512bw" in bare.flags


def test_a_feature_goes_with_what_it_needs() -> None:
    flags = compilers.flags(isa.instruction_set(["amx_fp16"], "x86_64"), "gcc-10")
    assert {item.feature: item.reason for item in flags.dropped}["amx_fp16"].startswith("gcc-10 does not know")
    assert flags.instruction_set.features == ("xsave",)


def test_what_only_intrinsics_reach_is_never_required() -> None:
    flags = compilers.flags(isa.resolve("x86-64-v3,rdseed", arch="x86_64"), "gcc-12")
    assert flags.flags == ("-march=x86-64-v3",)
    reason = "only intrinsics use it; requiring it would exclude hosts without any gain"
    assert [(item.feature, item.reason) for item in flags.dropped] == [("rdseed", reason)]


def test_names_that_tune_badly_are_never_emitted_and_said_so() -> None:
    requested = isa.resolve("skylake", arch="x86_64")
    flags = compilers.flags(requested, "clang-18", named="skylake")
    assert flags.flags[0] == "-march=x86-64-v3"
    assert "0.57 of plain -mavx" in flags.notes[0]
    assert not compilers.flags(requested, "gcc-12", named="skylake").notes
    assert not compilers.flags(requested, "clang-18", named="haswell").notes
    assert "0.78" in compilers.flags(requested, "gcc-12", named="zen3").notes[0]
    assert not compilers.flags(requested, "gcc-14", named="znver3").notes


def test_no_cpus_name_is_ever_a_flag() -> None:
    marches = {row.march for arch in ("x86_64", "aarch64") for row in facts.levels(arch)}
    for name in names.known("x86_64"):
        held = names.features(name, "x86_64")
        assert held is not None
        for compiler in ("gcc-9", "gcc-12", "clang-18", "clang-23"):
            first = compilers.flags(isa.instruction_set(held, "x86_64"), compiler, named=name).flags[0]
            assert first.removeprefix("-march=") in marches


@pytest.mark.parametrize(
    ("requested", "arch", "compiler", "width", "error"),
    [
        ("x86-64-v3", "x86_64", "gcc-12", "512", UsageError),
        ("x86-64-v2", "x86_64", "gcc-12", "128", UsageError),
        ("armv8.2-a", "aarch64", "gcc-12", "128", UsageError),
        ("x86-64-v4", "x86_64", "gcc-12", "1024", UsageError),
    ],
)
def test_a_vector_width_that_changes_nothing_is_refused(
    requested: str, arch: str, compiler: str, width: str, error: type[TfbuildError]
) -> None:
    with pytest.raises(error, match="hint"):
        compilers.flags(isa.resolve(requested, arch=arch), compiler, prefer_vector_width=width)


def test_rows_name_features_and_compilers_that_exist() -> None:
    table = compilers.table()
    tried = {row.name for row in table.compiler}
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
    assert all(names.features(row.name, "x86_64") is not None for row in table.slow)


def test_rows_of_names_are_closed_and_archspec_has_none_of_them() -> None:
    for row in facts.rows("names", names.CpuName):
        held = names.features(row.name, row.arch)
        assert held is not None
        assert facts.closure(held) == held
        if row.level:
            assert isa.largest_level(held, row.arch).name == row.level
            assert facts.squeeze(row.name) not in {facts.squeeze(name) for name in TARGETS}
        else:
            assert row.same in TARGETS


NEW = (
    '    { name = "quux", flag = "-mquux", macro = "__QUUX__", gcc = 15, clang = 20, cpuid = "7.1.ebx.31", '
    'implies = ["avx2"] },\n'
)


def test_a_new_feature_is_a_row(tmp_path: Path) -> None:
    """Made up, in a copy of the project: its name is known, it gets its flag, or is left out for an older compiler."""
    copy = checkout.copy(tmp_path / "copy", "tfbuild/", "tasks.py", "tools/")
    file = copy / "tfbuild" / "facts" / "features.toml"
    head, rows, rest = file.read_text(encoding="utf-8").partition("feature = [\n")
    file.write_text(head + rows + NEW + rest, encoding="utf-8")

    arguments = ("copts", "--json", "--platform", "linux/amd64", "--cpu", "x86-64-v3,quux", "--compiler")
    with checkout.serving(copy) as served:
        new, old = (json.loads(served.invoke(*arguments, compiler).stdout) for compiler in ("gcc-15", "gcc-12"))
    assert (new["instruction_set"], new["copts"][:2]) == (
        "x86-64-v3-quux",
        ["--copt=-march=x86-64-v3", "--copt=-mquux"],
    )
    assert [row["feature"] for row in old["dropped"]] == ["quux"]


def test_every_x86_feature_has_its_own_cpuid_bit() -> None:
    bits = [row.cpuid for row in facts.features("x86_64")]
    assert len(set(bits)) == len(bits)
    assert all(re.fullmatch(r"(1|7|80000001)\.[01]\.(eax|ebx|ecx|edx)\.\d{1,2}", bit) for bit in bits)
    assert not any(row.cpuid for row in facts.features("aarch64"))


# --- what is told -----------------------------------------------------------------------------------------------------


def test_an_empty_cpu_means_the_host_and_names_none() -> None:
    assert isa.means_host("")
    assert isa.means_host("avx2, host")
    assert not isa.means_host("hosts")
    with pytest.raises(Unsupported, match="' , exact' names no CPU, level or feature"):
        isa.resolve(" , exact", arch="x86_64")


def test_the_features_of_all_words_are_taken_together() -> None:
    both = isa.resolve(" avx2 , , fma ", arch="x86_64")
    assert set(both.features) == facts.closure({"avx2", "fma"})
    assert isa.resolve("haswell,EXACT", arch="x86_64") == isa.resolve("haswell,exact", arch="x86_64")


def test_a_set_is_found_again_by_its_name_and_its_option() -> None:
    for names_ in (["avx"], ["avx2", "fma"], [*facts.levels("x86_64")[2].features, "aes"], ["amx_bf16"]):
        found = isa.instruction_set(names_, "x86_64")
        assert isa.resolve(found.option, arch="x86_64") == found
        assert isa.resolve(found.name, arch="x86_64") == found
    assert isa.resolve("x86-64-v3", arch="x86_64").option == "x86-64-v3"
    assert isa.resolve("x86-64-v3,aes,gfni", arch="x86_64").option == "x86-64-v3,aes,gfni"


def test_a_name_that_would_be_too_long_for_a_tag_has_a_fingerprint_instead() -> None:
    short = isa.resolve("x86-64-v4,vnni,bf16,fp16,aes,gfni,sha_ni", arch="x86_64")
    assert len(short.name) <= isa.MOST_NAME
    assert not re.search(r"-[0-9a-f]{8}$", short.name)
    long = isa.resolve("x86-64-v4,vnni,bf16,fp16,aes,gfni,sha_ni,vaes,adx,rdrand", arch="x86_64")
    assert re.fullmatch(r"x86-64-v4-[0-9a-f]{8}", long.name)


@pytest.mark.parametrize("one", ["skylake-avx512", "haswell", "zen4"])
def test_two_names_of_one_cpu_are_the_same_and_of_two_are_not(one: str) -> None:
    others = {"skylake-avx512": "skylake_avx512", "haswell": "core-avx2", "zen4": "ZNVER4"}
    for name, other in others.items():
        assert names.same(one, other, "x86_64") == (name == one)
    assert names.same("nosuch", "nosuch", "x86_64")
    assert not names.same("nosuch", "nosuch-either", "x86_64")
    assert names.features("nosuch", "x86_64") is None


# --- what a list takes away, and two CPUs in one ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cpu", "same"),
    [
        ("haswell,-avx2", "x86-64-v2,avx,bmi1,bmi2,f16c,fma,lzcnt,movbe"),
        ("Skylake-Server,-avx512f", "x86-64-v3"),
        ("skylake-avx512, -avx512cd", "x86-64-v3,avx512bw,avx512dq,avx512vl"),
        ("x86-64-v4,-avx512f", "x86-64-v3"),
        ("icelake-server,-avx512_vnni", "x86-64-v4"),
        ("x86-64-v3,-fma", "x86-64-v2,avx2,bmi1,bmi2,f16c,lzcnt,movbe"),
        ("x86-64-v2,+avx2,-popcnt", "cx16,lahf_lm,sse4_1,xsave"),
    ],
)
def test_a_minus_takes_a_feature_away_with_all_that_need_it(cpu: str, same: str) -> None:
    """QEMU's and libvirt's way to switch a feature off."""
    assert isa.resolve(cpu, arch="x86_64") == isa.resolve(same, arch="x86_64")


def test_a_host_without_a_feature_lacks_it() -> None:
    host = cpu.parse(machine("rocky9-zen5").cpuinfo())
    left = isa.resolve("host,-avx512f", arch="x86_64", host=host)
    assert not any(name.startswith("avx512") for name in left.features)
    assert left.level == "x86-64-v3"


@pytest.mark.parametrize("word", ["-avx999", "-haswell"])
def test_only_a_feature_can_be_taken_away(word: str) -> None:
    with pytest.raises(Unsupported, match=f"unknown feature '{word}'"):
        isa.resolve(f"haswell,{word}", arch="x86_64")


def test_two_cpus_are_refused_with_what_runs_on_both() -> None:
    with pytest.raises(UsageError, match="haswell and icelake-server are 2 CPUs") as refusal:
        isa.resolve("haswell,icelake-server", arch="x86_64")
    assert refusal.value.hint.startswith("--cpu x86-64-v3 runs on all of them; invoke fleet ")
    # Two names of one CPU, and a level beside it, are no two machines.
    assert isa.resolve("haswell,core-avx2", arch="x86_64") == isa.resolve("haswell,x86-64-v2", arch="x86_64")
