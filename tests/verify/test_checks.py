"""Each check is one file and one line of the list; a check that does not apply is skipped with a reason."""

import pkgutil
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from tests.context.test_planned import planned
from tests.verify.test_judge import ENVIRONMENT
from tfbuild.context.labels import Planned
from tfbuild.engine import Engine, Process, Sandbox
from tfbuild.in_container.smoke import judge
from tfbuild.in_container.smoke.challenge import Challenge
from tfbuild.measure.probe import Outcome
from tfbuild.verify import checks
from tfbuild.verify.checks import CHECKS, imports
from tfbuild.verify.records import Check
from tfbuild.verify.verification import NO_START, Answered, Baseline, Start, Verification, answered

ROOT = Path(__file__).parents[2]
STARTED = Start(outcome=Outcome(records=(ENVIRONMENT,), ended=judge.Ended(0, ""), output=""))
SANDBOX = Sandbox(processes=1, volume="v", source="/v", path="/files")
BASELINE = Baseline(ref="tfbuild:plain", env={})


def verification(
    plan: Planned, *failed: str, start: Start = STARTED, baseline: Baseline | str = BASELINE
) -> Verification:
    failures = [
        Check(name=name, status=judge.FAIL, detail="", seconds=0.0, measures=(), proves="", how="", fix="")
        for name in failed
    ]
    return Verification(
        engine=cast(Engine, None),
        ref="x",
        planned=plan,
        baseline=baseline,
        sandbox=SANDBOX,
        checks=failures,
        start=start,
    )


def skipped(state: Verification) -> dict[str, str]:
    """Return why checks are skipped, by name and in their order."""
    return {check.name: why for check in CHECKS if (why := check.skip(state))}


def test_every_file_of_checks_is_in_the_list() -> None:
    files = {module.name for module in pkgutil.iter_modules(checks.__path__)}
    assert files <= vars(checks).keys(), "a check that nobody imports never runs"
    assert [vars(checks)[name].CHECK in CHECKS for name in files] == [True] * len(CHECKS)


def test_the_manual_has_a_row_for_each_check_in_their_order() -> None:
    page = (ROOT / "docs" / "verification.md").read_text(encoding="utf-8")
    table = page.partition("| check | proof |\n|---|---|\n")[2].partition("\n\n")[0]
    assert [row.split(" | ")[0].removeprefix("| ") for row in table.splitlines()] == [check.name for check in CHECKS]


def test_checks_run_after_those_whose_results_they_use() -> None:
    names = [check.name for check in CHECKS]
    assert names == [
        "configuration",
        "guard",
        "interpreter",
        "files",
        "bytecode",
        "import",
        "isa",
        "code",
        "onednn",
        "tcmalloc",
        "cuda",
        "numerics",
        "throughput",
    ]
    assert all(check.claim.proves and check.claim.how and check.claim.fix for check in CHECKS)


def test_only_checks_of_other_targets_are_skipped_for_an_image_that_starts() -> None:
    assert skipped(verification(planned())) == {"cuda": "target mkl"}
    assert skipped(verification(replace(planned(), target="cuda"))) == {
        "onednn": "target cuda promises nothing about oneDNN"
    }


def test_without_a_start_only_checks_without_tensorflow_run() -> None:
    plan = planned()
    broken = Verification(engine=cast(Engine, None), ref="x", planned=plan, baseline=BASELINE, sandbox=SANDBOX)
    assert set(skipped(broken)) == {"onednn", "tcmalloc", "cuda", "numerics", "throughput"}
    # A guard that is only too lax starts Python.
    assert set(skipped(replace(broken, checks=verification(plan, "guard").checks))) == set(skipped(broken))
    guarded = skipped(replace(broken, unstartable=True))
    assert set(guarded) == {"bytecode", "import", "onednn", "tcmalloc", "cuda", "numerics", "throughput"}
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


def test_a_wrong_answer_turns_a_pass_into_a_failure_and_nothing_else() -> None:
    outcome = Outcome(records=(), ended=judge.Ended(0, ""), output="")
    right, wrong = (Answered(outcome=outcome, challenge=Challenge(0, ()), wrong=why) for why in ("", "off by 1"))
    passed, warned, failed, left_out = (
        judge.Judgement("x", status, "as seen") for status in (judge.PASS, judge.WARN, judge.FAIL, judge.SKIP)
    )
    assert [answered(row, right) for row in (passed, warned, failed)] == [passed, warned, failed]
    expected = judge.Judgement("x", judge.FAIL, "off by 1")
    assert [answered(row, wrong) for row in (passed, warned)] == [expected, expected]
    assert [answered(row, wrong) for row in (failed, left_out)] == [failed, left_out]


LIBRARY = "/opt/tensorflow/lib/python3.11/site-packages/tensorflow/libtensorflow_framework.so.2"
SEEN = Process(program="d1", code=frozenset({"/usr/bin/python3.11", LIBRARY}))


@pytest.mark.parametrize(
    ("process", "status", "detail"),
    [
        (SEEN, "pass", "as seen"),
        (None, "pass", "as seen; its process cannot be looked at from here"),
        (replace(SEEN, program="d2"), "fail", "the process that answered does not run /opt/tensorflow/bin/python"),
        (replace(SEEN, code=frozenset()), "fail", f"the process that answered has not loaded {LIBRARY}"),
    ],
)
def test_the_kernel_s_view_of_the_process_counts(process: Process | None, status: str, detail: str) -> None:
    state = verification(planned())
    state.program = "d1"
    check = imports.from_outside(judge.Judgement("import", judge.PASS, "as seen"), state, process)
    assert (check.status, check.detail) == (status, detail)


def test_an_import_that_fails_as_is_known_says_what_helps() -> None:
    symbol = "_ZN17pybind11_protobuf16GenericProtoCastEPN6google8protobuf7MessageEN8pybind1119return_value_policyE"
    failed = judge.Judgement("import", judge.FAIL, f"ImportError: _pywrap_tf_session.so: undefined symbol: {symbol}")
    known = imports.with_known_failure(failed, "2.20.0")
    assert known.detail.startswith(f"{failed.detail}; a known failure (gcc-pywrap): clang-18, as the official build")
    assert imports.with_known_failure(failed, "2.14.1") == failed
    passed = judge.Judgement("import", judge.PASS, failed.detail)
    assert imports.with_known_failure(passed, "2.20.0") == passed
