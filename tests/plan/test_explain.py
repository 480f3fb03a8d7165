"""The table of every feature: it agrees with the flags that are emitted, and odd input becomes a note."""

import io
import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import terminal
from tests.cpu.machines import Machine, Recording, machine, machines, recording, recordings
from tests.cpu.test_isa import COMPILERS
from tests.facts import newest
from tests.rows import each
from tfbuild import facts, plan
from tfbuild.cpu import compilers, isa, uses
from tfbuild.facts import releases
from tfbuild.plan import Request, explain
from tfbuild.plan.explain import Explanation, FeatureRow


def rows(explanation: Explanation) -> dict[str, FeatureRow]:
    return {row.feature: row for row in explanation.features}


def recorded(folder: Path, row: Machine, *, without: tuple[str, ...] = ()) -> str:
    path = folder / row.name
    path.write_text(row.core(without=without), encoding="utf-8")
    return str(path)


@each("row", machines())
@each("compiler", ["gcc-7", "gcc-12", "clang-18"])
def test_every_feature_has_a_row_and_every_emitted_flag_is_in_it(row: Machine, compiler: str, tmp_path: Path) -> None:
    explanation = explain.explain(Request(cpuinfo=recorded(tmp_path, row), compiler=compiler))
    assert [item.feature for item in explanation.features] == [item.name for item in facts.features(row.arch)]
    assert explanation.instruction_set
    assert explanation.compiler == compiler
    kept = [item for item in explanation.features if item.kept]
    carried = " ".join(item.flag for item in kept)
    own = {flag.split("=")[-1].split("+")[0] if "march" in flag else flag for flag in explanation.copts}
    for flag in own - {"--copt=-mprefer-vector-width=512", "--copt=-mtune=haswell"}:
        # The smallest level has features on aarch64 only: on x86-64 nothing need come from it.
        assert flag.removeprefix("--copt=") in carried or flag == "x86-64", flag
    assert all(item.reason for item in explanation.features if item.kept is False)
    assert all(item.flag and not item.reason for item in kept)


def test_kept_are_the_features_of_the_set_that_the_compiler_knows(tmp_path: Path) -> None:
    path = recorded(tmp_path, machine("unknown-sapphirerapids"))
    by_name = rows(explain.explain(Request(cpu="host,exact", cpuinfo=path, compiler="gcc-10")))
    assert (by_name["avx2"].kept, by_name["avx2"].level) == (True, "x86-64-v3")
    assert (by_name["amx_bf16"].cpu, by_name["amx_bf16"].kept) == ("yes", False)
    assert by_name["amx_bf16"].reason == "gcc-10 does not know -mamx-bf16 (gcc 11 does)"
    assert (by_name["fma4"].cpu, by_name["fma4"].reason) == ("no", "not in this CPU")
    assert by_name["avx_ifma"].cpu == "not known"  # no kernel prints it
    assert by_name["rdrand"].kept is False


@pytest.mark.parametrize("request_", [Request(cpu="sapphirerapids"), Request(cpu="host")], ids=lambda row: row.cpu)
def test_a_feature_that_makes_no_difference_is_in_the_cpu_and_left_out_with_the_reason(
    request_: Request, tmp_path: Path
) -> None:
    path = recorded(tmp_path, machine("unknown-sapphirerapids")) if request_.cpu == "host" else ""
    explanation = explain.explain(replace(request_, cpuinfo=path))
    assert explanation.instruction_set == "x86-64-v4-vnni-bf16"  # the newest release's Eigen refuses AVX512-FP16
    by_name = rows(explanation)
    for name, reason in {
        "gfni": uses.LEFT_OUT,
        "amx_int8": uses.LEFT_OUT,
        "avx_vnni": "avx512_vnni does the same",
    }.items():
        assert (by_name[name].cpu, by_name[name].kept) == ("yes", False)
        assert by_name[name].reason == reason
    assert by_name["fma4"].cpu == "no"


def test_cpuid_beside_the_kernels_list_tells_of_what_no_kernel_prints(tmp_path: Path) -> None:
    path = tmp_path / "guest"
    path.write_text(recording("kvm-sapphirerapids-guest").text)
    row = rows(explain.explain(Request(cpuinfo=str(path))))["avx_ifma"]
    assert (row.cpu, row.reason) == ("no", "not in this CPU")


@each("row", recordings())
def test_a_recording_of_any_format_gets_its_table(row: Recording, tmp_path: Path) -> None:
    path = tmp_path / "recorded"
    path.write_text(row.text, encoding="utf-8")
    explanation = explain.explain(Request(cpuinfo=str(path)))
    held = {item.feature for item in explanation.features if item.cpu in ("yes", "masked")}
    assert held == (set() if row.refused else set(row.features.split()))


def test_what_breaks_the_release_is_dropped_with_the_reason_and_other_releases_keep_it() -> None:
    row = rows(explain.explain(Request(cpu="sapphirerapids", compiler="gcc-13", release="2.18.1")))["avx512_fp16"]
    assert (row.cpu, row.kept) == ("yes", False)
    assert row.reason.startswith("breaks TensorFlow 2.18.1 with gcc-13: ")
    assert rows(explain.explain(Request(cpu="sapphirerapids", compiler="gcc-13", release="2.20.0")))["avx512_fp16"].kept


def test_what_sources_disagree_on_has_the_rule_for_its_reason(tmp_path: Path) -> None:
    row = machine("kvm-zen5-guest")
    path = tmp_path / "hybrid"
    path.write_text(row.core(0) + "\n" + row.core(1, without=("avx512_vnni",)), encoding="utf-8")
    feature_row = rows(explain.explain(Request(cpuinfo=str(path))))["avx512_vnni"]
    assert (feature_row.cpu, feature_row.kept) == ("no", False)
    assert feature_row.reason == "some cores lack it, and a program may be moved to any core: off"


def test_without_a_compiler_it_is_the_release_s_own() -> None:
    assert explain.explain(Request(cpu="x86-64-v3", release="2.14.0")).compiler == releases.compiler("2.14.0")
    assert explain.explain(Request(cpu="x86-64-v3", release="none")).compiler == plan.usual("x86_64").compiler


def test_the_set_is_what_the_flags_switch_on_as_copts_and_plan_say_it() -> None:
    request = Request(cpu="sapphirerapids", release="2.9.0", target="cpu")
    explanation = explain.explain(request)
    assert not rows(explanation)["avx512_fp16"].kept
    assert explanation.instruction_set == plan.select(request, None).instruction_set.name
    assert explanation.cpu == isa.resolve("sapphirerapids", arch="x86_64").name


def test_what_needs_a_masked_feature_says_so(tmp_path: Path) -> None:
    path = recorded(tmp_path, machine("kvm-zen5-guest"), without=("fma",))
    row = rows(explain.explain(Request(cpuinfo=path, compiler="gcc-12")))["avx512f"]
    assert (row.cpu, row.kept, row.reason) == ("masked", False, "needs fma, which is masked")


def test_a_flag_of_gcc_never_counts_as_bringing_what_only_clang_brings_with_it() -> None:
    """-mvaes is -mavx2 too on Clang, not on GCC."""
    by_name = rows(explain.explain(Request(cpu="vaes,avx2", compiler="gcc-12")))
    assert by_name["avx2"].flag == "-mavx2"
    assert by_name["avx"].flag in ("with -mavx2", "with -mf16c")


def test_what_uses_a_feature() -> None:
    by_name = rows(explain.explain(Request(cpu="x86-64-v4", release="2.21.0")))
    assert by_name["avx2"].used_by == ("Eigen", "oneDNN", "XNNPACK", "guard")
    assert by_name["avx_ne_convert"].used_by == ("guard",)
    assert by_name["bmi2"].used_by == ()
    older = rows(explain.explain(Request(cpu="x86-64-v4", release="2.9.0")))
    assert older["avx_ne_convert"].used_by == ()  # its guard does not know it yet


def test_every_fact_of_use_names_features_that_exist_and_its_source() -> None:
    for use in uses.table().use:
        assert use.source
        assert len(set(use.features)) == len(use.features)
        assert all(facts.feature(name) for name in use.features)


@pytest.mark.parametrize(
    ("request_", "note"),
    [
        (Request(cpu="haswel"), "nearest: haswell"),
        (Request(cpu="amx_tile", platform="linux/amd64"), "every CPU with amx_tile has all of x86-64-v4"),
        (Request(cpu="x86-64-v3", compiler="gcc-99"), "unknown compiler 'gcc-99'; base images have: gcc-9, "),
        (Request(cpu="x86-64-v3", compiler="icc"), "unknown compiler 'icc'"),
        (Request(cpu="x86-64-v3", release="2.9999"), f"nearest: {releases.newest_first()[1]}, {newest.RELEASE}"),
        (Request(cpu="x86-64-v3", release="two"), "unknown TensorFlow release 'two'"),
        (Request(cpu="x86-64-v3", platform="beos/mips"), "unknown platform 'beos/mips'; one of: linux/amd64"),
        (Request(cpu="haswell", cpuinfo="/dev/null"), "--cpuinfo /dev/null is not read: --cpu haswell names another"),
        (Request(cpuinfo="/dev/null"), "does not describe a CPU"),
        (Request(cpuinfo="/nowhere"), "No such file"),
        (Request(cpuinfo="/"), "Is a directory"),
    ],
)
def test_what_is_not_understood_becomes_a_note_with_the_nearest(request_: Request, note: str) -> None:
    explanation = explain.explain(request_)
    assert note in " ".join(explanation.notes)
    assert explanation.features
    stream = io.StringIO()
    explain.show(explanation, stream)
    assert "avx512_vp2intersect" in stream.getvalue()


def test_each_level_says_whether_the_cpu_has_all_of_it(tmp_path: Path) -> None:
    def shown(request: Request) -> str:
        stream = io.StringIO()
        explain.show(explain.explain(request), stream)
        return stream.getvalue()

    text = shown(Request(cpuinfo=recorded(tmp_path, machine("rhel7-haswell"), without=("movbe",))))
    assert "x86-64-v2: all in the CPU" in text
    assert "x86-64-v3: the CPU lacks movbe\n" in text
    assert "x86-64-v4: the CPU lacks avx512f" in text
    assert "x86-64-v2: not known whether the CPU has it" in shown(Request(cpuinfo="/nowhere"))


@each("release", releases.newest_first())
def test_every_release_has_a_table_of_its_own_compiler(release: str) -> None:
    for cpu in ("sapphirerapids", "neoverse-v1"):
        explanation = explain.explain(Request(cpu=cpu, release=release))
        assert explanation.release == release
        assert explanation.copts


def test_an_unknown_compiler_leaves_the_flags_and_who_knows_them() -> None:
    by_name = rows(explain.explain(Request(cpu="x86-64-v4", compiler="gcc-99")))
    assert (by_name["avx2"].kept, by_name["avx2"].cpu, by_name["avx2"].flag) == (None, "yes", "-mavx2")
    assert by_name["avx2"].reason == "known from gcc 7, clang 9 on"


def test_the_name_of_another_architectures_cpu_is_shown_for_that_one() -> None:
    explanation = explain.explain(Request(cpu="neoverse-v1", platform=""))
    assert explanation.platform == "linux/arm64"
    assert rows(explanation)["sve"].kept
    there = explain.explain(Request(cpu="neoverse-v1", platform="linux/amd64"))
    assert there.platform == "linux/amd64"
    assert "unknown CPU" in there.notes[0]


def test_a_recorded_machine_of_another_platform_is_not_taken_for_it(tmp_path: Path) -> None:
    path = recorded(tmp_path, machine("amazon-neoverse_n1"))
    assert explain.explain(Request(cpuinfo=path)).platform == "linux/arm64"
    explanation = explain.explain(Request(cpuinfo=path, platform="linux/amd64"))
    assert "is aarch64, not linux/amd64" in explanation.notes[0]
    assert {row.cpu for row in explanation.features} == {"not known"}


words = st.one_of(
    st.text(max_size=20), st.sampled_from(["", "host", "avx2,fma", "armv8.2-a", "zen4", "2.14", "2.21.0"])
)


@given(words, st.one_of(words, st.sampled_from(COMPILERS)), words, st.one_of(words, st.just("linux/arm64")))
def test_no_words_make_it_fail(cpu: str, compiler: str, release: str, platform: str) -> None:
    explanation = explain.explain(Request(cpu=cpu, compiler=compiler, release=release, platform=platform))
    assert {row.feature for row in explanation.features} in (
        {row.name for row in facts.features(arch)} for arch in ("x86_64", "aarch64")
    )
    assert json.dumps(explanation.to_json())


@given(st.binary(max_size=300))
def test_no_recorded_file_makes_it_fail(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("odd") / "cpuinfo"
    path.write_bytes(data)
    assert explain.explain(Request(cpuinfo=str(path))).features


def test_no_line_is_wider_than_a_terminal_of_eighty_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    explanation = explain.explain(Request(cpu="sapphirerapids", compiler="gcc-10"))
    lines = terminal.lines(partial(explain.show, explanation), monkeypatch)
    assert max(map(len, lines)) <= 80
    assert not any("…" in line for line in lines)  # nothing is cut off


def test_every_compiler_carries_all_that_it_does_not_drop() -> None:
    for compiler in COMPILERS:
        requested = isa.resolve("sapphirerapids,exact", arch="x86_64")
        dropped = {item.feature for item in compilers.flags(requested, compiler).dropped}
        request = Request(cpu="sapphirerapids,exact", platform="linux/amd64", compiler=compiler, release="2.20.0")
        by_name = rows(explain.explain(request))
        assert {name for name, row in by_name.items() if row.kept} == set(requested.features) - dropped
        assert all(row.flag.removeprefix("with ").startswith("-m") for row in by_name.values() if row.kept)


def printed(request: Request) -> list[str]:
    stream = io.StringIO()
    explain.show(explain.explain(request), stream)
    return stream.getvalue().splitlines()


def cells(line: str) -> list[str]:
    return re.split(r"  +", line.strip())


AMD64 = Request(release="2.14.0", platform="linux/amd64")


def test_the_table_begins_with_what_it_is_about() -> None:
    lines = printed(replace(AMD64, cpu="x86-64-v3,amx_tile,rdseed", compiler="gcc-12"))
    assert [cells(line) for line in lines[:10]] == [
        ["CPU", "x86-64-v3-rdseed-amx_tile"],
        ["platform", "linux/amd64"],
        ["compiled for", "x86-64-v3-amx_tile"],
        ["compiler", "gcc-12"],
        ["release", "2.14.0"],
        ["Python", "3.11"],
        ["copts", "--copt=-march=x86-64-v3 --copt=-mamx-tile"],
        [""],
        ["x86-64-v2: all in the CPU"],
        ["feature", "CPU", "flag, or why none", "used by"],
    ]
    assert sum(line.startswith("feature ") for line in lines) == 1, "one head for all sections"
    rows_ = {cells(line)[0]: cells(line)[1:] for line in lines if len(cells(line)) == 4}
    assert rows_["avx2"] == ["yes", "-march=x86-64-v3", "Eigen oneDNN XNNPACK guard"]
    assert rows_["bmi2"] == ["yes", "-march=x86-64-v3", "unknown"]
    assert rows_["rdseed"] == ["yes", "never a flag: reached by intrinsics alone", "unknown"]
    assert rows_["gfni"] == ["no", "not in this CPU", "XNNPACK"]
    assert rows_["amx_tile"] == ["yes", "-mamx-tile", "oneDNN guard"]
    assert "x86-64-v4: the CPU lacks avx512f, avx512cd, avx512bw, avx512dq, avx512vl" in lines
    assert "in no level" in lines
    assert lines[-1].startswith(
        "Eigen: code chosen by the flags. oneDNN, XNNPACK: chosen at run time, whatever the flags. guard: named in "
    )


def test_what_is_not_known_is_said_so() -> None:
    request = replace(AMD64, cpu="x86-64-v3", compiler="icc")
    lines = printed(request)
    assert [cells(line) for line in lines[2:7]] == [
        ["compiled for", "x86-64-v3"], ["compiler", "not known"], ["release", "2.14.0"], ["Python", "3.11"],
        ["copts", "not known"],
    ]  # fmt: skip
    assert ["sse3", "yes", "-msse3: known from gcc 7, clang 9 on", "Eigen guard"] in map(cells, lines)
    document = explain.explain(request).to_json()
    assert {name: value for name, value in document.items() if name not in ("features", "notes")} == {
        "platform": "linux/amd64", "cpu": "x86-64-v3", "instruction_set": "x86-64-v3", "level": "x86-64-v3",
        "compiler": None, "release": "2.14.0", "python": "3.11", "copts": (),
    }  # fmt: skip
    nobody = printed(Request(cpuinfo="/nowhere", release="none", platform="linux/amd64"))
    assert [cells(line)[-1] for line in (nobody[0], nobody[2], nobody[4], nobody[5])] == ["not known"] * 4
    assert any(re.fullmatch(r"avx2 +unknown -mavx2 +Eigen oneDNN XNNPACK", line.rstrip()) for line in nobody)


def test_a_row_has_the_colour_of_what_became_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    stream = terminal.Terminal()
    explain.show(explain.explain(replace(AMD64, cpu="x86-64-v3,rdseed", compiler="gcc-12")), stream)
    text = stream.getvalue()
    for code, name in (("32", "avx2"), ("33", "rdseed"), ("2", "gfni")):
        assert f"\x1b[{code}m{name}" in text


def test_arm_s_flags_are_parts_of_one() -> None:
    by_name = rows(explain.explain(Request(cpu="neoverse-v1,exact", compiler="gcc-12", release="2.14.0")))
    assert by_name["asimd"].flag == "-march=armv8.2-a"
    assert by_name["sve"].flag == "+sve"
    assert by_name["fphp"].flag.startswith("with +")
    assert by_name["sve2"].reason == "not in this CPU"


def test_a_list_of_features_asks_for_what_it_names() -> None:
    by_name = rows(explain.explain(Request(cpu="x86-64-v4", compiler="gcc-12", release="2.21.0")))
    assert by_name["avx512_vnni"].kept is False
    assert (by_name["avx512_vnni"].cpu, by_name["avx512_vnni"].reason) == ("no", "not in this CPU")
    assert by_name["rdseed"].cpu == "not known", "a level names only features with flags"
