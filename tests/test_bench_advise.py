"""Each setting of the guide can come out of a report, and none without its evidence."""

from dataclasses import replace

import pytest

from tests.test_bench_report import case, experiment, report, sizes
from tfbuild.bench import advise, findings, results
from tfbuild.bench.results import CaseResult
from tfbuild.proof import Interval


def test_a_batch_size_is_advised_where_it_is_faster_than_the_smallest() -> None:
    sized = sizes(1e-3, 1e-4, 1, 2, 4, 8, 16, 32, 64, 128)
    knee = sized.arms[6]
    faster = replace(knee, effect=results.FASTER, wall=Interval(median=8.0, low=7.5, high=8.5, coverage=0.97))
    told = findings.of("batchsize", [sized])
    assert told[0].values["measured_90%"] == knee.items == 64
    proved = replace(sized, arms=tuple(faster if arm is knee else arm for arm in sized.arms))
    (found,) = advise.advise(report(experiment("batchsize", proved, findings=told)))
    assert found.code == "batch_size = 64"
    assert found.gains[0].startswith("batch 64 x8.00 [7.50, 8.50] in wall time: dense")
    assert found.gains[1:] == (told[0].text,)
    assert advise.advise(report(experiment("batchsize", sized, findings=told))) == (), "no verdict, no advice"
    assert advise.advise(report(experiment("batchsize", proved))) == (), "no finding, no advice"


def test_the_layout_that_others_lose_to_is_advised() -> None:
    def layout(factor: float, name: str = "training") -> CaseResult:
        measured = case(factor, name=name, env={}, code="nchw()")
        return replace(measured, arms=(replace(measured.arms[0], code="nhwc()"), measured.arms[1]))

    (found,) = advise.advise(report(experiment("layout", layout(1.3), layout(1.0, "forward"))))
    assert found.code == "nhwc()"
    assert [gain.partition(" in CPU time")[2].partition(" (")[0] for gain in found.gains] == [": training"]
    assert found.gains[0].startswith("arm x0.7")
    (found,) = advise.advise(report(experiment("layout", layout(0.5))))
    assert found.code == "nchw()"
    assert advise.advise(report(experiment("layout", layout(1.0)))) == ()
    assert [each.code for each in advise.advise(report(experiment("layout", layout(0.5), layout(1.3, "forward"))))] == [
        "nchw()"
    ], "one of each: no layout is the better one, and each case has its own"


def test_a_line_says_where_it_gains_and_where_it_loses() -> None:
    cases = (
        case(0.5, name="adds", code="jit"),
        case(0.6, name="chain", code="jit"),
        case(1.3, name="conv", code="jit"),
    )
    (found,) = advise.advise(report(experiment("xla", *cases)))
    assert [gain.split(": ")[-1].partition(" (")[0] for gain in found.gains] == ["adds", "chain", "conv"]
    assert found.gains[2].startswith("but not where it was slower: arm x0.7")


@pytest.mark.parametrize(
    ("name", "env", "code"),
    [
        (
            "threads",
            {"TF_NUM_INTRAOP_THREADS": "4"},
            'os.environ["TF_NUM_INTRAOP_THREADS"] = "4"  # before TensorFlow is imported',
        ),
        (
            "onednn",
            {"TF_ENABLE_ONEDNN_OPTS": "1"},
            'os.environ["TF_ENABLE_ONEDNN_OPTS"] = "1"  # before TensorFlow is imported',
        ),
        ("allocator", {"LD_PRELOAD": "libtcmalloc_minimal.so.4"}, ""),
    ],
)
def test_a_setting_is_advised_as_environment_and_as_code(name: str, env: dict[str, str], code: str) -> None:
    (found,) = advise.advise(report(experiment(name, case(0.5, env=env))))
    assert (found.env, found.code) == (env, code)


def test_an_allocator_that_was_put_beside_the_image_is_advised_by_its_own_name() -> None:
    brought = {"LD_PRELOAD": "/tfbuild-bench/lib/libjemalloc.so.2:libjemalloc.so.2"}
    (found,) = advise.advise(report(experiment("allocator", case(0.5, env=brought, code="# apt-get install it"))))
    assert found.env == {"LD_PRELOAD": "libjemalloc.so.2"}
    assert found.code == "# apt-get install it"


def test_a_setting_that_lost_in_another_experiment_is_not_advised() -> None:
    def same_work(measured: CaseResult) -> CaseResult:
        return replace(measured, arms=tuple(replace(arm, params={}) for arm in measured.arms))

    gained = experiment("onednn", case(0.5))
    assert advise.advise(report(gained, experiment("models", same_work(case(1.0)))))
    assert advise.advise(report(gained, experiment("models", same_work(case(1.4))))) == ()
    assert advise.advise(report(gained, experiment("all", case(1.4)))), "more than the setting differs there"


def test_an_image_that_is_slower_for_its_tuning_is_advised_against() -> None:
    def taken_away(factor: float, name: str = "conv") -> CaseResult:
        return case(factor, name=name, env={"LD_PRELOAD": ""}, code="# env -u LD_PRELOAD")

    (found,) = advise.advise(report(experiment("tuning", taken_away(0.8), taken_away(1.0, "matmul"))))
    assert (found.env, found.code) == ({}, "# env -u LD_PRELOAD"), "nothing that an env file could say"
    assert advise.advise(report(experiment("tuning", taken_away(0.8), taken_away(1.3, "matmul")))) == ()
    assert advise.advise(report(experiment("tuning", taken_away(1.0)))) == ()
