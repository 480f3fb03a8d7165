"""The benchmark on a real image: planted effects are found, planted mistakes refused; Ctrl-C loses nothing."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest

from tests.engine.conftest import ROOT
from tfbuild.bench import report as reporting
from tfbuild.bench import session
from tfbuild.bench.experiments import Arm, Case, Experiment, Value
from tfbuild.bench.results import CaseResult
from tfbuild.bench.session import Settings
from tfbuild.bench.workers import FOLDER
from tfbuild.engine import Engine
from tfbuild.engine.progress import Progress

pytestmark = pytest.mark.engine
# Enough for all rounds on a busy machine; a quiet one needs a fifth of it.
SECONDS = 420
WIDE = 0.05
PLANTED = {
    f"{FOLDER}/benches/workloads/planted.py": (ROOT / "tests" / "data" / "bench" / "planted.py").read_bytes(),
}


def row(name: str, *cases: Case, metric: str = "cpu", weight: float) -> Experiment:
    return Experiment(
        name=name, question="-", compares="-", changes="-", source="-", metric=metric, weight=weight, case=cases
    )


def against_plain(name: str, workload: str = "", size: int = 128, **params: Value) -> Case:
    both: dict[str, Value] = {"size": size} if workload else {}
    planted = Arm(name=name, workload=workload or name, params={**both, **params})
    return Case(name=name, arm=(Arm(name="plain", workload="plain", params=both), planted))


EXACT = Case(
    name="exact",
    workload="exact",
    arm=(Arm(name="plain", params={"seconds": 0.010}), Arm(name="a tenth more", params={"seconds": 0.011})),
)
MISTAKES = ("retraced", "constant", "kept", "unfit", "dying", "missing", "cold")
ROWS = (
    row("mistakes", *map(against_plain, MISTAKES), weight=5),
    row("effects", against_plain("busy", "delayed", how="busy"), EXACT, against_plain("nothing", "plain"), weight=10),
    # Large enough that a tenth of it is longer than the shortest sleep.
    row("sleep", against_plain("asleep", "delayed", size=1024, how="sleep"), metric="wall", weight=12),
)


@pytest.fixture(scope="module")
def found(engine: Engine, image: Callable[..., str]) -> dict[str, CaseResult]:
    """One run of all that is planted, by case."""
    report = session.bench(
        engine, image("2.21.0"), ROWS, Settings(mode="budget", budget=SECONDS, more=PLANTED), Progress()
    )
    jsonschema.validate(json.loads(reporting.to_json(report)), json.loads(reporting.SCHEMA_FILE.read_text()))
    assert reporting.from_json(reporting.to_json(report)) == report
    return {case.name: case for row in report.experiments for case in row.cases}


def told(case: CaseResult) -> str:
    """Status and reason of the planted arm."""
    return f"{case.arms[1].status}: {case.arms[1].reason}"


def test_a_tenth_more_cpu_time_is_found_whoever_else_runs(found: dict[str, CaseResult]) -> None:
    arm = found["exact"].arms[1]
    assert arm.effect == "slower", (arm, found["exact"].band)
    assert arm.cpu is not None
    assert arm.cpu.median == pytest.approx(1 / 1.1, abs=0.02)


@pytest.mark.parametrize("name", ["busy", "asleep"])
def test_a_tenth_more_is_found_where_the_machine_can_tell(found: dict[str, CaseResult], name: str) -> None:
    """Where the baseline differs from itself by as much, nobody can; then nothing must be claimed the wrong way."""
    case = found[name]
    assert case.band is not None
    able = case.band.high - case.band.low < WIDE
    assert case.arms[1].effect in (("slower",) if able else ("slower", "no difference shown")), case.arms[1]


def test_the_same_against_itself_shows_no_difference(found: dict[str, CaseResult]) -> None:
    case = found["nothing"]
    assert len(case.rounds) >= 6
    assert case.arms[1].effect == "no difference shown", (case.arms[1], case.band)
    assert all(sample.wall >= 0.1 for round in case.rounds for sample in round.samples.values())


@pytest.mark.parametrize(
    ("mistake", "status"),
    [
        ("retraced", "failed: retraced was traced"),
        ("constant", "failed: constant folding: MatMul"),
        ("kept", "failed: it used"),
        ("unfit", "skipped: AttributeError: "),
        ("dying", "failed: its process was lost"),
        ("missing", "skipped: no workload is called missing"),
    ],
)
def test_a_planted_mistake_is_refused(found: dict[str, CaseResult], mistake: str, status: str) -> None:
    assert told(found[mistake]).startswith(status)
    assert not found[mistake].rounds
    assert found[mistake].arms[1].effect == ""


def test_a_cold_start_is_not_timed(found: dict[str, CaseResult]) -> None:
    cold = found["cold"].arms[1]
    assert cold.cpu is not None
    assert cold.wall is not None
    assert cold.wall.median > 0.5, "its first calls take twenty to four hundred times as long"
    assert cold.first > 0.3


def test_an_image_without_tensorflow_is_refused(invoke: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = invoke("bench", "tfbuild-base:bookworm", "--quick", code=25)
    assert "has no TensorFlow that imports" in done.stderr


def test_ctrl_c_keeps_what_was_measured(image: Callable[..., str], tmp_path: Path) -> None:
    """One experiment is done and the next one has begun."""
    wanted = ("--only", "bottleneck", "--only", "all", "--budget", "10m", "--json")
    command = [sys.executable, "-m", "invoke", "--search-root", str(ROOT), "bench", image("2.21.0"), *wanted]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        told = next((line for line in process.stderr if line.startswith(("bench: all ...", "error"))), "")
        assert told == "bench: all ...\n", told
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    report = reporting.from_json(out)
    assert report.interrupted
    done, cut = report.experiments
    assert (done.name, cut.name, cut.status) == ("bottleneck", "all", "interrupted")
    assert all(len(case.rounds) >= 6 for case in done.cases)
    assert done.findings
    (written,) = (tmp_path / "reports").glob("bench-*.json")
    assert reporting.read(written) == report
