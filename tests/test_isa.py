"""Instruction sets and flags: closed, monotone, never native, never a bare list where a level fits."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.machines import machine, machines
from tfbuild import compilers, cpu, facts, isa
from tfbuild.errors import UnknownCompiler, UnknownCpu, UsageError

X86 = [row.name for row in facts.features("x86_64")]
ARM = [row.name for row in facts.features("aarch64")]
COMPILERS = [f"{row.name}-{version}" for row in compilers.table().compiler for version in row.versions]
lists = st.one_of(
    st.tuples(st.just("x86_64"), st.sets(st.sampled_from(X86))),
    st.tuples(st.just("aarch64"), st.sets(st.sampled_from(ARM))),
)


@pytest.mark.parametrize(
    ("asked", "arch", "name", "level"),
    [
        ("x86-64-v3", "x86_64", "x86-64-v3", "x86-64-v3"),
        ("X86_64_V4", "x86_64", "x86-64-v4", "x86-64-v4"),
        ("avx", "x86_64", "avx", "x86-64-v1"),
        ("avx2,fma", "x86_64", "avx2-fma", "x86-64-v1"),
        ("haswell", "x86_64", "x86-64-v3-aes-pclmulqdq", "x86-64-v3"),
        ("skylake-avx512", "x86_64", "x86-64-v4-adx-aes-pclmulqdq", "x86-64-v4"),
        ("armv8.2-a", "aarch64", "armv8.2-a", "armv8.2-a"),
        ("neoverse-n1", "aarch64", "armv8.2-a-2eaf336b", "armv8.2-a"),
    ],
)
def test_names(asked: str, arch: str, name: str, level: str) -> None:
    found = isa.resolve(asked, arch=arch)
    assert (found.name, found.level) == (name, level)


def test_znver4_and_zen4_are_one() -> None:
    assert isa.resolve("znver4", arch="x86_64") == isa.resolve("zen4", arch="x86_64")


@pytest.mark.parametrize("asked", ["haswel", "x86-64-v5", "avx3", "", ",", "native", "neoverse-n1", "sse4_2;rm"])
def test_unknown_names_are_refused_with_the_nearest(asked: str) -> None:
    with pytest.raises(UnknownCpu) as refusal:
        isa.resolve(asked, arch="x86_64")
    assert "hint: nearest: " in str(refusal.value)


def test_avx512f_brings_fma_since_gcc_refuses_eigen_without_it() -> None:
    assert {"fma", "f16c", "avx2"} <= isa.closure(["avx512f"])
    assert "-mfma" in isa.flags(isa.resolve("avx512f", arch="x86_64"), "gcc-12").flags


@pytest.mark.parametrize(
    ("asked", "compiler", "flags"),
    [
        ("avx", "clang-16", "-march=x86-64 -mavx"),
        ("x86-64-v3", "gcc-12", "-march=x86-64-v3"),
        ("x86-64-v4", "gcc-12", "-march=x86-64-v4"),
        ("x86-64-v4", "clang-18", "-march=x86-64-v4 -mprefer-vector-width=512"),
        ("avx2,fma", "clang-18", "-march=x86-64 -mavx2 -mfma -mtune=haswell"),
        ("x86-64-v4,avx512-vnni", "gcc-12", "-march=x86-64-v4 -mavx512vnni"),
        ("avx512_bf16", "gcc-9", "-march=x86-64 -mavx512bw -mf16c -mfma"),
    ],
)
def test_flags(asked: str, compiler: str, flags: str) -> None:
    assert " ".join(isa.flags(isa.resolve(asked, arch="x86_64"), compiler).flags) == flags


def test_what_a_compiler_does_not_know_is_dropped_with_its_reason() -> None:
    found = isa.flags(isa.resolve("sapphirerapids", arch="x86_64"), "gcc-10")
    reasons = {item.feature: item.reason for item in found.dropped}
    assert reasons["amx_bf16"] == "gcc-10 does not know -mamx-bf16 (gcc 11 does)"
    assert not any("amx" in flag for flag in found.flags)


def test_a_compiler_too_old_for_the_level_gets_the_features_one_by_one() -> None:
    found = isa.flags(isa.resolve("x86-64-v3", arch="x86_64"), "gcc-9").flags
    assert found[0] == "-march=x86-64"
    assert {"-mavx2", "-mfma", "-mbmi2", "-mlzcnt", "-mmovbe"} <= set(found)


@pytest.mark.parametrize("asked", ["gcc-99", "clang-8", "icc", "gcc", "", "gcc-12;x"])
def test_unknown_compilers_are_refused(asked: str) -> None:
    with pytest.raises(UnknownCompiler, match="hint"):
        compilers.find(asked)


def test_a_hypervisor_that_hides_fma_takes_nothing_else_along() -> None:
    guest = cpu.parse(machine("fedora29-zen-guest").cpuinfo())
    found = isa.of_cpu(guest)
    assert "avx2" in found.features
    assert "fma" not in found.features
    assert not isa.hidden(guest)


def test_a_feature_whose_needs_are_masked_is_not_used() -> None:
    masked = cpu.parse(machine("kvm-zen5-guest").core(without=("fma",)))
    assert "avx512f" in {item.feature for item in isa.hidden(masked)}
    assert isa.of_cpu(masked).level == "x86-64-v2"
    assert "avx512f" not in isa.of_cpu(masked).features


@pytest.mark.parametrize("row", machines(), ids=lambda row: row.name)
@pytest.mark.parametrize("compiler", COMPILERS)
def test_every_recorded_machine_gets_a_level_and_only_its_own_features(row: object, compiler: str) -> None:
    found = cpu.parse(row.cpuinfo())  # type: ignore[attr-defined]
    wanted = isa.of_cpu(found)
    flags = isa.flags(wanted, compiler)
    assert set(wanted.features) <= set(found.features)
    assert flags.flags[0].startswith("-march=")
    assert "native" not in " ".join(flags.flags)
    assert len(set(flags.flags)) == len(flags.flags)


@given(lists, st.sampled_from(COMPILERS))
def test_flags_are_monotone_in_features(row: tuple[str, set[str]], compiler: str) -> None:
    arch, names = row
    whole = isa.instruction_set(names, arch)
    covered = {needed for name in names for needed in isa.closure([name])}
    assert set(whole.features) == covered
    for name in names:
        part = isa.instruction_set(names - {name}, arch)
        assert set(part.features) <= set(whole.features)
        levels = [level.name for level in facts.levels(arch)]
        assert levels.index(part.level) <= levels.index(whole.level)
    dropped = {item.feature for item in isa.flags(whole, compiler).dropped}
    assert dropped <= set(whole.features)


@given(lists)
def test_closing_twice_changes_nothing_and_the_name_is_a_tag(row: tuple[str, set[str]]) -> None:
    arch, names = row
    found = isa.instruction_set(names, arch)
    assert isa.instruction_set(found.features, arch) == found
    assert len(found.name) < 60
    assert not set(found.name) - set("abcdefghijklmnopqrstuvwxyz0123456789-._")


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
    assert isa.closure(whole.features) == set(whole.features)


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
        assert row.name not in isa.closure([*row.implies, *row.needs])
    for arch in ("x86_64", "aarch64"):
        for level in facts.levels(arch):
            assert isa.closure(level.features) == level.features, level.name
