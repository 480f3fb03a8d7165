"""Whether a build is worth it: only numbers of committed reports, and none for a CPU that does not run the code."""

import json
from pathlib import Path
from typing import Any

from tests.cpu.machines import machine
from tests.rows import each
from tfbuild import cpu
from tfbuild.cpu import isa
from tfbuild.plan import gain
from tfbuild.plan.gain import Gain

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


@each("row", [row for row in gain.rows() if row.report])
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
    answer = gain.gain(cpu.parse(machine(name).cpuinfo()))
    assert answer.report is not None
    assert answer.report.cpu == largest


@each("name", ["amazon-neoverse_n1", "rhel6-piledriver"])
def test_a_cpu_that_runs_no_measured_code_gets_no_number(name: str) -> None:
    assert gain.gain(cpu.parse(machine(name).cpuinfo())).report is None


def test_what_was_measured_has_one_speed_and_more_features_never_count_for_less() -> None:
    speeds = [
        gain.relative_speed(frozenset(isa.resolve(row.cpu, arch="x86_64").features), "x86_64") for row in gain.rows()
    ]
    assert speeds == sorted(filter(None, speeds), reverse=True), "the largest set is the first"
    assert gain.relative_speed(frozenset({"asimd", "sve"}), "aarch64") is None
    for row in gain.rows():
        assert bool(row.speed) != bool(row.report), row.cpu
