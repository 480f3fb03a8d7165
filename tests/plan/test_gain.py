"""Whether a build is worth it: only numbers of committed reports, and none for a CPU that does not run the code."""

import json
from pathlib import Path

from tests.cpu.machines import machine
from tests.rows import each
from tfbuild import cpu
from tfbuild.plan import gain
from tfbuild.plan.gain import ReportRow

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


@each("row", gain.table().report)
def test_every_number_is_its_report_s(row: ReportRow) -> None:
    report = json.loads((RESULTS / f"{row.file}.json").read_text())
    cases = [
        case for experiment in report["experiments"] if experiment["name"] == row.file for case in experiment["cases"]
    ]
    timed = {case["name"]: case["arms"][1]["cpu"] for case in cases if not case["noisy"]}
    rows = {one.name: one.ratio for one in gain.table().operation if one.report == row.file}
    assert rows == {name: (one["median"], one["low"], one["high"]) for name, one in timed.items()}
    assert report["image"]["labels"]["io.tfbuild.release"] == row.release
    assert report["image"]["labels"]["io.tfbuild.instruction-set"] == row.cpu
    assert report["created"][:10] in row.machine


def test_a_cpu_that_runs_the_measured_code_gets_what_gains_and_what_loses() -> None:
    answer = gain.gain(cpu.parse(machine("rocky9-zen5").cpuinfo()))
    assert answer.report is not None
    assert answer.faster[0].name == "cast to float16, 1 Mi"
    assert "softmax, 1 Mi" in [row.name for row in answer.slower]
    assert "matmul 768x768" in [row.name for row in answer.equal]
    assert len(answer.faster) + len(answer.slower) + len(answer.equal) == len(gain.table().operation)


@each("name", ["rhel7-haswell", "amazon-neoverse_n1", "rhel6-piledriver"])
def test_a_cpu_that_does_not_run_it_gets_no_number(name: str) -> None:
    answer = gain.gain(cpu.parse(machine(name).cpuinfo()))
    assert answer.report is None
    assert (*answer.faster, *answer.slower, *answer.equal) == ()
