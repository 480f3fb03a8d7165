"""Each check is one file and one line of the list; where one does not apply, the report gets the reason."""

import pkgutil
from dataclasses import replace
from typing import cast

import pytest

from tests.test_verify_judge import ENVIRONMENT
from tests.test_verify_planned import planned
from tfbuild.context.planned import Planned
from tfbuild.engine import Engine
from tfbuild.in_container.smoke import judge
from tfbuild.measure.probe import Outcome
from tfbuild.verify import checks
from tfbuild.verify.checks import CHECKS
from tfbuild.verify.records import Check
from tfbuild.verify.verification import NO_START, Baseline, Start, Verification

STARTED = Start(outcome=Outcome(found=(ENVIRONMENT,), ended=judge.Ended(0, ""), output=""))
BASELINE = Baseline(ref="tfbuild:plain", env={})


def verification(
    plan: Planned, *failed: str, start: Start = STARTED, baseline: Baseline | str = BASELINE
) -> Verification:
    made = [
        Check(name=name, status=judge.FAIL, detail="", seconds=0.0, measures=(), proves="", how="", fix="")
        for name in failed
    ]
    return Verification(engine=cast(Engine, None), ref="x", planned=plan, baseline=baseline, checks=made, start=start)


def skipped(found: Verification) -> dict[str, str]:
    """By the checks' names, in their order, why those that do not apply are left out."""
    return {check.name: why for check in CHECKS if (why := check.skip(found))}


def test_every_file_of_checks_is_in_the_list() -> None:
    files = {module.name for module in pkgutil.iter_modules(checks.__path__)}
    assert files <= vars(checks).keys(), "a check that nobody imports never runs"
    assert [vars(checks)[name].CHECK in CHECKS for name in files] == [True] * len(CHECKS)


def test_checks_run_after_those_that_they_go_by() -> None:
    names = [check.name for check in CHECKS]
    assert names == ["guard", "import", "isa", "code", "onednn", "tcmalloc", "cuda", "numerics", "throughput"]
    assert all(check.claim.proves and check.claim.how and check.claim.fix for check in CHECKS)


def test_all_apply_to_an_image_that_starts_but_those_of_other_targets() -> None:
    assert skipped(verification(planned())) == {"cuda": "target mkl"}
    assert skipped(verification(replace(planned(), target="cuda"))) == {
        "onednn": "target cuda promises nothing about oneDNN"
    }


def test_without_a_start_only_what_needs_no_tensorflow_is_checked() -> None:
    plan = planned()
    broken = Verification(engine=cast(Engine, None), ref="x", planned=plan, baseline=BASELINE)
    assert set(skipped(broken)) == {"onednn", "tcmalloc", "cuda", "numerics", "throughput"}
    guarded = skipped(replace(broken, checks=verification(plan, "guard").checks))
    assert set(guarded) == {"import", "onednn", "tcmalloc", "cuda", "numerics", "throughput"}
    assert set(guarded.values()) == {NO_START}


def test_no_start_is_the_reason_rather_than_the_target() -> None:
    start = replace(STARTED, why="TensorFlow does not import (see import)")
    found = skipped(verification(planned(), start=start))
    assert set(found) == {"onednn", "tcmalloc", "cuda", "numerics", "throughput"}
    assert set(found.values()) == {start.why}


def test_the_guard_of_tensorflow_is_read_on_x86_64_alone() -> None:
    assert skipped(verification(replace(planned(), arch="aarch64")))["isa"] == (
        "TensorFlow's guard knows no feature of aarch64"
    )


@pytest.mark.parametrize(
    ("failed", "baseline", "why"),
    [
        ((), BASELINE, ""),
        ((), "not asked for", "not asked for"),
        (("numerics",), BASELINE, ""),
        (("onednn",), BASELINE, "oneDNN is not what was planned (see onednn), and a time would only say that again"),
    ],
)
def test_a_time_is_taken_where_it_says_something(failed: tuple[str, ...], baseline: Baseline | str, why: str) -> None:
    assert skipped(verification(planned(), *failed, baseline=baseline)).get("throughput", "") == why
