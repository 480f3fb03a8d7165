"""What features are worth: `copts --explain` has a row for each that agrees with the flags."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.cpu.machines import Machine, Recording, machine, machines, recording, recordings
from tests.rows import each
from tfbuild import facts
from tfbuild.cli import planning
from tfbuild.cpu import isa
from tfbuild.errors import TfbuildError

ARM = facts.levels("aarch64")[0].name
Printed = pytest.CaptureFixture[str]


def copts(capsys: Printed, cpu: str = "", **options: str) -> dict[str, Any]:
    """The verb's JSON, with the rows by their features."""
    given = {"cpuinfo": "", "platform": "", "release": "", "compiler": "", "prefer_vector_width": ""} | options
    planning.copts(cpu=cpu, explain=True, json=True, **given)
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document | {"rows": {row["feature"]: row for row in document["features"]}}


def row(capsys: Printed, feature: str, cpu: str = "", **options: str) -> dict[str, Any]:
    return dict(copts(capsys, cpu, **options)["rows"][feature])


def recorded(folder: Path, text: str) -> str:
    (folder / "cpuinfo").write_text(text, encoding="utf-8")
    return str(folder / "cpuinfo")


@each("machine_", machines())
@each("compiler", ["gcc-12", "clang-18"])
def test_every_feature_has_a_row_and_every_flag_is_in_one(
    machine_: Machine, compiler: str, tmp_path: Path, capsys: Printed
) -> None:
    path, platform = recorded(tmp_path, machine_.core()), isa.MACHINES[machine_.arch]
    answer = copts(capsys, cpuinfo=path, platform=platform, compiler=compiler)
    assert [*answer["rows"]] == [item.name for item in facts.features(machine_.arch)]
    kept = [item for item in answer["features"] if item["kept"]]
    carried = " ".join(item["flag"] for item in kept)
    own = {flag.split("=")[-1].split("+")[0] if "march" in flag else flag for flag in answer["copts"]}
    for flag in own - {"--copt=-mprefer-vector-width=512", "--copt=-mtune=haswell"}:
        # The smallest level has features on aarch64 only: on x86-64 nothing need come from it.
        assert flag.removeprefix("--copt=") in carried or flag == "x86-64", flag
    assert [item for item in answer["features"] if bool(item["reason"]) is item["kept"]] == []


@each("machine_", [row for row in recordings() if not row.refused])
def test_the_cpu_column_is_what_was_recorded(machine_: Recording, tmp_path: Path, capsys: Printed) -> None:
    path = recorded(tmp_path, machine_.text)
    answers = []
    for platform in isa.MACHINES.values():
        with suppress(TfbuildError):  # it is a machine of the other platform
            answers.append(copts(capsys, cpuinfo=path, platform=platform))
    assert answers
    for answer in answers:
        held = {item["feature"] for item in answer["features"] if item["cpu"] in ("yes", "masked")}
        assert held == set(machine_.features.split())


@each(
    "feature, cpu, options, expected",
    [
        ("avx2", "sapphirerapids", {}, ("yes", "x86-64-v3", "-march=x86-64-v4", "")),
        ("gfni", "sapphirerapids", {}, ("yes", "", "-mgfni", isa.NO_EFFECT)),
        ("avx_vnni", "sapphirerapids", {}, ("yes", "", "-mavxvnni", "avx512_vnni does the same")),
        ("fma4", "sapphirerapids", {}, ("no", "", "-mfma4", "not in this CPU")),
        ("rdseed", "x86-64-v3", {}, ("not known", "", "-mrdseed", "never a flag: only intrinsics use it")),
        ("asimd", "neoverse-v1,exact", {"platform": "linux/arm64"}, ("yes", ARM, "-march=armv8.2-a", "")),
        ("sve", "neoverse-v1,exact", {"platform": "linux/arm64"}, ("yes", "", "+sve", "")),
        ("amx_bf16", "sapphirerapids,exact", {"compiler": "gcc-10"},
         ("yes", "", "-mamx-bf16", "gcc-10 does not know -mamx-bf16 (gcc 11 does)")),
    ],
)  # fmt: skip
def test_a_row_says_level_flag_and_why_a_feature_is_left_out(
    feature: str, cpu: str, options: dict[str, str], expected: tuple[str, ...], capsys: Printed
) -> None:
    given = {"platform": "linux/amd64", "compiler": "gcc-12", "release": "2.20.0"} | options
    found = row(capsys, feature, cpu, **given)
    assert tuple(found[name] for name in ("cpu", "level", "flag", "reason")) == expected
    assert found["kept"] is (not expected[-1])


def test_masked_and_disputed_features_say_so(tmp_path: Path, capsys: Printed) -> None:
    guest = machine("kvm-zen5-guest")
    given = {"platform": "linux/amd64", "compiler": "gcc-12"}
    masked = row(capsys, "avx512f", cpuinfo=recorded(tmp_path, guest.core(without=("fma",))), **given)
    assert (masked["cpu"], masked["reason"]) == ("masked", "needs fma, which is masked")
    cores = f"{guest.core(0)}\n{guest.core(1, without=('avx512_vnni',))}"
    disputed = row(capsys, "avx512_vnni", cpuinfo=recorded(tmp_path, cores), **given)
    assert (disputed["cpu"], disputed["reason"][:21]) == ("no", "some cores lack it, a")


def test_cpuid_beside_the_kernels_list_tells_of_what_no_kernel_prints(tmp_path: Path, capsys: Printed) -> None:
    given, text = {"platform": "linux/amd64"}, recording("kvm-sapphirerapids-guest").text
    for ends in ("\n", "\r\n"):
        given["cpuinfo"] = recorded(tmp_path, text.replace("\n", ends))
        assert row(capsys, "avx_ifma", **given)["cpu"] == "no"
    given["cpuinfo"] = recorded(tmp_path, machine("unknown-sapphirerapids").cpuinfo())
    assert row(capsys, "avx_ifma", **given)["cpu"] == "not known"


def test_what_uses_a_feature(capsys: Printed) -> None:
    rows = copts(capsys, "x86-64-v4", release="2.21.0", platform="linux/amd64")["rows"]
    assert rows["avx2"]["used_by"] == ["Eigen", "oneDNN", "XNNPACK", "guard"]
    assert rows["avx_ne_convert"]["used_by"] == ["guard"]
    assert rows["bmi2"]["used_by"] == []
    older = row(capsys, "avx_ne_convert", "x86-64-v4", release="2.12.0", platform="linux/amd64")
    assert older["used_by"] == []  # its guard does not know it yet
    for use in isa.uses():
        assert use.source
        assert [name for name in use.features if not facts.feature(name)] == []
