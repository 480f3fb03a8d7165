"""Detection: recorded machines against archspec's database, and the kernel's list over all cores."""

from pathlib import Path

import pytest
from archspec.cpu import TARGETS
from hypothesis import given
from hypothesis import strategies as st

from tests.machines import Machine, machine, machines
from tfbuild import cpu, facts
from tfbuild.errors import UnknownCpu


@pytest.mark.parametrize("row", machines(), ids=lambda row: row.name)
def test_recorded_machine_has_all_that_archspec_says_of_it_but_what_is_hidden(row: Machine) -> None:
    found = cpu.parse(row.cpuinfo())
    spelled = (facts.spelled(name, found.arch) for name in TARGETS[row.microarchitecture].features)
    expected = {feature.name for feature in spelled if feature is not None}
    assert expected - set(found.features) == set(row.hides)
    assert (found.level, found.arch) == (row.level, row.arch)
    assert row.model in ("", found.model)
    assert row.vendor in ("", found.vendor)


def test_nothing_is_found_that_the_kernel_does_not_print() -> None:
    for row in machines():
        printed = set(row.flags.split())
        found = [facts.feature(name) for name in cpu.parse(row.cpuinfo()).features]
        assert {feature.cpuinfo or feature.name for feature in found} <= printed


def test_features_are_those_of_all_cores() -> None:
    row = machine("kvm-zen5-guest")
    hybrid = row.core(0) + "\n" + row.core(1, without=("avx512f", "avx512_vnni"))
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
    ],
)
def test_text_that_describes_no_cpu_is_refused_with_the_way_to_record_one(text: str) -> None:
    with pytest.raises(UnknownCpu) as refusal:
        cpu.parse(text, origin="FILE")
    assert "FILE" in str(refusal.value)
    assert "hint: record one" in str(refusal.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownCpu, match="No such file"):
        cpu.detect(tmp_path / "none")


def test_windows_line_ends_and_a_file_without_its_end_are_read() -> None:
    row = machine("rhel7-haswell")
    whole = cpu.parse(row.cpuinfo())
    assert cpu.parse(row.cpuinfo().replace("\n", "\r\n")) == whole
    assert cpu.parse(row.cpuinfo().rstrip()) == whole


@given(st.text(max_size=400))
def test_no_text_raises_anything_but_the_projects_error(text: str) -> None:
    try:
        cpu.parse(text)
    except UnknownCpu:
        return


@given(st.sampled_from(machines()), st.integers(0, 3000), st.integers(0, 3000))
def test_no_cut_raises_anything_but_the_projects_error_and_none_adds_a_feature(
    row: Machine, start: int, end: int
) -> None:
    text = row.cpuinfo()
    try:
        found = cpu.parse(text[:start] + text[end:])
    except UnknownCpu:
        return
    if start <= end:
        assert found.arch == row.arch
