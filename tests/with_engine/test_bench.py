"""The benchmark on a real image: planted effects are found, planted mistakes refused; Ctrl-C loses nothing."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.with_engine.conftest import ROOT
from tests.with_engine.test_engine import started_by, wait_until
from tfbuild.bench import evidence, session
from tfbuild.bench.session import Settings
from tfbuild.engine import Engine
from tfbuild.measure import evaluate, experiments
from tfbuild.measure.experiments import Arm, Case, Experiment, Metric
from tfbuild.measure.probe import FOLDER
from tfbuild.measure.records import CaseResult
from tfbuild.measure.workers import Machine, Pool
from tfbuild.util.progress import Progress

pytestmark = pytest.mark.engine
# Enough for all rounds on the busiest machine; a quiet one is done with them in a twentieth of it.
SECONDS = 1800
PLANTED = {f"{FOLDER}/bench/workloads/planted.py": (ROOT / "tests" / "data" / "bench" / "planted.py").read_bytes()}


def row(name: str, *cases: Case, metric: Metric = "cpu", weight: float) -> Experiment:
    return Experiment(
        name=name, question="-", compares="-", changes="-", source="-", metric=metric, weight=weight, case=cases
    )


def against_plain(name: str, workload: str) -> Case:
    return Case(name=name, arm=(Arm(name="plain", workload="plain"), Arm(name=name, workload=workload)))


EXACT = Case(
    name="exact",
    workload="exact",
    arm=(Arm(name="plain", params={"seconds": 0.010}), Arm(name="a tenth more", params={"seconds": 0.011})),
)
# What a planted mistake is answered with. One of each answer, and no more than each needs, is in the quick set.
REFUSED = {
    "constant": "failed: constant folding: MatMul",
    "dying": "failed: its process was lost",
    "missing": "skipped: KeyError: 'missing'",
}


def measured(engine: Engine, ref: str, rows: Sequence[Experiment], settings: Settings) -> dict[str, CaseResult]:
    """Run the planted experiments and return their cases by name."""
    report = session.bench(engine, ref, tuple(rows), settings, Progress(), engine.require_answer)
    return {case.name: case for row in report.experiments for case in row.cases}


@pytest.fixture(scope="module")
def mistakes(engine: Engine, image: Callable[..., str]) -> dict[str, CaseResult]:
    """What is refused is refused in any round: these need no quiet machine."""
    settings = Settings(mode="quick", budget=SECONDS, rounds=evaluate.FEWEST, more=PLANTED)
    cases = [against_plain(name, name) for name in REFUSED]
    return measured(engine, image("2.21.0"), [row("mistakes", *cases, weight=5)], settings)


@pytest.fixture(scope="module")
def effects(engine: Engine, image: Callable[..., str]) -> dict[str, CaseResult]:
    settings = Settings(mode="budget", budget=SECONDS, more=PLANTED)
    rows = [row("effects", EXACT, against_plain("nothing", "plain"), weight=10)]
    return measured(engine, image("2.21.0"), rows, settings)


@pytest.mark.nightly
@pytest.mark.alone
def test_a_tenth_more_cpu_time_is_found_whoever_else_runs(effects: dict[str, CaseResult]) -> None:
    arm = effects["exact"].arms[1]
    assert arm.effect == "slower", (arm, effects["exact"].band)
    assert arm.cpu is not None
    assert arm.cpu.median == pytest.approx(1 / 1.1, abs=0.02)


@pytest.mark.nightly
@pytest.mark.alone
def test_the_same_against_itself_shows_no_difference(effects: dict[str, CaseResult]) -> None:
    case = effects["nothing"]
    assert len(case.rounds) >= 6
    assert case.arms[1].effect == "no difference shown", (case.arms[1], case.band)
    assert [sample for round in case.rounds for sample in round.samples.values() if sample.wall < 0.1] == []


@pytest.mark.parametrize("mistake", REFUSED)
def test_a_planted_mistake_is_refused(mistakes: dict[str, CaseResult], mistake: str) -> None:
    case = mistakes[mistake]
    planted = case.arms[1]
    assert f"{planted.status}: {planted.reason}".startswith(REFUSED[mistake])
    assert (len(case.rounds), planted.effect) == (0, "")


def test_the_log_of_onednn_names_what_ran(engine: Engine, image: Callable[..., str]) -> None:
    (row,) = experiments.select_experiments(["onednn"], quick=True)
    here = Machine(image=engine.image(image("2.21.0")).id, against="", cpus=1, gpus=0)
    (finding,) = evidence.observe(row, row.case[:1], Pool(engine=engine), here, SECONDS)
    assert finding.values, finding.text


def test_signals_while_workers_are_made_end_it_and_leave_no_container(
    engine: Engine, image: Callable[..., str], tmp_path: Path
) -> None:
    """Threads wait for the workers then; the second signal comes during the clean-up."""
    ref = image("2.21.0")
    command = [sys.executable, "-m", "invoke", "--search-root", str(ROOT), "bench", ref, "--only", "tuning", "--quick"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "bench: tuning ...\n" in iter(process.stderr.readline, "")
        # The main one, that of the step's heartbeat, and one for each of the three workers.
        assert wait_until(lambda: len(os.listdir(f"/proc/{process.pid}/task")) >= 5, 300)
        assert wait_until(lambda: started_by(engine, process.pid), 60)
        for _ in range(3):
            time.sleep(0.2)
            process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert wait_until(lambda: not started_by(engine, process.pid))
