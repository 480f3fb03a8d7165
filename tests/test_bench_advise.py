"""Each setting of the guide can come out of a report, and none without its evidence."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests.test_bench_evaluate import sample
from tests.test_bench_report import case, experiment, report, sizes
from tfbuild.bench import advise, findings, inplace
from tfbuild.bench import report as reporting
from tfbuild.bench.advise import Advice
from tfbuild.measure import records
from tfbuild.measure.evaluate import AGAIN, evaluate
from tfbuild.measure.records import ArmResult, BenchReport, CaseResult, ExperimentResult, Interval, Round

ONEDNN, PRELOAD = inplace.ONEDNN, inplace.PRELOAD
# Real reports of before they said what the image sets.
GUIDE, MODELS = (Path(__file__).parent / "data" / "bench" / name for name in ("guide.json", "models.json"))


def sides(name: str, *arms: tuple[str, float, dict[str, str]], code: str = "", spread: float = 0.01) -> CaseResult:
    """Arms by name, with the time that each takes and its environment; `code` is the last one's."""
    noise = random.Random(name)
    times = {arm: time for arm, time, _ in arms} | {AGAIN: arms[0][1]}
    rounds = tuple(
        Round(samples={arm: sample(time * noise.gauss(1, spread)) for arm, time in times.items()}, foreign=0.0)
        for _ in range(15)
    )
    found = evaluate(rounds, arms[0][0], {arm: 1 for arm, _, _ in arms}, "cpu")

    def result(arm: str, env: dict[str, str]) -> ArmResult:
        verdict = found.arms.get(arm)
        last = code if arm == arms[-1][0] else ""
        return replace(
            case(1.0).arms[0],
            name=arm,
            env=env,
            params={"xla": "XLA" in arm},
            cpu=verdict.cpu if verdict else None,
            wall=verdict.wall if verdict else None,
            effect=verdict.effect if verdict else "",
            code=last,
        )

    made = tuple(result(arm, env) for arm, _, env in arms)
    return replace(case(1.0), name=name, baseline=arms[0][0], arms=made, rounds=rounds, band=found.band)


def switched(name: str, off: float, on: float) -> CaseResult:
    return sides(name, ("oneDNN off", off, {ONEDNN: "0"}), ("oneDNN on", on, {ONEDNN: "1"}))


def allocators(name: str, glibc: float, tcmalloc: float, switch: str) -> CaseResult:
    env = {ONEDNN: switch}
    return sides(
        name,
        ("glibc", glibc, {**env, PRELOAD: ""}),
        ("TCMalloc", tcmalloc, {**env, PRELOAD: "libtcmalloc_minimal.so.4"}),
    )


def of_image(env: dict[str, str] | None, *rows: ExperimentResult) -> tuple[Advice, ...]:
    """What is advised where the image sets these variables."""
    made = report(*rows)
    return advise.advise(replace(made, image=replace(made.image, env=env)))


def settings(found: tuple[Advice, ...]) -> list[tuple[dict[str, str], str]]:
    return [(one.env, one.in_place) for one in found if one.env]


# --- settings of the environment -------------------------------------------------------------------------------------


def test_what_the_image_sets_is_told_as_in_place_and_not_as_a_change() -> None:
    row = experiment("onednn", switched("conv", 2.0, 1.0), switched("matmul", 1.2, 1.0))
    (found,) = of_image({ONEDNN: "1"}, row)
    assert (found.env, found.in_place, len(found.gains)) == ({ONEDNN: "1"}, inplace.SET, 2)
    assert all(line.startswith("#") for line in advise.env_file((found,)).splitlines())
    assert (
        advise.env_file((found,)).splitlines()[-1] == "# in place already, the image sets it: TF_ENABLE_ONEDNN_OPTS=1"
    )
    assert settings(of_image({ONEDNN: "0"}, row)) == [({ONEDNN: "1"}, "")]
    assert settings(of_image(None, row)) == [({ONEDNN: "1"}, "")], "nobody knows what the image sets"


def test_what_tensorflow_chooses_by_itself_is_in_place_too() -> None:
    made = report(experiment("onednn", switched("conv", 2.0, 1.0)))
    unset = replace(made, image=replace(made.image, env={}))
    assert settings(advise.advise(unset)) == [({ONEDNN: "1"}, "")], "off by default on a CPU without such features"
    newer = replace(unset, host=replace(made.host, flags=("avx", "avx512_vnni")))
    assert settings(advise.advise(newer)) == [({ONEDNN: "1"}, inplace.DEFAULT)]
    tuned = sides("conv", ("as it is", 1.0, {}), ("without", 1.5, {ONEDNN: "", PRELOAD: ""}), code="# env -u")
    preloads = replace(newer.image, env={PRELOAD: "libx.so"})
    (kept,) = advise.advise(replace(newer, image=preloads, experiments=(experiment("tuning", tuned),)))
    assert (kept.env, kept.in_place) == ({PRELOAD: "libx.so"}, inplace.SET), "without it the switch is on as well"
    older = replace(newer, software=replace(made.software, tensorflow="2.8.4"))
    assert settings(advise.advise(older)) == [({ONEDNN: "1"}, "")], "on by default from 2.9"


def test_cases_of_another_environment_than_the_one_in_place_are_no_evidence() -> None:
    hidden = allocators("large, oneDNN off", 2.0, 1.0, "0")
    same = allocators("large, oneDNN on", 1.0, 1.0, "1")
    row = experiment("allocator", hidden, same)
    assert of_image({ONEDNN: "1", PRELOAD: ""}, row) == (), "its gain is another setting's loss"
    assert settings(of_image({ONEDNN: "0", PRELOAD: ""}, row)) == [({PRELOAD: "libtcmalloc_minimal.so.4"}, "")]
    onednn = experiment("onednn", switched("conv", 2.0, 1.0))
    advised = settings(of_image({ONEDNN: "0", PRELOAD: ""}, onednn, row))
    assert advised == [({ONEDNN: "1"}, "")], "nor of another than the one that is advised"


def test_a_library_is_the_same_wherever_it_lies() -> None:
    row = experiment("allocator", allocators("large", 2.0, 1.0, "1"))
    image = {ONEDNN: "1", PRELOAD: "/usr/local/lib/libtcmalloc_minimal.so.4"}
    assert settings(of_image(image, row)) == [({PRELOAD: "libtcmalloc_minimal.so.4"}, inplace.SET)]


def test_a_baseline_that_wins_everywhere_is_advised() -> None:
    row = experiment("onednn", switched("conv", 1.0, 1.5), switched("matmul", 1.0, 1.0))
    for image in ({ONEDNN: "1"}, None):
        (found,) = of_image(image, row)
        assert (found.env, found.in_place) == ({ONEDNN: "0"}, ""), image
        assert found.gains[0].startswith("oneDNN off x1.5")
        assert "against oneDNN on in CPU time: conv" in found.gains[0]
        assert found.code.startswith('os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"')
    assert settings(of_image({ONEDNN: "0"}, row)) == [({ONEDNN: "0"}, inplace.SET)]
    mixed = experiment("onednn", switched("conv", 1.0, 1.5), switched("matmul", 1.5, 1.0))
    assert settings(of_image(None, mixed)) == []
    (kept,) = of_image({ONEDNN: "1"}, mixed)
    assert kept.in_place, "no change is advised"
    assert (len(kept.gains), len(kept.losses)) == (1, 1)


def test_the_allocator_that_loses_is_emptied() -> None:
    row = experiment("allocator", allocators("large", 1.0, 1.5, "1"))
    (found,) = of_image({ONEDNN: "1", PRELOAD: "/usr/lib/libtcmalloc_minimal.so.4"}, row)
    assert found.env == {PRELOAD: ""}
    assert advise.env_file((found,)).splitlines()[-1] == "LD_PRELOAD="


def test_a_change_is_shown_against_what_is_in_place() -> None:
    """jemalloc is faster than glibc, but not than the TCMalloc that the image has."""
    row = experiment(
        "allocator",
        sides(
            "large",
            ("glibc", 2.0, {PRELOAD: ""}),
            ("TCMalloc", 1.0, {PRELOAD: "libtcmalloc_minimal.so.4"}),
            ("jemalloc", 0.995, {PRELOAD: "/tfbuild-bench/lib/libjemalloc.so.2:libjemalloc.so.2"}),
        ),
    )
    assert settings(of_image({PRELOAD: "libtcmalloc_minimal.so.4"}, row)) == [
        ({PRELOAD: "libtcmalloc_minimal.so.4"}, inplace.SET)
    ]


def threads(name: str, one: float, *, spread: float = 0.01) -> CaseResult:
    return sides(name, ("the default", 1.0, {}), ("intra-op 1", one, {"TF_NUM_INTRAOP_THREADS": "1"}), spread=spread)


def test_a_setting_that_may_cost_a_tenth_somewhere_is_refused() -> None:
    steady = experiment("threads", threads("block", 0.7), threads("conv", 1.0))
    assert settings(of_image({}, steady)) == [({"TF_NUM_INTRAOP_THREADS": "1"}, "")]
    wide = threads("conv", 1.0, spread=0.4)
    assert wide.arms[1].effect == records.NO_DIFFERENCE
    assert wide.arms[1].cpu is not None
    assert wide.arms[1].cpu.low < advise.RISK
    assert of_image({}, experiment("threads", threads("block", 0.7), wide)) == ()


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


def test_what_another_experiment_saw_of_a_setting_counts() -> None:
    gained = experiment("onednn", switched("conv", 2.0, 1.0))
    (found,) = of_image(None, gained, experiment("models", switched("ResNet-50", 1.5, 1.0)))
    assert found.gains[1].startswith("models: oneDNN on x1.5")
    assert settings(of_image(None, gained, experiment("models", switched("ResNet-50", 1.0, 1.4)))) == []
    more = sides("all", ("before", 1.0, {ONEDNN: "0"}), ("after", 1.4, {ONEDNN: "1", PRELOAD: "libx.so"}))
    assert len(of_image(None, gained, experiment("all", more))) == 1, "more than the setting differs there"


def test_an_image_that_is_slower_for_its_tuning_is_advised_against() -> None:
    def taken_away(time: float, name: str = "conv") -> CaseResult:
        return sides(name, ("as it is", 1.0, {}), ("without", time, {PRELOAD: "", ONEDNN: ""}), code="# env -u")

    image = {PRELOAD: "libtcmalloc.so", ONEDNN: "1"}
    (found,) = of_image(image, experiment("tuning", taken_away(0.8), taken_away(1.0, "matmul")))
    assert (found.env, found.code) == ({}, "# env -u"), "nothing that an env file could say"
    assert settings(of_image(image, experiment("tuning", taken_away(0.8), taken_away(1.3, "matmul")))) == [
        (image, inplace.SET)
    ], "one of each: nothing to change, and both are told"
    assert of_image(image, experiment("tuning", taken_away(1.0))) == ()
    assert settings(of_image(image, experiment("tuning", taken_away(1.3)))) == [(image, inplace.SET)]
    kept = experiment("onednn", switched("conv", 2.0, 1.0))
    (found,) = of_image(image, experiment("tuning", taken_away(0.8)), kept)
    assert (found.experiment, found.in_place) == ("onednn", inplace.SET), "what says which of the two it is goes first"


# --- what an image has in place --------------------------------------------------------------------------------------


def test_of_an_image_only_what_the_experiments_set_is_recorded() -> None:
    lines = ["PATH=/usr/bin", "LD_PRELOAD=/usr/lib/libtcmalloc.so", "TOKEN=secret", "TF_ENABLE_ONEDNN_OPTS="]
    assert inplace.recorded(lines) == {PRELOAD: "/usr/lib/libtcmalloc.so"}


@pytest.mark.parametrize(
    ("labels", "malloc", "told"),
    [
        ({"io.tfbuild.target": "mkl"}, "/usr/lib/libtcmalloc_minimal.so.4.5", {ONEDNN: "1", PRELOAD: "libtcmalloc"}),
        ({"io.tfbuild.target": "cpu"}, "/usr/lib/libc.so.6", {ONEDNN: "0", PRELOAD: ""}),
        ({}, "/usr/lib/libc.so.6", {PRELOAD: ""}),
        ({}, "", {}),
    ],
)
def test_older_reports_have_it_of_their_labels(labels: dict[str, str], malloc: str, told: dict[str, str]) -> None:
    made = report()
    older = replace(made, image=replace(made.image, labels=labels), software=replace(made.software, malloc=malloc))
    found = inplace.of(older).values
    assert found.keys() == told.keys()
    assert all(found[name].startswith(value) and bool(found[name]) == bool(value) for name, value in told.items())


# --- lines of code ---------------------------------------------------------------------------------------------------


def test_a_line_says_where_it_gains_and_where_it_loses() -> None:
    cases = (
        case(0.5, name="adds", env={}, code="jit"),
        case(0.6, name="chain", env={}, code="jit"),
        case(1.3, name="conv", env={}, code="jit"),
    )
    (found,) = advise.advise(report(experiment("xla", *cases)))
    assert [gain.split(": ")[-1].partition(" (")[0] for gain in found.gains] == ["adds", "chain"]
    assert [loss.partition(" [")[0] for loss in found.losses] == ["arm x0.77"]
    assert "# xla: but it was slower there: arm x0.77" in advise.lines_of_code((found,))


def test_a_line_is_told_in_each_case_that_has_it_by_its_name() -> None:
    unnamed = case(0.95, name="whole pipeline", env={})
    (found,) = advise.advise(report(experiment("jpeg", case(0.5, env={}, code="crop()"), unnamed)))
    assert [gain.split(": ")[-1].partition(" (")[0] for gain in found.gains] == ["centre", "whole pipeline"]


def test_what_the_environment_gains_is_not_the_line_s() -> None:
    """Reports of before had XLA with oneDNN on beside a baseline without either."""

    def three(name: str, on: float, xla: float) -> CaseResult:
        return sides(
            name,
            ("oneDNN off", 2.0, {ONEDNN: "0"}),
            ("oneDNN on", on, {ONEDNN: "1"}),
            ("oneDNN on, XLA", xla, {ONEDNN: "1"}),
            code="jit",
        )

    rows = experiment("models", three("block", 1.4, 1.0), three("LSTM", 1.0, 1.35))
    onednn, xla = of_image({ONEDNN: "1"}, rows)
    assert (onednn.env, onednn.in_place) == ({ONEDNN: "1"}, inplace.SET)
    assert (xla.code, len(xla.gains), len(xla.losses)) == ("jit", 1, 1)
    assert xla.gains[0].startswith("oneDNN on, XLA x1.")
    assert "against oneDNN on in CPU time: block" in xla.gains[0]
    assert xla.losses[0].startswith("oneDNN on, XLA x0.")
    assert [one.code for one in of_image({ONEDNN: "1"}, experiment("models", three("LSTM", 1.0, 1.5)))] == [""]
    alone = sides("block", ("oneDNN off", 2.0, {ONEDNN: "0"}), ("XLA", 1.0, {ONEDNN: "1"}), code="jit")
    assert of_image({ONEDNN: "1"}, experiment("models", alone)) == (), "nothing has the same environment"


def test_the_layout_that_others_lose_to_is_in_place() -> None:
    def layout(factor: float, name: str = "training") -> CaseResult:
        measured = case(factor, name=name, env={}, code="nchw()")
        return replace(measured, arms=(replace(measured.arms[0], code="nhwc()"), measured.arms[1]))

    (found,) = advise.advise(report(experiment("layout", layout(1.3), layout(1.0, "forward"))))
    assert (found.code, found.in_place) == ("nhwc()", advise.BASELINE)
    assert [gain.partition(" in CPU time")[2].partition(" (")[0] for gain in found.gains] == [": training"]
    assert found.gains[0].startswith("baseline x1.29 [1.27, 1.30] against arm in CPU time")
    assert advise.lines_of_code((found,)).splitlines()[-1] == f"# in place already, {advise.BASELINE}: nhwc()"
    (found,) = advise.advise(report(experiment("layout", layout(0.5))))
    assert (found.code, found.in_place) == ("nchw()", "")
    assert advise.advise(report(experiment("layout", layout(1.0)))) == ()
    assert [each.code for each in advise.advise(report(experiment("layout", layout(0.5), layout(1.3, "forward"))))] == [
        "nchw()"
    ], "one of each: no layout is the better one, and each case has its own"


def test_the_clock_is_told_where_it_shows_no_gain() -> None:
    measured = case(0.5, env={}, code="x")
    wall = Interval(median=1.0, low=0.9, high=1.1, coverage=0.96)
    arms = (measured.arms[0], replace(measured.arms[1], wall=wall))
    (found,) = advise.advise(report(experiment("jpeg", replace(measured, arms=arms))))
    assert " in CPU time (by the clock x1.00 [0.90, 1.10]): centre" in found.gains[0]
    (found,) = advise.advise(report(experiment("jpeg", measured)))
    assert "by the clock" not in found.gains[0]


def test_a_batch_size_is_advised_where_it_is_faster_than_the_smallest() -> None:
    sized = sizes(1e-3, 1e-4, 1, 2, 4, 8, 16, 32, 64, 128)
    knee = sized.arms[6]
    faster = replace(knee, effect=records.FASTER, wall=Interval(median=8.0, low=7.5, high=8.5, coverage=0.97))
    told = findings.of("batch_size", [sized])
    assert told[0].values["measured_90%"] == knee.items == 64
    proved = replace(sized, arms=tuple(faster if arm is knee else arm for arm in sized.arms))
    (found,) = advise.advise(report(experiment("batchsize", proved)))
    assert found.code == "batch_size = 64"
    assert found.gains[0].startswith("batch 64 x8.00 [7.50, 8.50] in wall time: dense")
    assert found.gains[1:] == (told[0].text,)
    assert advise.advise(report(experiment("batchsize", sized, findings=told))) == (), "no verdict, no advice"


def test_a_batch_size_at_the_end_of_the_sweep_is_told_as_that() -> None:
    sized = sizes(1e-2, 1e-5, 1, 2, 4, 8, 16, 32)
    faster = Interval(median=30.0, low=29.0, high=31.0, coverage=0.97)
    arms = tuple(replace(arm, effect=records.FASTER, wall=faster) if arm.items > 1 else arm for arm in sized.arms)
    (found,) = advise.advise(report(experiment("batchsize", replace(sized, arms=arms))))
    assert found.code == "batch_size = 32  # the largest one tried: more may be faster still"


# --- whole reports ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [GUIDE, MODELS], ids=["guide", "models"])
def test_a_committed_report_s_advice_does_not_contradict_itself(path: Path) -> None:
    made: BenchReport = reporting.read(path)
    found = advise.advise(made)
    assert found
    names = [name for one in found for name in one.env]
    assert len(set(names)) == len(names), "no variable twice"
    place = inplace.of(made)
    for one in found:
        if not one.in_place:
            assert not any(inplace.alike(n, v, place.values.get(n, "-")) for n, v in one.env.items()), one
            assert not (one.env and one.losses), one
        assert one.gains
    codes = [one.code for one in found if one.code and one.experiment != "batchsize"]
    assert len(set(codes)) == len(codes)
