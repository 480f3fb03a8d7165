"""What the benchmark of verdicts on a busy machine counts as alike."""

import json
from pathlib import Path

from benchmarks.verdicts import Run, recorded, summary

PASSED = (("import", "pass"), ("throughput", "pass"))
SKIPPED = (("import", "pass"), ("throughput", "skip"))


def run(checks: tuple[tuple[str, str], ...], seconds: float, exit_code: int = 0) -> Run:
    return Run(exit_code=exit_code, checks=checks, seconds=seconds)


def test_a_run_with_another_status_or_exit_code_is_not_alike() -> None:
    found = summary(
        [run(PASSED, 60), run(SKIPPED, 80), run(PASSED, 70), run(PASSED, 90, exit_code=24), run(PASSED, 65)]
    )
    assert (found["runs"], found["alike"], found["exit_code"]) == (5, 3, 0)
    assert found["checks"] == {"import": "pass", "throughput": "pass"}
    assert found["others"] == ["exit code 0, 80 s, throughput: skip", "exit code 24, 90 s, every check passed"]
    assert found["seconds"] == {"median": 70, "low": 60, "high": 90}


def test_runs_that_differ_in_time_alone_are_alike() -> None:
    found = summary([run(PASSED, 60), run(PASSED, 600)])
    assert (found["runs"], found["alike"], found["others"]) == (2, 2, [])


def test_other_loads_of_the_same_image_stay_in_the_report(tmp_path: Path) -> None:
    report = tmp_path / "verdicts.json"
    assert recorded("sha256:0a", report) == {}
    report.write_text(json.dumps({"results": {"id": "sha256:0a", "loads": {"1 busy": {"runs": 20}}}}))
    assert recorded("sha256:0a", report) == {"1 busy": {"runs": 20}}
    assert recorded("sha256:0b", report) == {}
