"""Each check is one file and one line of the list; a check that does not apply is skipped with a reason."""

import pkgutil
from dataclasses import replace
from typing import cast

import pytest

from tests.context.test_planned import planned
from tests.verify.test_judge import ENVIRONMENT
from tfbuild.context.planned import Planned
from tfbuild.engine import Engine
from tfbuild.in_container.smoke import judge
from tfbuild.measure.probe import Outcome
from tfbuild.verify import checks
from tfbuild.verify.checks import CHECKS
from tfbuild.verify.records import Check
from tfbuild.verify.verification import NO_START, Baseline, Start, Verification

STARTED = Start(outcome=Outcome(records=(ENVIRONMENT,), ended=judge.Ended(0, ""), output=""))
BASELINE = Baseline(ref="tfbuild:plain", env={})


def verification(
    plan: Planned, *failed: str, start: Start = STARTED, baseline: Baseline | str = BASELINE
) -> Verification:
    failures = [
        Check(name=name, status=judge.FAIL, detail="", seconds=0.0, measures=(), proves="", how="", fix="")
        for name in failed
    ]
    return Verification(
        engine=cast(Engine, None), ref="x", planned=plan, baseline=baseline, checks=failures, start=start
    )


def skipped(state: Verification) -> dict[str, str]:
    """Return why checks are skipped, by name and in their order."""
    return {check.name: why for check in CHECKS if (why := check.skip(state))}


def test_every_file_of_checks_is_in_the_list() -> None:
    files = {module.name for module in pkgutil.iter_modules(checks.__path__)}
    assert files <= vars(checks).keys(), "a check that nobody imports never runs"
    assert [vars(checks)[name].CHECK in CHECKS for name in files] == [True] * len(CHECKS)


def test_checks_run_after_those_whose_results_they_use() -> None:
    names = [check.name for check in CHECKS]
    assert names == ["guard", "import", "isa", "code", "onednn", "tcmalloc", "cuda", "numerics", "throughput"]
    assert all(check.claim.proves and check.claim.how and check.claim.fix for check in CHECKS)


def test_only_checks_of_other_targets_are_skipped_for_an_image_that_starts() -> None:
    assert skipped(verification(planned())) == {"cuda": "target mkl"}
    assert skipped(verification(replace(planned(), target="cuda"))) == {
        "onednn": "target cuda promises nothing about oneDNN"
    }


def test_without_a_start_only_checks_without_tensorflow_run() -> None:
    plan = planned()
    broken = Verification(engine=cast(Engine, None), ref="x", planned=plan, baseline=BASELINE)
    assert set(skipped(broken)) == {"onednn", "tcmalloc", "cuda", "numerics", "throughput"}
    guarded = skipped(replace(broken, checks=verification(plan, "guard").checks))
    assert set(guarded) == {"import", "onednn", "tcmalloc", "cuda", "numerics", "throughput"}
    assert set(guarded.values()) == {NO_START}


def test_no_start_is_the_reason_rather_than_the_target() -> None:
    start = replace(STARTED, why="TensorFlow does not import (see import)")
    reasons = skipped(verification(planned(), start=start))
    assert set(reasons) == {"onednn", "tcmalloc", "cuda", "numerics", "throughput"}
    assert set(reasons.values()) == {start.why}


def test_the_guard_of_tensorflow_is_read_only_on_x86_64() -> None:
    assert skipped(verification(replace(planned(), arch="aarch64")))["isa"] == (
        "TensorFlow's guard knows no feature of aarch64"
    )


@pytest.mark.parametrize(
    ("failed", "baseline", "why"),
    [
        ((), BASELINE, ""),
        ((), "not requested", "not requested"),
        (("numerics",), BASELINE, ""),
        (("onednn",), BASELINE, "oneDNN is not what was planned (see onednn), and a time would only show the same"),
    ],
)
def test_throughput_is_measured_only_if_it_can_show_something(
    failed: tuple[str, ...], baseline: Baseline | str, why: str
) -> None:
    assert skipped(verification(planned(), *failed, baseline=baseline)).get("throughput", "") == why
