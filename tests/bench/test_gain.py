"""What was measured of compiles: every number is a report's, and a CPU gets what was measured of code that it runs."""

import json
import re
from dataclasses import replace
from typing import Any

from benchmarks.harness import RESULTS
from tests.cpu.machines import machine
from tests.rows import each
from tfbuild import cpu as cpus
from tfbuild import facts
from tfbuild.bench import gain
from tfbuild.bench.gain import Gain
from tfbuild.cpu import isa
from tfbuild.facts.release_table import table

Measured = tuple[str, str, str, str, list[dict[str, Any]]]


def of_benchmark(report: dict[str, Any], _: str) -> Measured:
    """Return release, baseline, instruction set, date and cases of a report of `bench --only isa`."""
    experiment = next(experiment for experiment in report["experiments"] if experiment["name"] == "isa")
    image = report["image"]
    labels = image["labels"]
    cases = [{**case["arms"][1], "name": case["name"]} for case in experiment["cases"] if not case["noisy"]]
    return (
        labels["io.tfbuild.release"],
        image["against"],
        labels["io.tfbuild.instruction-set"],
        report["created"],
        cases,
    )


def of_compiled_wheels(report: dict[str, Any], instruction_set: str) -> Measured:
    """Return the same of the record of compiled wheels, for one of its sets."""
    build = next(build for build in report["results"]["builds"] if build["instruction_set"] == instruction_set)
    gains = build["gains"]
    return build["release"], gains["against"], build["instruction_set"], gains["created"], gains["cases"]


@each("row", [row for row in gain.measured_gains() if row.report])
def test_every_number_is_its_report_s(row: Gain) -> None:
    report = json.loads((RESULTS / f"{row.report}.json").read_text())
    read = of_compiled_wheels if row.report.startswith("compiled") else of_benchmark
    release, baseline, instruction_set, created, cases = read(report, row.cpu)
    assert (row.cpu, row.machine[-10:]) == (instruction_set, created[:10])
    assert release in row.wheel
    assert row.over.endswith(f" of {baseline.partition(':')[2].partition('-')[0]}")
    assert "the same" not in row.summary, "no difference shown is not equality: some of these intervals exclude 1"
    listed = {"faster": row.faster, "slower": row.slower, "no difference shown": row.equal}
    assert sorted((effect, one.name, one.ratio) for effect, rows in listed.items() for one in rows) == sorted(
        (case["effect"], case["name"], tuple(float(f"{case['cpu'][end]:.3g}") for end in ("median", "low", "high")))
        for case in cases
    )


@each(
    "name, largest",
    [
        ("rhel7-haswell", "x86-64-v3"),
        ("rocky9-zen5", "x86-64-v4-vnni-bf16"),
        ("amazon-neoverse_n1", None),
        ("rhel6-piledriver", None),
    ],
)
def test_a_cpu_gets_what_was_measured_of_the_largest_set_that_it_runs(name: str, largest: str | None) -> None:
    report = gain.gain(cpus.parse(machine(name).cpuinfo())).report
    assert (report and report.cpu) == largest


def test_what_the_official_wheel_is_compiled_for_is_no_gain() -> None:
    compiled = isa.resolve("x86-64-v4-vnni-bf16", arch="x86_64")
    names = {
        release: [row.name for row in measured.faster]
        for release in ("2.20.0", "2.21.0")
        if (measured := gain.measured_operations(compiled, release))
    }
    assert set(names["2.20.0"]) - set(names["2.21.0"]) == {"cast to float16, 1 Mi"}


HOST = cpus.parse(machine("rocky9-zen5").cpuinfo())


@each(
    "name, lacks, runs",
    [
        ("Xeon X5650", ("avx", "f16c"), "a build from source for it: invoke build --cpu x86-64-v2"),
        ("Xeon E5-2690", ("f16c",), "official wheels up to 2.20.0, or a build from source for it: invoke build"),
        ("Opteron 6212", ("f16c",), "official wheels up to 2.20.0, or a build from source for it: invoke build"),
        ("haswell", (), ""),
    ],
)
def test_where_the_official_wheel_dies_is_said_what_runs(name: str, lacks: tuple[str, ...], runs: str) -> None:
    cpu = gain.named(name, HOST)
    title, text = gain.official_wheel_here(cpu)
    assert (gain.lacks_for_official_wheel(cpu), title) == (lacks, "crashes" if lacks else "unused")
    ends = f"for lack of {' '.join(lacks)}; what runs: {runs}" if lacks else "(by the official wheel of 2.21.0)"
    assert ends in text
    assert ("this virtual machine" in gain.official_wheel_here(replace(cpu, virtual=True))[1]) == bool(lacks)
    answer = gain.gain(cpu)
    assert (answer.cpu, answer.release, answer.lacks, answer.wheel) == (name, "2.21.0", lacks, "f16c")
    assert (text in answer.answer) == bool(lacks)
    assert bool(answer.operations) == (answer.report is not None) == (not lacks)


def test_what_the_wheel_leaves_unused_is_not_known_where_its_guard_says_nothing() -> None:
    for name, host in (("graviton3", HOST), ("host", cpus.parse(machine("amazon-neoverse_n1").cpuinfo()))):
        assert gain.official_wheel_here(gain.named(name, host))[1].startswith("not known ")


@each(
    "name, others, used",
    [
        ("", ["bfloat16", "conda-forge", "zentf"], "use AVX2 AVX512F AVX512_VNNI AVX512_BF16 FMA, which"),
        ("host", ["bfloat16", "conda-forge", "zentf"], "use AVX2 AVX512F AVX512_VNNI AVX512_BF16 FMA, which"),
        ("sapphirerapids", ["bfloat16", "conda-forge"], "use AVX2 AVX512F AVX512_VNNI AVX512_BF16 FMA, which"),
        ("haswell", ["oneDNN", "conda-forge"], "use AVX2 FMA, which the official wheel leaves unused. Measured for 2."),
        ("avx,f16c", ["oneDNN"], "the official wheel already uses everything that"),
        ("graviton3", [], "is not known: nothing was measured on aarch64."),
    ],
)
def test_a_cpu_gets_what_a_compile_would_use_and_what_else_there_is(name: str, others: list[str], used: str) -> None:
    """What a plan drops (float16 in 2.21) or only libraries use (AMX) is not named."""
    answer = gain.gain(gain.named(name, HOST) if name else HOST)
    assert [row.name for row in answer.others] == others
    assert used in answer.answer


def test_each_operation_has_its_effect() -> None:
    shown = gain.gain(HOST).operations
    assert ("exp, 1 Mi", "1.53 [1.51, 1.55]", "faster") in shown
    assert {effect for *_, effect in shown} == {"faster", "no difference shown"}
    intel = gain.gain(gain.named("Xeon Gold 6148", HOST))
    assert ("sum of rows, 1 Mi", "0.92 [0.91, 0.93]", "slower") in intel.operations


def test_onednn_is_named_where_tensorflow_leaves_it_off_with_what_its_report_has() -> None:
    (row,) = [row for row in facts.rows("alternatives", gain.Alternative) if row.name == "oneDNN"]
    assert {*row.without} == {name.lower() for name in table().onednn[0].on_with}
    report = json.loads((RESULTS / f"{row.report}.json").read_text())
    cases = [case for case in report["experiments"][0]["cases"] if case["arms"][1]["name"] == "oneDNN on"]
    ratios = [f"{case['arms'][1]['cpu']['median']:.2f}" for case in cases]
    assert re.findall(r"(?<![\d.])\d\.\d\d(?![\d.])", row.measured) == ratios
    assert "amx_tile" in report["host"]["flags"]


def test_what_is_said_of_bfloat16_is_in_its_report() -> None:
    (row,) = [row for row in facts.rows("alternatives", gain.Alternative) if row.name == "bfloat16"]
    report = json.loads((RESULTS / f"{row.report}.json").read_text())
    arms = [arm for case in report["experiments"][0]["cases"] for arm in case["arms"][1:]]
    known = {f"{arm['cpu']['median']:.2f}" for arm in arms}
    manual = (RESULTS.parents[1] / "docs" / "choose.md").read_text().partition("### What needs no compile")[2]
    for text in (row.measured, manual.partition("```")[0]):
        assert {*re.findall(r"(?<![\d.])\d\.\d\d(?![\d.])", text)} <= known
        assert f"up to {100 * max(arm['error'] for arm in arms):.1f} %" in text


def test_what_was_measured_has_one_speed_and_more_features_never_count_for_less() -> None:
    speeds = [
        gain.relative_speed(frozenset(isa.resolve(row.cpu, arch="x86_64").features), "x86_64")
        for row in gain.measured_gains()
    ]
    assert speeds == sorted(filter(None, speeds), reverse=True), "the largest set is the first"
    assert gain.relative_speed(frozenset({"asimd", "sve"}), "aarch64") is None
    for row in gain.measured_gains():
        assert bool(row.speed) != bool(row.report), row.cpu
