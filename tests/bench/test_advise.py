"""Advice from reports: what gained and never lost, and nothing without evidence."""

import random
from dataclasses import replace

import pytest

from tests.bench.test_report import case, experiment, report, sizes
from tests.measure.test_evaluate import sample
from tfbuild.bench import advise, session
from tfbuild.bench.advise import ONEDNN, PRELOAD, Advice
from tfbuild.measure import records
from tfbuild.measure.evaluate import BASE_AGAIN, evaluate
from tfbuild.measure.records import ArmResult, CaseResult, ExperimentResult, Interval, Round

TCMALLOC = "libtcmalloc_minimal.so.4"


def sides(
    name: str, *arms: tuple[str, float, dict[str, str]], code: str = "", spread: float = 0.01, metric: str = "cpu"
) -> CaseResult:
    """Return a case of these arms: name, time and environment. `code` is the last arm's."""
    noise = random.Random(name)
    times = {arm: time for arm, time, _ in arms} | {BASE_AGAIN: arms[0][1]}
    rounds = tuple(
        Round(samples={arm: sample(time * noise.gauss(1, spread)) for arm, time in times.items()}, foreign=0.0)
        for _ in range(15)
    )
    evaluation = evaluate(rounds, arms[0][0], {arm: 1 for arm, _, _ in arms}, metric)

    def result(arm: str, env: dict[str, str]) -> ArmResult:
        verdict = evaluation.arms.get(arm)
        last = code if arm == arms[-1][0] else ""
        return replace(
            case(1.0).arms[0], name=arm, env=env, params={"xla": "XLA" in arm}, cpu=verdict.cpu if verdict else None,
            wall=verdict.wall if verdict else None, effect=verdict.effect if verdict else "", code=last,
        )  # fmt: skip

    results = tuple(result(arm, env) for arm, _, env in arms)
    return replace(
        case(1.0, metric=metric), name=name, baseline=arms[0][0], arms=results, rounds=rounds, band=evaluation.band
    )


def switched(name: str, off: float, on: float) -> CaseResult:
    return sides(name, ("oneDNN off", off, {ONEDNN: "0"}), ("oneDNN on", on, {ONEDNN: "1"}))


def allocators(name: str, glibc: float, tcmalloc: float, switch: str = "1") -> CaseResult:
    env = {ONEDNN: switch}
    return sides(name, ("glibc", glibc, {**env, PRELOAD: ""}), ("TCMalloc", tcmalloc, {**env, PRELOAD: TCMALLOC}))


def of_image(env: dict[str, str] | None, *rows: ExperimentResult) -> tuple[Advice, ...]:
    """Return the advice for an image that sets these variables."""
    measured = report(*rows)
    return advise.advise(replace(measured, image=replace(measured.image, env=env)))


def lines(advices: tuple[Advice, ...]) -> list[str]:
    return [one.line for one in advices]


ON, OFF = "TF_ENABLE_ONEDNN_OPTS=1", "TF_ENABLE_ONEDNN_OPTS=0"
GAINED, LOST, MIXED = [(2.0, 1.0), (1.2, 1.0)], [(1.0, 1.5), (1.0, 1.0)], [(1.0, 1.5), (1.5, 1.0)]


def test_a_setting_with_which_a_case_crashed_is_not_advised() -> None:
    image, ran = {ONEDNN: "1"}, [allocators(name, 2.0, 1.0) for name in ("a", "b")]
    crashed = replace(ran[1], arms=(ran[1].arms[0], replace(ran[1].arms[1], status="failed")))
    assert lines(of_image(image, experiment("allocator", *ran))) == [f"LD_PRELOAD={TCMALLOC}"]
    assert lines(of_image(image, experiment("allocator", ran[0], crashed))) == []


# --- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("times", "image", "expected"),
    [
        (GAINED, {ONEDNN: "0"}, [ON]),
        (GAINED, {}, [ON]),  # off by default on this CPU
        (GAINED, {ONEDNN: "1"}, []),  # in place
        (GAINED, {ONEDNN: "True"}, []),
        (GAINED, {ONEDNN: "false"}, [ON]),
        (LOST, {ONEDNN: "1"}, [OFF]),
        (LOST, {ONEDNN: "0"}, []),
        (MIXED, {ONEDNN: "0"}, []),
        (MIXED, {ONEDNN: "1"}, []),
    ],
)
def test_a_setting_is_advised_if_it_gained_over_what_is_in_place_and_never_lost(
    times: list[tuple[float, float]], image: dict[str, str], expected: list[str]
) -> None:
    cases = (switched(f"case {number}", off, on) for number, (off, on) in enumerate(times))
    assert lines(of_image(image, experiment("onednn", *cases))) == expected


def test_what_tensorflow_chooses_by_itself_is_in_place() -> None:
    original = report(experiment("onednn", switched("conv", 2.0, 1.0)))
    newer = replace(original, host=replace(original.host, flags=("avx", "avx512_vnni")))
    assert lines(advise.advise(newer)) == []
    older = replace(newer, software=replace(original.software, tensorflow="2.8.4"))
    assert lines(advise.advise(older)) == [ON], "on by default from 2.9"
    for machine, remark in (("x86_64", ""), ("aarch64", advise.UNKNOWN_DEFAULT)):
        (advice,) = advise.advise(replace(original, host=replace(original.host, machine=machine)))
        assert (advice.line, advice.remark) == (ON, remark), "a Neoverse V1 has it on by default from 2.14"


def test_cases_in_another_environment_than_the_image_s_are_no_evidence() -> None:
    row = experiment("allocator", allocators("off", 2.0, 1.0, "0"), allocators("on", 1.0, 1.0, "1"))
    assert of_image({ONEDNN: "1"}, row) == ()
    assert lines(of_image({ONEDNN: "0"}, row)) == [f"LD_PRELOAD={TCMALLOC}"]


def test_a_library_is_the_same_wherever_it_lies() -> None:
    image = {ONEDNN: "1", PRELOAD: "/usr/lib/libx.so:/usr/local/lib/libtcmalloc_minimal.so"}
    assert of_image(image, experiment("allocator", allocators("large", 2.0, 1.0))) == ()
    assert lines(of_image(image, experiment("allocator", allocators("large", 1.0, 1.5)))) == ["LD_PRELOAD="]


def test_a_setting_of_an_allocator_that_the_image_replaces_is_advised_with_that_allocator() -> None:
    tuned = {PRELOAD: "", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    arms = ("glibc", 2.0, {PRELOAD: ""}), ("huge pages", 1.0, tuned), ("TCMalloc", 2.0, {PRELOAD: TCMALLOC})
    measured = experiment("allocator", sides("large", *arms))
    assert lines(of_image({}, measured)) == ["GLIBC_TUNABLES=glibc.malloc.hugetlb=1"]
    (line,) = lines(of_image({PRELOAD: "libjemalloc.so.2"}, measured))
    assert line == "GLIBC_TUNABLES=glibc.malloc.hugetlb=1 LD_PRELOAD="


def threads(name: str, one: float, *, spread: float = 0.01) -> CaseResult:
    return sides(name, ("the default", 1.0, {}), ("intra-op 1", one, {"TF_NUM_INTRAOP_THREADS": "1"}), spread=spread)


def test_a_setting_that_may_cost_a_tenth_somewhere_is_refused() -> None:
    steady = experiment("threads", threads("block", 0.7), threads("conv", 1.0))
    assert lines(of_image({}, steady)) == ["TF_NUM_INTRAOP_THREADS=1"]
    wide = threads("conv", 1.0, spread=0.4)
    assert wide.arms[1].effect == records.NO_DIFFERENCE
    assert of_image({}, experiment("threads", threads("block", 0.7), wide)) == ()
    few = threads("conv", 2.0)
    arm = replace(few.arms[1], status=records.TRUNCATED, cpu=None, wall=None, effect="")
    few = replace(few, status=records.TRUNCATED, arms=(few.arms[0], arm), rounds=few.rounds[:5], band=None)
    assert of_image({}, experiment("threads", threads("block", 0.7), few)) == (), "five rounds exclude nothing"


def test_what_another_experiment_saw_of_a_setting_counts() -> None:
    gained = experiment("onednn", switched("conv", 2.0, 1.0))
    (advice,) = of_image({}, gained, experiment("models", switched("ResNet-50", 1.5, 1.0)))
    assert [gain.experiment for gain in advice.gains] == ["onednn", "models"]
    assert of_image({}, gained, experiment("models", switched("ResNet-50", 1.0, 1.4))) == ()
    more = sides("all", ("before", 1.0, {ONEDNN: "0"}), ("after", 1.4, {ONEDNN: "1", PRELOAD: "libx.so"}))
    assert lines(of_image({}, gained, experiment("all", more))) == [ON], "more than the setting differs there"


def test_each_variable_is_advised_once_by_its_largest_gain() -> None:
    two = sides("x", ("default", 2.0, {}), ("1", 1.5, {"TF_THREADS": "1"}), ("4", 1.0, {"TF_THREADS": "4"}))
    assert lines(of_image({}, experiment("threads", two))) == ["TF_THREADS=4"]


def test_an_image_that_is_slower_for_its_tuning_is_advised_against() -> None:
    def taken_away(time: float, name: str = "conv") -> CaseResult:
        return sides(name, ("as it is", 1.0, {}), ("without", time, {PRELOAD: "", ONEDNN: ""}), code="# env -u")

    image = {PRELOAD: "libtcmalloc.so", ONEDNN: "1"}
    (advice,) = of_image(image, experiment("tuning", taken_away(0.8), taken_away(1.0, "matmul")))
    assert (advice.line, advice.remark) == ("LD_PRELOAD= TF_ENABLE_ONEDNN_OPTS=", "env -u")
    assert of_image(image, experiment("tuning", taken_away(0.8), taken_away(1.3, "matmul"))) == ()


def test_of_an_image_only_what_the_experiments_set_is_recorded() -> None:
    lines = ["PATH=/usr/bin", "LD_PRELOAD=/usr/lib/libtcmalloc.so", "TOKEN=secret", "TF_ENABLE_ONEDNN_OPTS="]
    assert session.recorded_settings(lines) == {PRELOAD: "/usr/lib/libtcmalloc.so"}


# --- lines of code ---------------------------------------------------------------------------------------------------


def test_a_line_of_code_that_lost_somewhere_is_not_advised() -> None:
    gained = (case(0.5, name="adds", env={}, code="jit  # where"), case(0.6, name="chain", env={}, code="jit  # where"))
    (advice,) = advise.advise(report(experiment("xla", *gained)))
    assert (advice.line, advice.remark) == ("jit", "where")
    assert [gain.case.name for gain in advice.gains] == ["adds", "chain"]
    assert advise.advise(report(experiment("xla", *gained, case(1.3, name="conv", env={}, code="jit")))) != ()
    assert advise.advise(report(experiment("xla", *gained, case(1.3, name="conv", env={}, code="jit  # where")))) == ()
    assert advise.advise(report(experiment("xla", *gained, case(1.3, name="conv", env={})))) == (), "an arm of its name"
    different = replace(gained[0], arms=(gained[0].arms[0], replace(gained[0].arms[1], same=False)))
    assert advise.advise(report(experiment("xla", different))) == ()


def test_of_two_lines_a_model_gets_the_better_one() -> None:
    def forms(name: str, block: float, unrolled: float) -> CaseResult:
        measured = sides(name, ("loop", 1.0, {}), ("unrolled", unrolled, {}), ("block", block, {}))
        arms = (replace(arm, code=arm.name, params={"kind": arm.name}) for arm in measured.arms)
        return replace(measured, arms=tuple(arms))

    row = experiment("rnn", forms("small", 0.3, 0.6), forms("middle", 0.4, 0.5), forms("large", 0.9, 0.5))
    advices = [(one.line, [gain.case.name for gain in one.gains]) for one in advise.advise(report(row))]
    assert advices == [("block", ["small", "middle"]), ("unrolled", ["large"])]


def test_what_the_environment_gains_is_not_the_line_s() -> None:
    alone = sides("block", ("oneDNN off", 2.0, {ONEDNN: "0"}), ("XLA", 1.0, {ONEDNN: "1"}), code="jit")
    assert of_image({ONEDNN: "1"}, experiment("models", alone)) == (), "nothing has the same environment"
    three = sides(
        "block", ("off", 2.0, {ONEDNN: "0"}), ("on", 1.4, {ONEDNN: "1"}), ("XLA", 1.0, {ONEDNN: "1"}), code="jit"
    )
    (advice,) = of_image({ONEDNN: "1"}, experiment("models", three))
    assert (advice.line, advice.gains[0].other.name, round(advice.gains[0].median, 1)) == ("jit", "on", 1.4)


def test_a_gain_says_how_sure_it_is() -> None:
    measured = case(0.5, env={}, code="x")
    (seen,) = advise.advise(report(experiment("jpeg", measured)))
    assert seen.gains[0].doubt == ""
    for middle in (1.0, 0.6):
        wall = Interval(median=middle, low=middle - 0.1, high=middle + 0.1, coverage=0.96)
        arms = (measured.arms[0], replace(measured.arms[1], wall=wall, error=0.0015))
        (unseen,) = advise.advise(report(experiment("jpeg", replace(measured, arms=arms))))
        shown = f"in wall time x{middle:.2f} [{wall.low:.2f}, {wall.high:.2f}]; error 1.5e-03"
        assert unseen.gains[0].doubt == shown, "not to be seen by the clock, or a loss"


# --- whole reports ---------------------------------------------------------------------------------------------------


def doing(measured: CaseResult, workload: str, **params: bool) -> CaseResult:
    return replace(measured, arms=tuple(replace(arm, workload=workload, params={**params}) for arm in measured.arms))


def test_what_a_program_can_expect_most_of_is_first() -> None:
    sometimes = (case(0.4, name="a", env={}, code="sometimes"), case(1.0, name="b", env={}, code="sometimes"))
    computed = [
        experiment("xla", *(doing(one, "mlp") for one in sometimes)),
        experiment("jpeg", doing(case(0.5, env={}, code="always"), "mlp")),
    ]
    fast = case(0.02, env={}, code="cache()")
    for input_alone in (doing(fast, "pipeline"), doing(fast, "decode")):
        assert lines(of_image({}, experiment("files", input_alone), *computed)) == ["always", "sometimes", "cache()"]
    with_step = experiment("files", doing(fast, "pipeline", step=True))
    assert lines(of_image({}, with_step, *computed)) == ["cache()", "always", "sometimes"]


# --- batch sizes -----------------------------------------------------------------------------------------------------


def swept(*batches: int, b: float = 1e-4) -> CaseResult:
    """Return a sweep in which every batch is surely faster than the first."""
    sized = sizes(1e-3, b, *batches)
    faster = Interval(median=8.0, low=7.5, high=8.5, coverage=0.97)
    arms = tuple(replace(arm, effect=records.FASTER, wall=faster) if arm.items > 1 else arm for arm in sized.arms)
    return replace(sized, arms=arms)


@pytest.mark.parametrize(
    ("sweeps", "expected"),
    [
        ([(1, 16, 64, 128), (1, 32, 64, 128)], ("batch_size = 64", "")),
        ([(1, 32, 64), (1, 64, 128)], ("batch_size = 64", "the largest one tried for (1, 32, 64); more may be faster")),
    ],
)
def test_one_batch_size_is_advised_for_all_models(sweeps: list[tuple[int, ...]], expected: tuple[str, str]) -> None:
    cases = [replace(swept(*batches), name=str(batches)) for batches in sweeps]
    slow = experiment("jpeg", case(0.9, env={}, code="first()"))
    first, advice = advise.advise(report(experiment("batchsize", *cases), slow))
    assert first.line == "first()", "what costs nothing is before it"
    assert (advice.line, advice.remark, len(advice.gains)) == (*expected, 2)
    assert advise.advise(report(experiment("batchsize", swept(1, 2), swept(4, 8)))) == (), "none was tried for both"
    apart = swept(1, 16, 64), swept(1, 16, 128)
    assert advise.advise(report(experiment("batchsize", *apart))) == (), "16 is too small for either"
    unsure = sizes(1e-3, 1e-4, 1, 2, 4, 8, 16, 32, 64)
    assert advise.advise(report(experiment("batchsize", unsure))) == (), "no verdict, no advice"


@pytest.mark.parametrize(
    "rows",
    [
        (experiment("jpeg", case(1.0, env={}, code="x")),),
        (experiment("jpeg", case(0.5, count=4, env={}, code="x")),),
        (replace(experiment("layout", case(0.5, env={})), cases=()),),
    ],
    ids=["code without gain", "too few rounds", "no case"],
)
def test_nothing_is_advised_without_evidence(rows: tuple[ExperimentResult, ...]) -> None:
    assert advise.advise(report(*rows)) == ()
