"""Cases that take turns have one mean; cases that do not share their rounds have none."""

from dataclasses import replace
from typing import cast

import pytest

from tests.measure.test_evaluate import made_up
from tfbuild.in_container.bench.worker import Ready
from tfbuild.measure import evaluate
from tfbuild.measure.experiments import Arm, Case, Experiment
from tfbuild.measure.records import CaseResult
from tfbuild.measure.rounds import CaseRun
from tfbuild.measure.workers import Machine, Pool

MACHINE = Machine(image="sha256:1", against="", cpus=2, gpus=0)
ARMS = (Arm(name="baseline"), Arm(name="arm", process="other"))


def case(
    factor: float, count: int = 9, *, seed: int = 1, items: int = 1, base: int = 1, foreign: float = 0.0
) -> CaseResult:
    """Return a case whose arm takes `factor` of the baseline's time for a call of `items`, the baseline of `base`."""
    one = Case(name=f"{factor:g}", workload="w", arm=ARMS)
    row = Experiment(name="x", question="-", compares="-", changes="-", source="-", case=(one,))
    run = CaseRun(row=row, case=one, machine=MACHINE, pool=cast(Pool, None), tell=lambda _: None)
    run.sides[0].ready = Ready(items=base)
    run.sides[1].ready = Ready(items=items)
    run.rounds = made_up(factor, count, seed=seed, foreign=foreign)
    return run.result()


def test_the_mean_is_the_geometric_one_of_each_round() -> None:
    mean = evaluate.mean([case(0.5), case(2.0, seed=2), case(0.25, seed=3)], "arm")
    assert mean is not None
    assert mean.cpu.median == pytest.approx(4 ** (1 / 3), rel=0.02)
    assert (mean.effect, mean.rounds, mean.clean) == ("faster", 9, 9)
    assert mean.band.median == pytest.approx(1.0, rel=0.02)


def test_an_arm_has_its_median_of_the_time_of_an_item_once_there_are_enough_rounds() -> None:
    baseline, arm = case(0.5, items=4, base=2).arms[:2]
    assert baseline.seconds is not None
    assert arm.seconds is not None
    assert 0.05 < baseline.seconds < 0.075, "made_up() takes 0.1 to 0.15 for a call of both items"
    assert arm.seconds / baseline.seconds == pytest.approx(0.25, rel=0.02)
    assert [one.seconds for one in case(0.5, 1).arms] == [None, None]


def test_items_count() -> None:
    mean = evaluate.mean([case(1.0, items=4), case(1.0, items=4, seed=2)], "arm")
    assert mean is not None
    assert mean.cpu.median == pytest.approx(4.0, rel=0.02)
    both = [case(1.0, items=4, base=2), case(1.0, items=4, base=2, seed=2)]
    assert evaluate.findings(both)[0].values["cpu"] == pytest.approx(2.0, rel=0.02)


def test_cases_without_the_same_rounds_have_no_mean() -> None:
    assert evaluate.mean([case(0.5), case(0.5, 8)], "arm") is None
    assert evaluate.mean([case(0.5, 1), case(0.5, 1)], "arm") is None
    assert evaluate.mean([case(0.5), case(0.5)], "another arm") is None
    assert evaluate.mean([], "arm") is None
    lost = case(0.5)
    for row in lost.rounds:
        row.samples.pop("arm")
    assert evaluate.mean([case(0.5), lost], "arm") is None
    assert evaluate.findings([]) == ()


@pytest.mark.parametrize(("metric", "effect", "ratio"), [("cpu", "slower", "x0."), ("wall", "faster", "x2.0")])
def test_a_mean_is_judged_by_what_its_cases_are_timed_by(metric: str, effect: str, ratio: str) -> None:
    """An arm may need twice the CPU time and half the time by the clock, as more threads do."""

    def parallel(seed: int) -> CaseResult:
        one = case(2.0, seed=seed)
        rounds = tuple(
            replace(row, samples={**row.samples, "arm": replace(row.samples["arm"], wall=row.samples["arm"].wall / 4)})
            for row in one.rounds
        )
        return replace(one, rounds=rounds, metric=metric)

    cases = [parallel(1), parallel(2)]
    mean = evaluate.mean(cases, "arm")
    assert mean is not None
    assert mean.effect == effect
    (finding,) = evaluate.findings(cases)
    assert f"arm: {effect}, {ratio}" in finding.text
    assert finding.values["cpu"] == pytest.approx(0.5, rel=0.05)
    assert finding.values["wall"] == pytest.approx(2.0, rel=0.05)
