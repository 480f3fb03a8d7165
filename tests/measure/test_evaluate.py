"""Verdicts on recorded and made-up rounds: planted differences are found, and no others."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from tfbuild.in_container.bench.worker import Ready
from tfbuild.measure import evaluate
from tfbuild.measure.evaluate import BASE_AGAIN, Evaluation, compare_arms, inverse
from tfbuild.measure.experiments import Arm, Case, Experiment
from tfbuild.measure.records import FASTER, NO_DIFFERENCE, SLOWER, ArmResult, CaseResult, Interval, Round, Sample
from tfbuild.measure.rounds import CaseRun
from tfbuild.measure.workers import Machine, Pool

RECORDED = Path(__file__).parents[1] / "data" / "bench" / "same.json"


def sample(seconds: float, inner: int = 1) -> Sample:
    return Sample(inner=inner, wall=seconds * inner, cpu=seconds * inner, faults=0, rss=1.0, throttled=0)


def recorded() -> list[Round]:
    """Rounds of one convolution against itself, as three instances, on a machine that seven others were using."""
    rows = json.loads(RECORDED.read_text())["rounds"]
    names = ("baseline", "arm", BASE_AGAIN)
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
    return evaluate.evaluate(rounds, "baseline", {"baseline": 1, "arm": 1}, metric)


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
        times = {"baseline": slow, "arm": slow * factor, BASE_AGAIN: slow}
        return Round(
            samples={name: sample(time * noise.gauss(1, spread)) for name, time in times.items()}, foreign=foreign
        )

    return [one() for _ in range(count)]


def paired(seconds: float, other: float, again: float) -> CaseResult:
    """Return a case of a baseline of 1 s, two other arms, and the baseline again."""
    noise = random.Random(3)
    times = {"baseline": 1.0, "one": seconds, "other": other, BASE_AGAIN: again}
    rounds = tuple(
        Round(samples={name: sample(time * noise.gauss(1, 0.005)) for name, time in times.items()}, foreign=0.0)
        for _ in range(15)
    )
    evaluation = evaluate.evaluate(rounds, "baseline", {"baseline": 1, "one": 1, "other": 4}, "cpu")
    arms = [
        ArmResult(name=name, workload="x", params={}, env={}, image="", status="measured", items=items)
        for name, items in (("baseline", 1), ("one", 1), ("other", 4))
    ]
    return CaseResult(
        name="x", metric="cpu", status="measured", reason="", baseline="baseline", arms=tuple(arms), rounds=rounds,
        band=evaluation.band,
    )  # fmt: skip


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


def test_too_few_rounds_give_no_number() -> None:
    arm = judged(made_up(2.0, 5)).arms["arm"]
    assert (arm.cpu, arm.wall, arm.effect) == (None, None, "")


def test_without_the_baseline_again_nothing_is_claimed() -> None:
    rounds = [
        Round(samples={k: v for k, v in row.samples.items() if k != BASE_AGAIN}, foreign=0.0) for row in made_up(2.0, 9)
    ]
    assert judged(rounds).arms["arm"].effect == ""


def test_disturbed_rounds_are_left_out_where_enough_are_clean() -> None:
    mixed = made_up(1.0, 7) + made_up(3.0, 6, foreign=0.5)
    evaluation = judged(mixed)
    assert (len(evaluation.used), evaluation.clean, evaluation.noisy) == (7, 7, False)
    assert evaluation.arms["arm"].effect == NO_DIFFERENCE
    assert judged(mixed[1:]).noisy
    assert (case(1.0).noisy, case(1.0, foreign=0.5).noisy) == (False, True)
    assert not judged(made_up(2.0, 6)).noisy, "few, and none of them disturbed"


def test_ratios_are_per_item_and_per_call() -> None:
    rounds = [
        Round(samples={"baseline": sample(0.01, 10), "arm": sample(0.02, 5), BASE_AGAIN: sample(0.01, 10)}, foreign=0.0)
        for _ in range(6)
    ]
    verdict = evaluate.evaluate(rounds, "baseline", {"baseline": 8, "arm": 32}, "wall").arms["arm"]
    assert verdict.wall is not None
    assert verdict.wall.median == pytest.approx(2.0)


# --- cases that take turns have one mean ------------------------------------------------------------------------------


MACHINE = Machine(image="sha256:1", against="", cpus=2, gpus=0)
ARMS = (Arm(name="baseline"), Arm(name="arm", process="other"))


def case(
    factor: float, count: int = 9, *, seed: int = 1, items: int = 1, base: int = 1, foreign: float = 0.0
) -> CaseResult:
    """Return a case whose arm takes `factor` of the baseline's time for a call of `items`, the baseline of `base`."""
    one = Case(name=f"{factor:g}", workload="w", arm=ARMS)
    row = Experiment(name="x", question="-", compares="-", changes="-", source="-", case=(one,))
    run = CaseRun(row=row, case=one, machine=MACHINE, pool=cast(Pool, None), tell=lambda _: None)
    run.sides[0].ready = Ready(items=base)
    run.sides[1].ready = Ready(items=items)
    run.rounds = made_up(factor, count, seed=seed, foreign=foreign)
    return run.result()


def test_the_mean_is_the_geometric_one_of_each_round() -> None:
    mean = evaluate.together([case(0.5), case(2.0, seed=2), case(0.25, seed=3)])
    assert mean is not None
    assert 1 / inverse(mean.arms["arm"].cpu).median == pytest.approx(4 ** (1 / 3), rel=0.02)
    assert (mean.arms["arm"].effect, len(mean.used), mean.clean) == ("faster", 9, 9)
    assert inverse(mean.band).median == pytest.approx(1.0, rel=0.02)


def test_an_arm_has_its_median_of_the_time_of_an_item_once_there_are_enough_rounds() -> None:
    baseline, arm = case(0.5, items=4, base=2).arms[:2]
    assert baseline.seconds is not None
    assert arm.seconds is not None
    assert 0.05 < baseline.seconds < 0.075, "made_up() takes 0.1 to 0.15 for a call of both items"
    assert arm.seconds / baseline.seconds == pytest.approx(0.25, rel=0.02)
    few = case(0.5, 5)
    assert [one.seconds for one in few.arms] == [None, None]
    assert (few.status, few.reason) == ("truncated", "only 5 rounds were completed")


def test_items_count() -> None:
    both = [case(1.0, items=4, base=2), case(1.0, items=4, base=2, seed=2)]
    assert evaluate.findings(both)[0].values["cpu"] == pytest.approx(2.0, rel=0.02)


def test_cases_without_the_same_rounds_have_no_mean() -> None:
    assert evaluate.findings([case(0.5), case(0.5, 8)]) == ()
    assert evaluate.findings([case(0.5, 1), case(0.5, 1)]) == ()
    lost = case(0.5)
    for row in lost.rounds:
        row.samples.pop("arm")
    assert evaluate.findings([case(0.5), lost]) == ()
    right, (base, arm) = case(0.5), case(0.5).arms
    assert evaluate.findings([right, right])
    assert evaluate.findings([right, replace(right, arms=(base, replace(arm, same=False)))]) == (), "something else"
    assert evaluate.findings([]) == ()


@pytest.mark.parametrize(("metric", "effect", "ratio"), [("cpu", "slower", "x0."), ("wall", "faster", "x2.0")])
def test_a_mean_is_judged_by_what_its_cases_are_timed_by(metric: str, effect: str, ratio: str) -> None:
    """An arm may need twice the CPU time and half the time by the clock, as more threads do."""

    def parallel(seed: int) -> CaseResult:
        one = case(2.0, seed=seed)
        rounds = tuple(
            replace(row, samples={**row.samples, "arm": replace(row.samples["arm"], wall=row.samples["arm"].wall / 4)})
            for row in one.rounds
        )
        return replace(one, rounds=rounds, metric=metric)

    cases = [parallel(1), parallel(2)]
    mean = evaluate.together(cases)
    assert mean is not None
    assert mean.arms["arm"].effect == effect
    (finding,) = evaluate.findings(cases)
    assert f"arm: {effect}, {ratio}" in finding.text
    assert finding.values["cpu"] == pytest.approx(0.5, rel=0.05)
    assert finding.values["wall"] == pytest.approx(2.0, rel=0.05)


# --- intervals of ratios ----------------------------------------------------------------------------------------------


def between(low: float, high: float, median: float = 1.0, coverage: float = 0.97) -> Interval:
    return Interval(median=median, low=low, high=high, coverage=coverage)


@pytest.mark.parametrize(
    ("count", "cut", "coverage"),
    # The chance that the median lies between two order statistics: binomial, as in any table of them.
    [(6, 0, 1 - 2 / 64), (8, 0, 1 - 2 / 256), (9, 1, 1 - 20 / 512), (15, 3, 1 - 2 * 576 / 2**15)],
)
def test_the_interval_is_the_narrowest_with_enough_confidence(count: int, cut: int, coverage: float) -> None:
    found = evaluate.interval([float(number) for number in reversed(range(count))])
    assert found
    assert (found.low, found.high) == (cut, count - 1 - cut)
    assert found.median == (count - 1) / 2
    assert found.coverage == pytest.approx(coverage)
    assert found.coverage >= 0.95


@pytest.mark.parametrize(
    ("ratio", "band", "effect"),
    [
        ((1.02, 1.1), (0.99, 1.01), FASTER),
        ((0.9, 0.98), (0.99, 1.01), SLOWER),
        # Within the noise of the same image, beyond 1 or not.
        ((1.01, 1.1), (0.99, 1.01), NO_DIFFERENCE),
        # A band beside 1 does not lower the limit.
        ((1.0, 1.1), (0.95, 0.97), NO_DIFFERENCE),
        ((0.9, 1.0), (1.03, 1.05), NO_DIFFERENCE),
        ((1.001, 1.1), (0.95, 0.97), FASTER),
        ((0.9, 0.999), (1.03, 1.05), SLOWER),
    ],
)
def test_a_difference_lies_beyond_1_and_beyond_the_noise(
    ratio: tuple[float, float], band: tuple[float, float], effect: str
) -> None:
    assert evaluate.effect(between(*ratio), between(*band)) == effect
    assert evaluate.effect(None, between(*band)) == evaluate.effect(between(*ratio), None) == ""


def test_an_interval_without_1_shows_none() -> None:
    assert evaluate.interval_text(between(1.004, 1.021, 1.012)) == "x1.012 [1.004, 1.021]", "faster"
    assert evaluate.interval_text(between(0.981, 0.996, 0.99)) == "x0.990 [0.981, 0.996]", "slower"
    assert evaluate.interval_text(between(0.996, 1.021)) == "x1.00 [1.00, 1.02]"


def test_an_interval_has_two_digits() -> None:
    assert evaluate.interval_text(None) == ""
    assert evaluate.interval_text(between(1.357, 1.412, 1.388)) == "x1.39 [1.36, 1.41]"
