"""Statistics: planted effects are found, no others are claimed, and noise alone never fails an image."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from tests import clock
from tests.measure.test_workers import Script
from tests.rows import each
from tests.verify.images import BASELINE, IMAGE, OTHER, ImageEngine, verification
from tfbuild import plan
from tfbuild.engine import WorkerDied
from tfbuild.in_container.smoke.judge import Judgement
from tfbuild.measure import evaluate, experiments
from tfbuild.measure import rounds as rounding
from tfbuild.measure.evaluate import BASE_AGAIN
from tfbuild.measure.records import Interval, Round, Sample
from tfbuild.measure.rounds import CaseRun
from tfbuild.measure.workers import Machine, Pool
from tfbuild.plan import Request
from tfbuild.verify import Verification
from tfbuild.verify.checks import throughput
from tfbuild.verify.report import Throughput

ROW = throughput.against(BASELINE)
WORKLOADS = tuple(case.workload for case in ROW.case)
INNER = 10
Rounds = Sequence[dict[str, Round]]


def rounds(
    speed: float, *, spread: float, seed: int, count: int = 9, foreign: float = 0.0, bias: float = 1.0
) -> list[dict[str, Round]]:
    """Return rounds of an image `speed` times as fast as its baseline; times scatter by `spread` (relative, normal).

    One round as a whole is up to twice as slow as another: pairing cancels that drift.
    """
    noise = random.Random(seed)

    def sample(seconds: float) -> Sample:
        cpu = seconds * max(0.1, noise.gauss(1, spread))
        return Sample(inner=INNER, wall=cpu, cpu=cpu, faults=0, rss=1.0, throttled=0)

    def row() -> dict[str, Round]:
        slow = noise.uniform(0.1, 0.2)
        times = {IMAGE: slow, OTHER: slow * speed, BASE_AGAIN: slow * bias}
        return {
            name: Round(samples={arm: sample(time) for arm, time in times.items()}, foreign=foreign)
            for name in WORKLOADS
        }

    return [row() for _ in range(count)]


def judged(rows: Rounds) -> Throughput:
    """Return the throughput that a real run with these rounds would give."""
    machine = Machine(image="sha256:1", against=BASELINE.id, cpus=2, gpus=0)
    cases = [
        CaseRun(
            row=ROW,
            case=case,
            machine=machine,
            pool=cast(Pool, None),
            tell=lambda _: None,
            rounds=[row[case.workload] for row in rows],
        )
        for case in ROW.case
    ]
    return throughput.throughput([case.result() for case in cases], BASELINE)


@pytest.mark.parametrize(
    ("speed", "word", "status"),
    [
        (1.2, "faster", "pass"),
        (1.0, "no difference shown", "pass"),
        (0.8, "slower", "fail"),
    ],
)
@pytest.mark.parametrize("seed", range(5))
def test_a_planted_effect_is_found(speed: float, word: str, status: str, seed: int) -> None:
    result = judged(rounds(speed, spread=0.01, seed=seed))
    assert result.cpu.median == pytest.approx(speed, rel=0.03)
    assert throughput.judge_speed(result).status == status
    assert result.effect == word or (speed == 1.0 and result.cpu.low > 0.97)


def test_a_pass_means_no_more_than_its_limit() -> None:
    result = judged(rounds(0.97, spread=0.005, seed=1))
    assert (result.effect, throughput.judge_speed(result).status) == ("slower", "pass")
    assert f"not shown to be more than {100 * (1 - throughput.TOO_SLOW):.0f} % slower" in throughput.CHECK.proves


def test_the_same_image_shows_no_difference_and_never_fails() -> None:
    results = [judged(rounds(1.0, spread=0.04, seed=seed)) for seed in range(200)]
    assert [result for result in results if throughput.judge_speed(result).status == "fail"] == []
    claimed = sum(result.effect != "no difference shown" for result in results)
    biased = [judged(rounds(0.93, spread=0.03, seed=seed, bias=0.93)) for seed in range(40)]
    assert "fail" not in [throughput.judge_speed(result).status for result in biased], "it differs from itself as much"
    assert claimed <= 10, "the band of the image against itself must keep false claims under one in twenty"


def test_there_is_no_verdict_if_the_image_differs_from_itself() -> None:
    result = judged(rounds(0.7, spread=0.01, seed=1, bias=0.7))
    check = throughput.judge_speed(result)
    assert check.status == "skip"
    assert "too noisy" in check.detail
    for bias in (0.9, 1.1):
        slow = throughput.judge_speed(judged(rounds(0.3, spread=0.01, seed=1, bias=bias)))
        assert slow.status == "fail", "a tenth of noise does not explain a third of the speed"


@pytest.mark.parametrize(
    ("low", "high", "slow", "noisy"),
    [
        (0.9, 0.949, True, True),
        (0.9, 0.95, False, False),
        (0.9, 1.2, False, False),
        (1.05, 1.1, False, False),
        (1.054, 1.1, False, True),
        (0.99, 1.01, False, False),
    ],
)
def test_too_slow_and_too_noisy_have_one_limit(low: float, high: float, slow: bool, noisy: bool) -> None:
    odd, even = (Interval(median=1.0, low=ends[0], high=ends[1], coverage=0.97) for ends in ((low, high), (0.99, 1.01)))
    result = judged(rounds(1.0, spread=0.01, seed=0))
    assert (throughput.judge_speed(replace(result, cpu=odd, band=even, effect="slower")).status == "fail") is slow
    assert (throughput.judge_speed(replace(result, cpu=even, band=odd)).status == "skip") is noisy


def test_the_experiment_s_own_baseline_is_what_a_build_is_compared_with() -> None:
    own = experiments.in_role("verification")
    assert own.arm[1].env == plan.select(Request(release="2.21.0", target="cpu", wheel="official"), None).untuned
    assert not own.arm[0].env
    assert any(case.quick for case in own.case)
    assert [(arm.image, arm.env) for arm in ROW.arm] == [("", {}), ("against", BASELINE.env)]


# --- the measurement, with workers that answer by the protocol --------------------------------------------------------


@pytest.fixture
def script() -> Script:
    return Script(seconds={IMAGE: 0.01, BASE_AGAIN: 0.01, OTHER: 0.02}, inner=13)


def run(script: Script) -> tuple[Judgement, Verification, ImageEngine]:
    engine = ImageEngine(script=script)
    state = verification(engine)
    with pytest.MonkeyPatch.context() as patch:
        clock.stop(patch, rounding, throughput)
        return throughput.CHECK.run(state), state, engine


def test_the_image_is_timed_against_its_baseline_and_itself(script: Script) -> None:
    check, state, engine = run(script)
    assert check.status == "pass"
    assert check.detail.startswith("faster: 2.000 [2.000, 2.000] of the baseline's speed in CPU time, 2.000 ")
    assert {*engine.images} == {"sha256:1", "sha256:2"}
    result = state.throughput
    assert result is not None
    assert (result.rounds, result.clean, result.baseline) == (throughput.ROUNDS, throughput.ROUNDS, "tfbuild:plain")
    assert [row.name for row in result.benchmarks] == [*WORKLOADS]
    assert {measure.name: measure.value for measure in check.measures} == pytest.approx(
        {"cpu_ratio": 2.0, "cpu_ratio_high": 2.0, "wall_ratio": 2.0, "band_low": 1.0, "band_high": 1.0}
    )
    assert {measure.name: measure.limit for measure in check.measures if measure.limit} == {"cpu_ratio_high": ">= 0.95"}


def test_a_machine_without_time_for_enough_rounds_gives_no_verdict(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throughput, "LONGEST", -1.0)
    monkeypatch.setattr(throughput, "SECONDS", -1.0)
    check, state, _ = run(script)
    assert (check.status, state.throughput) == ("skip", None)
    assert check.detail == "the machine is too busy: only 0 rounds fitted into -1 s"


def test_past_its_share_of_the_time_only_the_rounds_of_an_interval_are_taken(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throughput, "SECONDS", -1.0)
    check, state, _ = run(script)
    assert check.status == "pass"
    assert state.throughput is not None
    assert state.throughput.rounds == evaluate.FEWEST


@each("question", [("hello", ""), ("prepare", IMAGE), ("sample", IMAGE)])
def test_a_worker_that_dies_is_the_image_s_failure(question: tuple[str, str]) -> None:
    check, state, _ = run(Script(seconds={IMAGE: 0.01, BASE_AGAIN: 0.01, OTHER: 0.02}, dies=[question]))
    assert (check.status, state.throughput) == ("fail", None)
    assert check.detail.startswith("could not be measured: ")


def test_a_baseline_that_this_cpu_cannot_run_is_no_fault_of_the_image(script: Script) -> None:
    """An image for a CPU without AVX is compared with the official wheel's, which needs it."""
    said = "tfbuild: this CPU lacks avx, and this image (2.21.0-mkl-py3.11-f16c) was compiled for f16c"

    class Refusing(ImageEngine):
        def worker(self, ref: str, command: list[str], **more: Any) -> Any:
            if ref == BASELINE.id:
                raise WorkerDied(f"the worker ended with exit code 86 before it answered:\n{said}", code=86)
            return super().worker(ref, command, **more)

    check = throughput.CHECK.run(verification(Refusing(script=script)))
    assert (check.status, check.detail) == ("skip", f"the baseline does not start here: {said}")


def test_a_comparison_without_enough_rounds_has_no_ratio() -> None:
    with pytest.raises(ValueError, match="too few rounds for a ratio"):
        judged(rounds(1.0, spread=0.01, seed=1, count=1))


def test_wall_time_and_cpu_time_are_told_apart() -> None:
    rows = rounds(1.0, spread=0.0, seed=1)
    for row in rows:
        for name in WORKLOADS:
            sample = row[name].samples[OTHER]
            row[name].samples[OTHER] = replace(sample, wall=sample.wall * 3)
    result = judged(rows)
    assert (result.cpu.median, result.wall.median) == pytest.approx((1.0, 3.0))
    assert [row for row in result.benchmarks if (row.cpu.median, row.wall.median) != pytest.approx((1.0, 3.0))] == []
