"""What features are worth: `copts --explain` has a row for each that agrees with the flags, `gain` what it gains."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cpu.machines import Machine, Recording, machine, machines, recording, recordings
from tests.rows import each
from tfbuild import cpu as cpus
from tfbuild import facts
from tfbuild.cli import planning
from tfbuild.cpu import isa
from tfbuild.errors import TfbuildError
from tfbuild.plan import gain
from tfbuild.plan.gain import Gain

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
        try:
            answers.append(copts(capsys, cpuinfo=path, platform=platform))
        except TfbuildError:
            continue  # it is a machine of the other platform, or below every level
    for answer in answers:
        held = {item["feature"] for item in answer["features"] if item["cpu"] in ("yes", "masked")}
        assert held == set(machine_.features.split())


@each(
    "feature, cpu, options, expected",
    [
        ("avx2", "sapphirerapids", {}, ("yes", "x86-64-v3", "-march=x86-64-v4", "")),
        ("gfni", "sapphirerapids", {}, ("yes", "", "-mgfni", isa.LEFT_OUT)),
        ("avx_vnni", "sapphirerapids", {}, ("yes", "", "-mavxvnni", "avx512_vnni does the same")),
        ("fma4", "sapphirerapids", {}, ("no", "", "-mfma4", "not in this CPU")),
        ("rdseed", "x86-64-v3", {}, ("not known", "", "-mrdseed", "never a flag: reached by intrinsics alone")),
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
    given = {"platform": "linux/amd64", "cpuinfo": recorded(tmp_path, recording("kvm-sapphirerapids-guest").text)}
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


# --- invoke gain ------------------------------------------------------------------------------------------------------

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
Measured = tuple[str, str, str, list[dict[str, Any]]]


def of_benchmark(report: dict[str, Any], _: str) -> Measured:
    """Return release, instruction set, date and cases of a report of `bench --only isa`."""
    experiment = next(experiment for experiment in report["experiments"] if experiment["name"] == "isa")
    labels = report["image"]["labels"]
    cases = [{**case["arms"][1], "name": case["name"]} for case in experiment["cases"] if not case["noisy"]]
    return labels["io.tfbuild.release"], labels["io.tfbuild.instruction-set"], report["created"], cases


def of_compiled_wheels(report: dict[str, Any], instruction_set: str) -> Measured:
    """Return the same of the record of compiled wheels, for one of its sets."""
    build = next(build for build in report["results"]["builds"] if build["instruction_set"] == instruction_set)
    return build["release"], build["instruction_set"], build["gains"]["created"], build["gains"]["cases"]


@each("row", [row for row in gain.measured_gains() if row.report])
def test_every_number_is_its_report_s(row: Gain) -> None:
    report = json.loads((RESULTS / f"{row.report}.json").read_text())
    read = of_compiled_wheels if row.report.startswith("compiled") else of_benchmark
    release, instruction_set, created, cases = read(report, row.cpu)
    assert (row.cpu, row.machine[-10:]) == (instruction_set, created[:10])
    assert release in row.wheel
    assert release in row.over
    listed = {"faster": row.faster, "slower": row.slower, "no difference shown": row.equal}
    assert sorted((effect, one.name, one.ratio) for effect, rows in listed.items() for one in rows) == sorted(
        (case["effect"], case["name"], tuple(float(f"{case['cpu'][end]:.3g}") for end in ("median", "low", "high")))
        for case in cases
    )


@each("name, largest", [("rhel7-haswell", "x86-64-v3"), ("rocky9-zen5", "x86-64-v4-vnni-bf16")])
def test_a_cpu_gets_what_was_measured_of_the_largest_set_that_it_runs(name: str, largest: str) -> None:
    answer = gain.gain(cpus.parse(machine(name).cpuinfo()))
    assert answer.report is not None
    assert answer.report.cpu == largest


@each("name", ["amazon-neoverse_n1", "rhel6-piledriver"])
def test_a_cpu_that_runs_no_measured_code_gets_no_number(name: str) -> None:
    assert gain.gain(cpus.parse(machine(name).cpuinfo())).report is None


def test_what_was_measured_has_one_speed_and_more_features_never_count_for_less() -> None:
    speeds = [
        gain.relative_speed(frozenset(isa.resolve(row.cpu, arch="x86_64").features), "x86_64")
        for row in gain.measured_gains()
    ]
    assert speeds == sorted(filter(None, speeds), reverse=True), "the largest set is the first"
    assert gain.relative_speed(frozenset({"asimd", "sve"}), "aarch64") is None
    for row in gain.measured_gains():
        assert bool(row.speed) != bool(row.report), row.cpu
