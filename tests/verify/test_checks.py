"""Each check is one file and one line of the list; a check that does not apply is skipped with a reason."""

import importlib
import pkgutil
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from tests.context.test_planned import planned
from tests.rows import each
from tests.verify.test_judge import ENVIRONMENT
from tfbuild.context.labels import Planned
from tfbuild.engine import Engine, Sandbox
from tfbuild.in_container.smoke import judge
from tfbuild.in_container.smoke.judge import Judgement
from tfbuild.in_container.smoke.records import TensorFlow
from tfbuild.measure.probe import Outcome
from tfbuild.verify import checks
from tfbuild.verify.checks import CHECKS, imports
from tfbuild.verify.records import Check
from tfbuild.verify.verification import NO_START, Baseline, Start, Verification, VerificationCheck, fail_if

ROOT = Path(__file__).parents[2]
STARTED = Start(outcome=Outcome(records=(ENVIRONMENT,), ended=judge.Ended(0, ""), output=""))
SANDBOX = Sandbox(processes=1, volume="v", source="/v", path="/files")
BASELINE = Baseline(ref="tfbuild:plain", id="sha256:2", env={})


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


def test_every_check_of_every_file_is_in_the_list() -> None:
    files = [
        importlib.import_module(f"{checks.__name__}.{file.name}") for file in pkgutil.iter_modules(checks.__path__)
    ]
    written = {row.name for file in files for row in vars(file).values() if isinstance(row, VerificationCheck)}
    assert written == {check.name for check in CHECKS}, "a check that is not in the list never runs"


def test_the_manual_has_a_row_for_each_check_in_their_order() -> None:
    page = (ROOT / "docs" / "verification.md").read_text(encoding="utf-8")
    table = page.partition("| check | proof |\n|---|---|\n")[2].partition("\n\n")[0]
    rows = [row.split(" | ")[0].removeprefix("| ") for row in table.splitlines()]
    assert rows == [check.name for check in CHECKS], "a check lacks its row in docs/verification.md, or is not in order"


def test_checks_run_after_those_whose_results_they_use() -> None:
    names = [check.name for check in CHECKS]
    uses = {
        "guard": ("interpreter", "bytecode", "import", "onednn", "tcmalloc", "cuda", "numerics"),
        "interpreter": ("import",),
        "import": ("isa", "onednn", "tcmalloc", "cuda", "numerics", "throughput"),
        "onednn": ("throughput",),
    }
    assert all(names.index(name) < names.index(user) for name, users in uses.items() for user in users)
    assert names[0] == "configuration"
    assert [check.name for check in CHECKS if check.first] == ["configuration"]
    assert all(check.proves and check.how and check.fix for check in CHECKS)


def test_only_checks_of_other_targets_are_skipped_for_an_image_that_starts() -> None:
    assert skipped(verification(planned())) == {"cuda": "not a check of target mkl"}
    assert skipped(verification(replace(planned(), target="cuda"))) == {"onednn": "not a check of target cuda"}


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
        (("onednn",), BASELINE, "oneDNN is not as planned (see onednn), and times would only show that"),
    ],
)
def test_throughput_is_measured_only_if_it_can_show_something(
    failed: tuple[str, ...], baseline: Baseline | str, why: str
) -> None:
    assert skipped(verification(planned(), *failed, baseline=baseline)).get("throughput", "") == why


def test_a_wrong_answer_turns_a_pass_into_a_failure_and_nothing_else() -> None:
    rows = {status: Judgement(status, "as seen") for status in (judge.PASS, judge.WARN, judge.FAIL, judge.SKIP)}
    assert [fail_if("", row) for row in rows.values()] == [*rows.values()]
    assert {status for status, row in rows.items() if fail_if("off by 1", row) != row} == {judge.PASS, judge.WARN}
    assert fail_if("off by 1", rows[judge.WARN]) == Judgement(judge.FAIL, "off by 1")


@each(
    "label, said, told",
    [
        ("clang-18", "Clang 18.1.8", ""),
        ("clang-16", "Ubuntu Clang 16.0.6 (++20230710042046+7cbf1a259152-1~exp1~20230710162136.105)", ""),
        ("gcc-9", "9.3.1 20200408", ""),
        ("", "9.3.1 20200408", ""),
        ("gcc-9", "", ""),
        ("gcc-12", "9.3.1 20200408", "TensorFlow was compiled by gcc-9, but its label says gcc-12"),
        ("clang-12", "12.2.0", "TensorFlow was compiled by gcc-12, but its label says clang-12"),
        ("gcc-18", "Clang 18.1.8", "TensorFlow was compiled by clang-18, but its label says gcc-18"),
    ],
)
def test_the_compiler_is_the_label_s(label: str, said: str, told: str) -> None:
    loaded = TensorFlow(version="2.21.0", git="", compiler=said, cuda_build=False, seconds=1.0, peak_mib=1.0, gpus=0)
    assert imports.other_compiler(label, loaded) == told


def test_an_import_that_fails_as_is_known_says_what_helps() -> None:
    symbol = "_ZN17pybind11_protobuf16GenericProtoCastEPN6google8protobuf7MessageEN8pybind1119return_value_policyE"
    failed = Judgement(judge.FAIL, f"ImportError: _pywrap_tf_session.so: undefined symbol: {symbol}")
    for release in ("2.20.0", "2.99.0"):
        known = imports.with_known_failure(failed, release)
        assert known.detail.startswith(f"{failed.detail}; a known failure (gcc-pywrap): clang-18, as the official")
    for release in ("2.14.1", "2.99", "9.9", ""):
        assert imports.with_known_failure(failed, release) == failed
    passed = Judgement(judge.PASS, failed.detail)
    assert imports.with_known_failure(passed, "2.20.0") == passed
