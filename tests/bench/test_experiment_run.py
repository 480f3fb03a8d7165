"""What an experiment says of its cases. Nothing is started."""

import io
import random
from types import SimpleNamespace
from typing import cast

import pytest

from tests import clock
from tests.measure.test_evaluate import made_up
from tests.measure.test_rounds import MACHINE, sides
from tfbuild.bench import session
from tfbuild.bench.session import ExperimentRun, Session, Settings
from tfbuild.engine import Engine
from tfbuild.measure import rounds
from tfbuild.measure.experiments import Arm, Case, Experiment, Need
from tfbuild.measure.records import CaseResult
from tfbuild.measure.rounds import CaseRun, RoundLimits
from tfbuild.measure.workers import Pool
from tfbuild.util.progress import Progress


def row(need: Need = "") -> Experiment:
    case = Case(name="case", workload="w", needs=need, arm=(Arm(name="baseline"), Arm(name="arm")))
    return Experiment(name="x", question="-", compares="-", changes="-", source="-", case=(case,))


def measured(count: int, *, truncated: bool = False) -> CaseResult:
    """Return the result of a case with so many rounds."""
    run = CaseRun(row=row(), case=row().case[0], machine=MACHINE, pool=cast(Pool, None), tell=lambda _: None)
    run.sides, run.rounds, run.truncated = sides(1, 1, 1), made_up(0.5, count), truncated
    return run.result()


def not_begun(need: Need) -> CaseResult:
    return session._not_begun(row(need), row(need).case[0], MACHINE)


def test_an_experiment_has_the_best_status_of_its_cases() -> None:
    lacking, cut, whole = not_begun("gpu"), measured(8, truncated=True), measured(15)
    for cases, status in (
        ([lacking, whole], "measured"),
        ([lacking, cut], "truncated"),
        ([cut, whole], "truncated"),
        ([lacking], "skipped"),
        ([lacking, not_begun("")], "truncated"),
        ([lacking, measured(2, truncated=True)], "truncated"),
    ):
        assert ExperimentRun(row(), cases=cases).result().status == status
    result = ExperimentRun(row(), cases=[lacking, not_begun("")]).result()
    assert "GPU" not in result.reason, "more time would help"


def test_what_is_measured_is_shown_with_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = clock.stop(monkeypatch, rounds, session)
    settings, end = Settings(mode="budget", budget=60), stopped.now + 45
    run = Session(cast(Engine, None), settings, MACHINE, Progress(io.StringIO()), lambda: None, end)
    monkeypatch.setattr(rounds, "prepare", lambda runs, _: runs[0].tell("busy"))
    monkeypatch.setattr(rounds, "run", lambda *_: None)
    pool = cast(Pool, SimpleNamespace(forget=lambda: None))
    with run.progress.step("x") as step:
        limits = RoundLimits(rounds=0, end=end, latest=end)
        run._measure(ExperimentRun(row()), row().case, pool, limits, random.Random(0), step)
    assert step.detail == "45.0 s left: busy"
