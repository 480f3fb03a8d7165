"""Verdicts on recorded and made-up rounds: planted differences are found, and no others."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from tfbuild.measure.evaluate import AGAIN, Evaluation, compare_arms, evaluate
from tfbuild.measure.records import FASTER, NO_DIFFERENCE, SLOWER, ArmResult, CaseResult, Round, Sample

RECORDED = Path(__file__).parents[1] / "data" / "bench" / "same.json"


def sample(seconds: float, inner: int = 1) -> Sample:
    return Sample(inner=inner, wall=seconds * inner, cpu=seconds * inner, faults=0, rss=1.0, throttled=0)


def recorded() -> list[Round]:
    """Rounds of one convolution against itself, as three instances, on a machine that seven others were using."""
    rows = json.loads(RECORDED.read_text())["rounds"]
    names = ("baseline", "arm", AGAIN)
    return [
        Round(
            samples={
                name: Sample(inner=1, wall=wall, cpu=cpu, faults=0, rss=1.0, throttled=0)
                for name, (wall, cpu) in zip(names, row["samples"], strict=True)
            },
            foreign=row["foreign"],
        )
        for row in rows
    ]


def slowed(row: Round, factor: float) -> Round:
    raw = row.samples["arm"]
    arm = Sample(inner=1, wall=raw.wall * factor, cpu=raw.cpu * factor, faults=0, rss=1.0, throttled=0)
    return Round(samples={**row.samples, "arm": arm}, foreign=row.foreign)


def judged(rounds: list[Round], metric: str = "cpu") -> Evaluation:
    return evaluate(rounds, "baseline", {"baseline": 1, "arm": 1}, metric)


@pytest.mark.parametrize("metric", ["cpu", "wall"])
def test_the_same_shows_no_difference_in_19_of_20_repeats(metric: str) -> None:
    """Draw fifteen of the recorded rounds two hundred times, with their real noise."""
    rounds, chance = recorded(), random.Random(1)
    assert len(rounds) >= 45
    claimed = 0
    for _ in range(200):
        verdict = judged(chance.sample(rounds, 15), metric).arms["arm"]
        claimed += verdict.effect != NO_DIFFERENCE
    assert claimed <= 10


def test_a_planted_fifth_is_found_in_real_noise() -> None:
    rounds, chance = [slowed(row, 1.2) for row in recorded()], random.Random(2)
    effects = [judged(chance.sample(rounds, 21)).arms["arm"].effect for _ in range(100)]
    assert FASTER not in effects
    assert effects.count(SLOWER) >= 50


def made_up(factor: float, count: int, *, spread: float = 0.01, foreign: float = 0.0, seed: int = 1) -> list[Round]:
    """Return rounds in which the arm takes `factor` of the baseline's time, on a machine that drifts by half."""
    noise = random.Random(seed)

    def one() -> Round:
        slow = noise.uniform(0.1, 0.15)
        times = {"baseline": slow, "arm": slow * factor, AGAIN: slow}
        return Round(
            samples={name: sample(time * noise.gauss(1, spread)) for name, time in times.items()}, foreign=foreign
        )

    return [one() for _ in range(count)]


def paired(seconds: float, other: float, again: float) -> CaseResult:
    """Return a case of a baseline of 1 s, two other arms, and the baseline again."""
    noise = random.Random(3)
    times = {"baseline": 1.0, "one": seconds, "other": other, AGAIN: again}
    rounds = tuple(
        Round(samples={name: sample(time * noise.gauss(1, 0.005)) for name, time in times.items()}, foreign=0.0)
        for _ in range(15)
    )
    evaluation = evaluate(rounds, "baseline", {"baseline": 1, "one": 1, "other": 4}, "cpu")
    arms = [
        ArmResult(name=name, workload="x", params={}, env={}, image="", status="measured", items=items)
        for name, items in (("baseline", 1), ("one", 1), ("other", 4))
    ]
    return CaseResult(
        name="x",
        metric="cpu",
        status="measured",
        reason="",
        baseline="baseline",
        arms=tuple(arms),
        rounds=rounds,
        band=evaluation.band,
    )


def test_any_two_arms_are_compared_round_by_round() -> None:
    case = paired(2.0, 4.0, 1.0)
    _, one, other = case.arms
    verdict = compare_arms(case, other, one)
    assert verdict.cpu is not None
    assert verdict.cpu.median == pytest.approx(2.0, rel=0.02), "4 items in 4 s against 1 in 2 s"
    assert verdict.effect == FASTER
    assert compare_arms(case, one, other).effect == SLOWER
    assert compare_arms(case, replace(one, effect=FASTER), case.arms[0]).effect == FASTER, "as recorded"
    assert compare_arms(replace(case, rounds=()), other, one).cpu is None


def test_which_of_two_equals_is_slower_is_chance() -> None:
    """If the baseline again is slower by a quarter, an arm that differs by less may be chance too."""
    case = paired(1.2, 4.0, 1.25)
    _, one, other = case.arms
    assert case.band is not None
    assert case.band.high < 1
    assert compare_arms(case, other, one).effect == NO_DIFFERENCE
    assert compare_arms(paired(1.2, 4.0, 1.0), other, one).effect == FASTER
    case = paired(1.2, 4.0, 0.8)
    _, one, other = case.arms
    assert case.band is not None
    assert case.band.low > 1
    assert compare_arms(case, one, other).effect == NO_DIFFERENCE
    assert compare_arms(paired(1.2, 4.0, 1.0), one, other).effect == SLOWER


def test_too_few_rounds_give_what_they_have_and_claim_nothing() -> None:
    evaluation = judged(made_up(2.0, 3))
    arm = evaluation.arms["arm"]
    assert arm.cpu is not None
    assert (arm.cpu.coverage, arm.effect) == (0.75, NO_DIFFERENCE)
    assert judged(made_up(2.0, 1)).arms["arm"].cpu is None


def test_without_the_baseline_again_nothing_is_claimed() -> None:
    rounds = [
        Round(samples={k: v for k, v in row.samples.items() if k != AGAIN}, foreign=0.0) for row in made_up(2.0, 9)
    ]
    assert judged(rounds).arms["arm"].effect == NO_DIFFERENCE


def test_disturbed_rounds_are_left_out_where_enough_are_clean() -> None:
    mixed = made_up(1.0, 7) + made_up(3.0, 6, foreign=0.5)
    evaluation = judged(mixed)
    assert (len(evaluation.used), evaluation.clean, evaluation.noisy) == (7, 7, False)
    assert evaluation.arms["arm"].effect == NO_DIFFERENCE
    assert judged(mixed[1:]).noisy
    assert not judged(made_up(2.0, 6)).noisy, "few, and none of them disturbed"


def test_ratios_are_per_item_and_per_call() -> None:
    rounds = [
        Round(samples={"baseline": sample(0.01, 10), "arm": sample(0.02, 5), AGAIN: sample(0.01, 10)}, foreign=0.0)
        for _ in range(6)
    ]
    verdict = evaluate(rounds, "baseline", {"baseline": 8, "arm": 32}, "wall").arms["arm"]
    assert verdict.wall is not None
    assert verdict.wall.median == pytest.approx(2.0)
