"""Advice from reports: each setting of the guide can be advised, and none without evidence."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench.test_report import case, experiment, report, sizes
from tests.measure.test_evaluate import sample
from tfbuild.bench import advise, current_settings, findings
from tfbuild.bench import report as reporting
from tfbuild.bench.gains import Advice
from tfbuild.measure import records
from tfbuild.measure.evaluate import AGAIN, evaluate
from tfbuild.measure.records import ArmResult, BenchReport, CaseResult, ExperimentResult, Interval, Round

ONEDNN, PRELOAD = current_settings.ONEDNN, current_settings.PRELOAD
# Real reports, from before reports recorded the image's environment; shortened.
GUIDE, MODELS = (Path(__file__).parents[1] / "data" / "bench" / name for name in ("guide.json", "models.json"))


def sides(name: str, *arms: tuple[str, float, dict[str, str]], code: str = "", spread: float = 0.01) -> CaseResult:
    """Return a case of these arms: name, time and environment. `code` is the last arm's."""
    noise = random.Random(name)
    times = {arm: time for arm, time, _ in arms} | {AGAIN: arms[0][1]}
    rounds = tuple(
        Round(samples={arm: sample(time * noise.gauss(1, spread)) for arm, time in times.items()}, foreign=0.0)
        for _ in range(15)
    )
    evaluation = evaluate(rounds, arms[0][0], {arm: 1 for arm, _, _ in arms}, "cpu")

    def result(arm: str, env: dict[str, str]) -> ArmResult:
        verdict = evaluation.arms.get(arm)
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

    results = tuple(result(arm, env) for arm, _, env in arms)
    return replace(case(1.0), name=name, baseline=arms[0][0], arms=results, rounds=rounds, band=evaluation.band)


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
    """Return the advice for an image that sets these variables."""
    measured = report(*rows)
    return advise.advise(replace(measured, image=replace(measured.image, env=env)))


def settings(advices: tuple[Advice, ...]) -> list[tuple[dict[str, str], str]]:
    return [(one.env, one.in_place) for one in advices if one.env]


# --- settings of the environment -------------------------------------------------------------------------------------


def test_what_the_image_sets_is_reported_as_in_place_and_not_as_a_change() -> None:
    row = experiment("onednn", switched("conv", 2.0, 1.0), switched("matmul", 1.2, 1.0))
    (advice,) = of_image({ONEDNN: "1"}, row)
    assert (advice.env, advice.in_place, len(advice.gains)) == ({ONEDNN: "1"}, current_settings.SET, 2)
    assert all(line.startswith("#") for line in advise.env_file((advice,)).splitlines())
    assert (
        advise.env_file((advice,)).splitlines()[-1] == "# in place already, the image sets it: TF_ENABLE_ONEDNN_OPTS=1"
    )
    assert settings(of_image({ONEDNN: "0"}, row)) == [({ONEDNN: "1"}, "")]
    assert settings(of_image(None, row)) == [({ONEDNN: "1"}, "")], "nobody knows what the image sets"


def test_what_tensorflow_chooses_by_itself_is_in_place_too() -> None:
    original = report(experiment("onednn", switched("conv", 2.0, 1.0)))
    unset = replace(original, image=replace(original.image, env={}))
    assert settings(advise.advise(unset)) == [({ONEDNN: "1"}, "")], "off by default on a CPU without such features"
    newer = replace(unset, host=replace(original.host, flags=("avx", "avx512_vnni")))
    assert settings(advise.advise(newer)) == [({ONEDNN: "1"}, current_settings.DEFAULT)]
    tuned = sides("conv", ("as it is", 1.0, {}), ("without", 1.5, {ONEDNN: "", PRELOAD: ""}), code="# env -u")
    preloads = replace(newer.image, env={PRELOAD: "libx.so"})
    (kept,) = advise.advise(replace(newer, image=preloads, experiments=(experiment("tuning", tuned),)))
    assert (kept.env, kept.in_place) == ({PRELOAD: "libx.so"}, current_settings.SET), (
        "without it the switch is on as well"
    )
    older = replace(newer, software=replace(original.software, tensorflow="2.8.4"))
    assert settings(advise.advise(older)) == [({ONEDNN: "1"}, "")], "on by default from 2.9"


def test_of_the_changes_that_lost_to_the_baseline_the_one_with_most_to_gain_is_advised() -> None:
    base = ("jemalloc", 1.0, {PRELOAD: "libjemalloc.so.2"})
    lost = ("a little slower", 1.2, {PRELOAD: ""}), ("twice as slow", 2.0, {PRELOAD: "libx.so"})
    for others in (lost, lost[::-1]):
        (advice,) = of_image(None, experiment("allocator", sides("large", base, *others)))
        assert advice.env == {PRELOAD: "libjemalloc.so.2"}
        assert [(gain.over, round(gain.ratio.median, 1)) for gain in advice.gains] == [("twice as slow", 2.0)]


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
    assert settings(of_image(image, row)) == [({PRELOAD: "libtcmalloc_minimal.so.4"}, current_settings.SET)]


def test_a_baseline_that_wins_everywhere_is_advised() -> None:
    row = experiment("onednn", switched("conv", 1.0, 1.5), switched("matmul", 1.0, 1.0))
    for image in ({ONEDNN: "1"}, None):
        (advice,) = of_image(image, row)
        assert (advice.env, advice.in_place) == ({ONEDNN: "0"}, ""), image
        assert advice.gains[0].text.startswith("oneDNN off x1.5")
        assert "over oneDNN on in CPU time: conv" in advice.gains[0].text
        assert advice.code.startswith('os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"')
    assert settings(of_image({ONEDNN: "0"}, row)) == [({ONEDNN: "0"}, current_settings.SET)]
    mixed = experiment("onednn", switched("conv", 1.0, 1.5), switched("matmul", 1.5, 1.0))
    assert settings(of_image(None, mixed)) == []
    (kept,) = of_image({ONEDNN: "1"}, mixed)
    assert kept.in_place, "no change is advised"
    assert (len(kept.gains), len(kept.losses)) == (1, 1)


def test_the_allocator_that_loses_is_emptied() -> None:
    row = experiment("allocator", allocators("large", 1.0, 1.5, "1"))
    (advice,) = of_image({ONEDNN: "1", PRELOAD: "/usr/lib/libtcmalloc_minimal.so.4"}, row)
    assert advice.env == {PRELOAD: ""}
    assert advise.env_file((advice,)).splitlines()[-1] == "LD_PRELOAD="


def test_a_change_is_shown_against_what_is_in_place() -> None:
    """jemalloc is faster than glibc, but not faster than the image's TCMalloc."""
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
        ({PRELOAD: "libtcmalloc_minimal.so.4"}, current_settings.SET)
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
    (advice,) = advise.advise(report(experiment(name, case(0.5, env=env))))
    assert (advice.env, advice.code) == (env, code)


def test_a_fetched_allocator_is_advised_by_its_own_name() -> None:
    brought = {"LD_PRELOAD": "/tfbuild-bench/lib/libjemalloc.so.2:libjemalloc.so.2"}
    (advice,) = advise.advise(report(experiment("allocator", case(0.5, env=brought, code="# apt-get install it"))))
    assert advice.env == {"LD_PRELOAD": "libjemalloc.so.2"}
    assert advice.code == "# apt-get install it"


def test_what_another_experiment_saw_of_a_setting_counts() -> None:
    gained = experiment("onednn", switched("conv", 2.0, 1.0))
    (advice,) = of_image(None, gained, experiment("models", switched("ResNet-50", 1.5, 1.0)))
    assert advice.gains[1].experiment == "models"
    assert advice.gains[1].text.startswith("oneDNN on x1.5")
    assert "# onednn: models: oneDNN on x1.5" in advise.env_file((advice,))
    assert settings(of_image(None, gained, experiment("models", switched("ResNet-50", 1.0, 1.4)))) == []
    more = sides("all", ("before", 1.0, {ONEDNN: "0"}), ("after", 1.4, {ONEDNN: "1", PRELOAD: "libx.so"}))
    assert len(of_image(None, gained, experiment("all", more))) == 1, "more than the setting differs there"


def test_an_image_that_is_slower_for_its_tuning_is_advised_against() -> None:
    def taken_away(time: float, name: str = "conv") -> CaseResult:
        return sides(name, ("as it is", 1.0, {}), ("without", time, {PRELOAD: "", ONEDNN: ""}), code="# env -u")

    image = {PRELOAD: "libtcmalloc.so", ONEDNN: "1"}
    (advice,) = of_image(image, experiment("tuning", taken_away(0.8), taken_away(1.0, "matmul")))
    assert (advice.env, advice.code) == ({}, "# env -u"), "nothing that an env file could say"
    assert settings(of_image(image, experiment("tuning", taken_away(0.8), taken_away(1.3, "matmul")))) == [
        (image, current_settings.SET)
    ], "one of each: nothing to change, and both are listed"
    assert of_image(image, experiment("tuning", taken_away(1.0))) == ()
    assert settings(of_image(image, experiment("tuning", taken_away(1.3)))) == [(image, current_settings.SET)]
    kept = experiment("onednn", switched("conv", 2.0, 1.0))
    (advice,) = of_image(image, experiment("tuning", taken_away(0.8)), kept)
    assert (advice.experiment, advice.in_place) == ("onednn", current_settings.SET), (
        "what says which of the two it is goes first"
    )


# --- what an image has in place --------------------------------------------------------------------------------------


def test_of_an_image_only_what_the_experiments_set_is_recorded() -> None:
    lines = ["PATH=/usr/bin", "LD_PRELOAD=/usr/lib/libtcmalloc.so", "TOKEN=secret", "TF_ENABLE_ONEDNN_OPTS="]
    assert current_settings.recorded_settings(lines) == {PRELOAD: "/usr/lib/libtcmalloc.so"}


def test_nothing_is_known_of_a_report_without_the_image_s_environment() -> None:
    assert current_settings.read_settings(report()).values == {}


# --- lines of code ---------------------------------------------------------------------------------------------------


def test_a_line_says_where_it_gains_and_where_it_loses() -> None:
    cases = (
        case(0.5, name="adds", env={}, code="jit"),
        case(0.6, name="chain", env={}, code="jit"),
        case(1.3, name="conv", env={}, code="jit"),
    )
    (advice,) = advise.advise(report(experiment("xla", *cases)))
    assert [gain.model for gain in advice.gains] == ["adds", "chain"]
    assert [loss.text.partition(" [")[0] for loss in advice.losses] == ["arm x0.77"]
    assert "# xla: but slower here: arm x0.77" in advise.lines_of_code((advice,))


def test_a_line_lists_each_case_that_has_an_arm_of_its_name() -> None:
    unnamed = case(0.95, name="whole pipeline", env={})
    (advice,) = advise.advise(report(experiment("jpeg", case(0.5, env={}, code="crop()"), unnamed)))
    assert [gain.model for gain in advice.gains] == ["centre", "whole pipeline"]


def forms(name: str, block: float, unrolled: float) -> CaseResult:
    """Return a case with two lines of code for the same work."""
    measured = sides(name, ("loop", 1.0, {}), ("unrolled", unrolled, {}), ("block", block, {}))
    codes = {"unrolled": "for x in inputs: ...", "block": "BlockLSTM()"}
    arms = tuple(replace(arm, code=codes.get(arm.name, ""), params={"kind": arm.name}) for arm in measured.arms)
    return replace(measured, arms=arms)


def test_of_two_lines_a_model_gets_the_better_one() -> None:
    row = experiment("rnn", forms("small", 0.3, 0.6), forms("middle", 0.4, 0.5), forms("large", 1.6, 0.8))
    advices = advise.advise(report(row))
    assert [(one.code, [gain.model for gain in one.gains], [loss.model for loss in one.losses]) for one in advices] == [
        ("BlockLSTM()", ["small", "middle"], ["large"]),
        ("for x in inputs: ...", ["large"], []),
    ]
    models = [gain.model for one in advices for gain in one.gains]
    assert len(set(models)) == len(models), "no model gets two pieces of advice"


def test_the_largest_gain_is_first_and_what_is_in_place_is_last() -> None:
    rows = (
        experiment("onednn", switched("conv", 9.0, 1.0)),
        experiment("jpeg", case(0.7, env={}, code="crop()")),
        experiment("xla", case(0.8, env={}, code="jit"), case(0.4, name="adds", env={}, code="jit")),
    )
    advices = of_image({ONEDNN: "1"}, *rows)
    assert [(one.experiment, bool(one.in_place)) for one in advices] == [("xla", 0), ("jpeg", 0), ("onednn", 1)]
    assert [gain.model for gain in advices[0].gains] == ["adds", "centre"]


@pytest.mark.parametrize(
    ("env", "code", "line", "remark"),
    [
        ({}, "batch_size = 8  # the largest", "batch_size = 8", "the largest"),
        ({}, "# docker run IMAGE env -u X", "docker run IMAGE env -u X", ""),
        (
            {"B": "2", "A": "1"},
            'os.environ["A"] = "1"  # first',
            "A=1 B=2",
            'or in Python, first: os.environ["A"] = "1"',
        ),
        ({"LD_PRELOAD": "x"}, "# apt-get install x", "LD_PRELOAD=x", "apt-get install x"),
        ({"LD_PRELOAD": "x"}, "", "LD_PRELOAD=x", ""),
    ],
)
def test_a_change_is_one_line_with_its_remark(env: dict[str, str], code: str, line: str, remark: str) -> None:
    advice = Advice(experiment="x", env=env, code=code, gains=())
    assert (advice.line, advice.remark) == (line, remark)


def test_what_the_environment_gains_is_not_the_line_s() -> None:
    """Older reports compare XLA with oneDNN on with a baseline without either."""

    def three(name: str, on: float, xla: float) -> CaseResult:
        return sides(
            name,
            ("oneDNN off", 2.0, {ONEDNN: "0"}),
            ("oneDNN on", on, {ONEDNN: "1"}),
            ("oneDNN on, XLA", xla, {ONEDNN: "1"}),
            code="jit",
        )

    rows = experiment("models", three("block", 1.4, 1.0), three("LSTM", 1.0, 1.35))
    xla, onednn = of_image({ONEDNN: "1"}, rows)
    assert (onednn.env, onednn.in_place) == ({ONEDNN: "1"}, current_settings.SET)
    assert (xla.code, len(xla.gains), len(xla.losses)) == ("jit", 1, 1)
    assert xla.gains[0].text.startswith("oneDNN on, XLA x1.")
    assert "over oneDNN on in CPU time: block" in xla.gains[0].text
    assert xla.losses[0].text.startswith("oneDNN on, XLA x0.")
    assert [one.code for one in of_image({ONEDNN: "1"}, experiment("models", three("LSTM", 1.0, 1.5)))] == [""]
    alone = sides("block", ("oneDNN off", 2.0, {ONEDNN: "0"}), ("XLA", 1.0, {ONEDNN: "1"}), code="jit")
    assert of_image({ONEDNN: "1"}, experiment("models", alone)) == (), "nothing has the same environment"


def test_the_layout_that_others_lose_to_is_in_place() -> None:
    def layout(factor: float, name: str = "training") -> CaseResult:
        measured = case(factor, name=name, env={}, code="nchw()")
        return replace(measured, arms=(replace(measured.arms[0], code="nhwc()"), measured.arms[1]))

    (advice,) = advise.advise(report(experiment("layout", layout(1.3), layout(1.0, "forward"))))
    assert (advice.code, advice.in_place) == ("nhwc()", advise.BASELINE)
    assert [gain.model for gain in advice.gains] == ["training"]
    assert advice.gains[0].text.startswith("baseline x1.29 [1.27, 1.30] over arm in CPU time")
    assert advise.lines_of_code((advice,)).splitlines()[-1] == f"# in place already, {advise.BASELINE}: nhwc()"
    (advice,) = advise.advise(report(experiment("layout", layout(0.5))))
    assert (advice.code, advice.in_place) == ("nchw()", "")
    assert advise.advise(report(experiment("layout", layout(1.0)))) == ()
    assert [each.code for each in advise.advise(report(experiment("layout", layout(0.5), layout(1.3, "forward"))))] == [
        "nchw()"
    ], "one of each: no layout is the better one, and each case has its own"


def test_wall_time_is_added_where_it_shows_no_gain() -> None:
    measured = case(0.5, env={}, code="x")
    wall = Interval(median=1.0, low=0.9, high=1.1, coverage=0.96)
    arms = (measured.arms[0], replace(measured.arms[1], wall=wall))
    (advice,) = advise.advise(report(experiment("jpeg", replace(measured, arms=arms))))
    assert " in CPU time: centre (96%, 15 rounds; in wall time x1.00 [0.90, 1.10])" in advice.gains[0].text
    (advice,) = advise.advise(report(experiment("jpeg", measured)))
    assert "in wall time" not in advice.gains[0].text


def test_a_batch_size_is_advised_where_it_is_faster_than_the_smallest() -> None:
    sized = sizes(1e-3, 1e-4, 1, 2, 4, 8, 16, 32, 64, 128)
    knee = sized.arms[6]
    faster = replace(knee, effect=records.FASTER, wall=Interval(median=8.0, low=7.5, high=8.5, coverage=0.97))
    derived = findings.derive("batch_size", [sized])
    assert derived[0].values["measured_90%"] == knee.items == 64
    proved = replace(sized, arms=tuple(faster if arm is knee else arm for arm in sized.arms))
    (advice,) = advise.advise(report(experiment("batchsize", proved)))
    assert advice.code == "batch_size = 64"
    assert advice.gains[0].text.startswith("batch 64 x8.00 [7.50, 8.50] over batch 1 in wall time: dense")
    assert advice.notes == (derived[0].text,)
    assert advise.advise(report(experiment("batchsize", sized, findings=derived))) == (), "no verdict, no advice"


def test_advice_on_the_largest_batch_size_says_that_it_is_the_largest() -> None:
    sized = sizes(1e-2, 1e-5, 1, 2, 4, 8, 16, 32)
    faster = Interval(median=30.0, low=29.0, high=31.0, coverage=0.97)
    arms = tuple(replace(arm, effect=records.FASTER, wall=faster) if arm.items > 1 else arm for arm in sized.arms)
    (advice,) = advise.advise(report(experiment("batchsize", replace(sized, arms=arms))))
    assert advice.code == "batch_size = 32  # the largest one tried: more may be faster still"


# --- whole reports ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [GUIDE, MODELS], ids=["guide", "models"])
def test_a_committed_report_s_advice_does_not_contradict_itself(path: Path) -> None:
    recorded: BenchReport = reporting.read_report(path)
    advice = advise.advise(recorded)
    assert advice
    names = [name for one in advice for name in one.env]
    assert len(set(names)) == len(names), "no variable twice"
    place = current_settings.read_settings(recorded)
    for one in advice:
        if not one.in_place:
            assert not any(current_settings.alike(n, v, place.values.get(n, "-")) for n, v in one.env.items()), one
            assert not (one.env and one.losses), one
        assert one.gains
    codes = [one.code for one in advice if one.code and one.experiment != "batchsize"]
    assert len(set(codes)) == len(codes)
