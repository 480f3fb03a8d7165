"""Results of cases that could not be measured, or not to their end. Nothing is started here."""

import random
from dataclasses import replace
from typing import cast

import pytest

from tests.measure.test_evaluate import MACHINE as MACHINE
from tests.measure.test_evaluate import made_up
from tfbuild.in_container.bench.worker import Ready
from tfbuild.measure import rounds
from tfbuild.measure.evaluate import BASE_AGAIN
from tfbuild.measure.experiments import Arm, Case, Experiment, Need
from tfbuild.measure.rounds import CaseRun, RoundLimits
from tfbuild.measure.workers import Key, Machine, Pool, Side


def comparison(*, needs: Need = "", same: bool = False, machine: Machine = MACHINE, **env: str) -> CaseRun:
    case = Case(name="c", workload="w", needs=needs, arm=(Arm(name="baseline"), Arm(name="arm", env=env)))
    row = Experiment(name="x", question="-", compares="-", changes="-", source="-", same=same, case=(case,))
    return CaseRun(row=row, case=case, machine=machine, pool=cast(Pool, None), tell=lambda _: None)


def sides(*values: float) -> list[Side]:
    key = Key(image="sha256:1")
    return [
        Side(name=name, arm=Arm(name=name), key=key, params={}, workload="w", ready=Ready(value=value))
        for name, value in zip(("baseline", "arm", BASE_AGAIN), values, strict=True)
    ]


def test_where_no_other_arm_can_run_the_case_is_skipped_with_its_reason() -> None:
    run = comparison()
    run.sides = sides(1, 1, 1)
    run.sides[1].give_up("skipped", "this release has no such operation")
    assert not run.comparable()
    result = run.result()
    assert (result.status, result.reason) == ("skipped", "this release has no such operation")
    assert [arm.status for arm in result.arms] == ["skipped", "skipped"]
    assert [arm for arm in result.arms if not (arm.seconds is None and not arm.effect)] == []


@pytest.mark.parametrize(
    ("value", "same"), [(1.0, True), (1.001, True), (0.9985, True), (1.003, False), (1.01, False), (-1.0, False)]
)
def test_arms_that_claim_the_same_are_held_to_it(value: float, same: bool) -> None:
    run = comparison(same=True)
    run.sides, run.rounds = sides(1.0, value, 1.0), made_up(0.5, 9)
    assert run.result().arms[1].same is same
    run = comparison()
    run.sides, run.rounds = sides(1.0, value, 1.0), made_up(0.5, 9)
    assert run.result().arms[1].same is None, "nobody claims it"


@pytest.mark.parametrize(
    ("needs", "reason"), [("gpu", "sees no GPU"), ("against", "--against IMAGE"), ("tuning", "sets none of LD_PRELOAD")]
)
def test_what_is_not_here_is_said_before_anything_starts(needs: Need, reason: str) -> None:
    run = comparison(needs=needs, LD_PRELOAD="", N="1")
    rounds.prepare([run], 0)
    rounds.run([run], RoundLimits(rounds=7, end=0, latest=0), random.Random(1))
    result = run.result()
    assert result.status == "skipped"
    assert reason in result.reason


def test_an_image_that_sets_a_variable_can_be_measured_without_it() -> None:
    machine = replace(MACHINE, sets=frozenset({"LD_PRELOAD"}))
    run = comparison(needs="tuning", machine=machine, LD_PRELOAD="", TF_ENABLE_ONEDNN_OPTS="")
    assert not machine.lacks(run.row, run.case)
    assert [dict(side.key.env) for side in run.sides] == [{}, {"LD_PRELOAD": "", "TF_ENABLE_ONEDNN_OPTS": ""}, {}]
    assert run.sides[0].key != run.sides[2].key, "the baseline again is a process of its own"
