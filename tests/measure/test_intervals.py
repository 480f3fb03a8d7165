"""Intervals of ratios, means of them, and documents: the numbers, worked out by hand, and the limits of the words."""

import math
import random
from dataclasses import dataclass
from statistics import NormalDist

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfbuild.measure import intervals, records
from tfbuild.measure.intervals import CaseRatio
from tfbuild.measure.records import FASTER, NO_DIFFERENCE, SLOWER, Interval


def between(low: float, high: float, median: float = 1.0, coverage: float = 0.97) -> Interval:
    return Interval(median=median, low=low, high=high, coverage=coverage)


# --- one case ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "cut", "coverage"),
    # The chance that the median lies between two order statistics: binomial, as in any table of them.
    [(6, 0, 1 - 2 / 64), (8, 0, 1 - 2 / 256), (9, 1, 1 - 20 / 512), (15, 3, 1 - 2 * 576 / 2**15)],
)
def test_the_interval_is_the_narrowest_with_enough_confidence(count: int, cut: int, coverage: float) -> None:
    found = intervals.interval([float(number) for number in reversed(range(count))])
    assert found
    assert (found.low, found.high) == (cut, count - 1 - cut)
    assert found.median == (count - 1) / 2
    assert found.coverage == pytest.approx(coverage)
    assert found.coverage >= 0.95


def test_the_interval_of_few_ratios_is_their_range() -> None:
    assert intervals.interval([]) is intervals.interval([1.0]) is None
    assert intervals.interval([1.0, 3.0]) == between(1.0, 3.0, 2.0, 0.5)
    assert intervals.interval([3.0, 1.0, 2.0, 4.0, 5.0]) == between(1.0, 5.0, 3.0, 1 - 2 / 32)
    six = intervals.interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    assert six == between(1.0, 6.0, 3.5, 1 - 2 / 64)


@given(st.lists(st.floats(0.01, 100), min_size=6, max_size=40))
def test_the_interval_contains_its_median(ratios: list[float]) -> None:
    interval = intervals.interval(ratios)
    assert interval
    assert min(ratios) <= interval.low <= interval.median <= interval.high <= max(ratios)
    assert interval.coverage >= 0.95


def test_the_interval_covers_the_true_ratio_as_often_as_it_says() -> None:
    noise = random.Random(5)
    hits = 0
    for _ in range(1000):
        interval = intervals.interval([math.exp(noise.gauss(0, 0.1)) for _ in range(9)])
        assert interval
        hits += interval.low <= 1 <= interval.high
    assert 940 <= hits <= 980


@pytest.mark.parametrize(
    ("ratio", "band", "effect"),
    [
        ((1.02, 1.1), (0.99, 1.01), FASTER),
        ((0.9, 0.98), (0.99, 1.01), SLOWER),
        # Within the noise of the same image, beyond 1 or not.
        ((1.01, 1.1), (0.99, 1.01), NO_DIFFERENCE),
        ((0.9, 0.99), (0.99, 1.01), NO_DIFFERENCE),
        ((1.005, 1.1), (0.99, 1.01), NO_DIFFERENCE),
        # A band beside 1 does not lower the limit.
        ((0.98, 1.1), (0.95, 0.97), NO_DIFFERENCE),
        ((0.9, 1.02), (1.03, 1.05), NO_DIFFERENCE),
        ((1.0, 1.1), (0.95, 0.97), NO_DIFFERENCE),
        ((0.9, 1.0), (1.03, 1.05), NO_DIFFERENCE),
        ((1.001, 1.1), (0.95, 0.97), FASTER),
        ((0.9, 0.999), (1.03, 1.05), SLOWER),
    ],
)
def test_a_difference_lies_beyond_1_and_beyond_the_noise(
    ratio: tuple[float, float], band: tuple[float, float], effect: str
) -> None:
    assert intervals.effect(between(*ratio), between(*band)) == effect
    unsure = between(*ratio, coverage=0.94)
    assert intervals.effect(unsure, between(*band)) == NO_DIFFERENCE
    assert intervals.effect(between(*ratio), between(*band, coverage=0.94)) == NO_DIFFERENCE
    assert intervals.effect(None, between(*band)) == intervals.effect(between(*ratio), None) == NO_DIFFERENCE


def test_confidence_is_spelled_where_it_is_less_than_usual() -> None:
    assert intervals.interval_text(None) == ""
    assert intervals.interval_text(between(1.357, 1.412, 1.388, 0.95)) == "x1.39 [1.36, 1.41]"
    assert intervals.interval_text(between(1.0, 2.0, 1.5, 0.75)) == "x1.50 [1.00, 2.00] at 75%"
    assert intervals.sure(between(1, 2, coverage=0.95))
    assert not intervals.sure(between(1, 2, coverage=0.9499))
    assert not intervals.sure(None)


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
    assert intervals.too_slow(between(low, high)) is slow
    assert intervals.too_noisy(between(low, high)) is noisy


# --- means ------------------------------------------------------------------------------------------------------------


def row(experiment: str, case: str, median: float, *, coverage: float = 0.97) -> CaseRatio:
    ratio = between(median / 1.1, median * 1.2, median, coverage)
    return CaseRatio(experiment=experiment, case=case, ratio=ratio)


def test_the_ends_of_a_quotient_add_up_like_errors() -> None:
    above, below = between(2.0, 8.0, 4.0, 0.97), between(1.0, 3.0, 2.0, 0.96)
    ratio = intervals.quotient(above, below)
    assert ratio.median == pytest.approx(2.0)
    assert ratio.high == pytest.approx(2 * math.exp(math.hypot(math.log(2), math.log(2))))
    assert ratio.low == pytest.approx(2 * math.exp(-math.hypot(math.log(2), math.log(1.5))))
    assert ratio.coverage == 0.96


def test_the_ratio_of_two_medians_has_the_confidence_that_it_says() -> None:
    """The times have a long tail; each median is of fifteen rounds."""
    chance, repeats = random.Random(5), 400

    def run() -> list[float]:
        return [math.exp(chance.gauss(0, 0.1)) + (chance.random() < 0.2) * chance.expovariate(2) for _ in range(15)]

    wrong = 0
    for _ in range(repeats):
        first, second = intervals.interval(run()), intervals.interval(run())
        assert first
        assert second
        ratio = intervals.quotient(first, second)
        wrong += not ratio.low <= 1 <= ratio.high
    assert wrong <= 0.05 * repeats


def test_a_mean_counts_each_experiment_once() -> None:
    """Six experiments or more; one with many cases weighs no more than the others."""
    medians = {"a": 1.0, "b": 2.0, "c": 1.0, "d": 2.0, "e": 1.0, "f": 2.0}
    parts = [row(name, "c", median) for name, median in medians.items()]
    found = intervals.total([*parts, *(row("b", f"more {number}", 2.0) for number in range(20))])
    assert found is not None
    assert found.median == pytest.approx(math.sqrt(2))
    logs = [math.log(median) for median in medians.values()]
    deviation = math.sqrt(sum((log - math.log(2) / 2) ** 2 for log in logs) / 5)
    half = intervals.students_t(5) * deviation / math.sqrt(6)
    assert found.low == pytest.approx(math.sqrt(2) * math.exp(-half))
    assert found.high == pytest.approx(math.sqrt(2) * math.exp(half))
    assert found.coverage == 0.95


def test_few_experiments_count_by_their_cases() -> None:
    parts = [row("a", "c", 1.0), row("a", "c", 4.0), row("a", "d", 8.0, coverage=0.6)]
    found = intervals.total(parts)
    assert found is not None
    # Two rows of one case are one of two groups.
    assert found.median == pytest.approx(4.0)
    assert (found.low, found.high) == pytest.approx((4 / 1.1, 4 * 1.2))
    assert found.coverage == 0.6
    assert intervals.total([]) is None
    six_cases = [row("a", str(number), 2.0) for number in range(6)]
    spread = intervals.total(six_cases)
    assert spread is not None
    assert (spread.low, spread.median, spread.high) == pytest.approx((2.0, 2.0, 2.0))
    five = intervals.total([row(str(number), "c", 2.0) for number in range(5)])
    assert five is not None
    assert five.high == pytest.approx(2.4)


def test_an_interval_is_widened_by_how_the_others_drift() -> None:
    ratio = between(0.9, 1.2, 1.0, 0.97)
    others = [between(0.9, 1.1, math.exp(drift)) for drift in (-0.2, -0.1, -0.1, 0.1, 0.1, 0.2)]
    assert intervals.widen_by_drift(ratio, others[:5]) == ratio
    found = intervals.widen_by_drift(ratio, others)
    # The median deviation from the median, 0.1, as a normal distribution's standard deviation.
    drift = intervals.students_t(5) * 1.4826 * 0.1
    assert found.high == pytest.approx(math.exp(math.hypot(math.log(1.2), drift)))
    assert found.low == pytest.approx(math.exp(-math.hypot(math.log(1 / 0.9), drift)))
    assert (found.median, found.coverage) == (1.0, 0.97)
    # One real change among them is no drift.
    still = [between(0.9, 1.1, 1.0)] * 7
    found = intervals.widen_by_drift(ratio, [*still, between(4, 6, 5.0)])
    assert (found.low, found.high) == pytest.approx((0.9, 1.2))


def test_the_smallest_slowdown_that_shows_depends_on_the_width() -> None:
    normal = NormalDist()
    widths = 1 + normal.inv_cdf(0.8) / normal.inv_cdf(0.975)
    assert intervals.detectable_slowdown(between(0.9, 1.1, 1.0)) == pytest.approx(1.1**-widths)
    assert intervals.detectable_slowdown(between(0.9, 1.0, 1.0)) == 1.0


def test_student_s_t_is_that_of_the_tables() -> None:
    for freedom, known in ((5, 2.571), (9, 2.262), (10**6, 1.960)):
        assert intervals.students_t(freedom) == pytest.approx(known, rel=2e-3)
    # The more degrees of freedom, the less the formula leaves out.
    assert intervals.students_t(30) == pytest.approx(2.0422725, rel=5e-6)
    assert intervals.students_t(17) == pytest.approx(2.1098156, rel=2e-5)


# --- documents --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Small:
    schema: str
    number: int


def test_a_document_is_read_back_and_nothing_else() -> None:
    small = Small(schema="tfbuild.small/1", number=3)
    text = records.to_json(small)
    assert text == '{\n  "schema": "tfbuild.small/1",\n  "number": 3\n}\n'

    def read(content: str | bytes) -> Small:
        return records.from_json(content, Small, "tfbuild.small/1", "a small one")

    assert read(text) == read(text.encode()) == small
    for broken in ("", "{}", '{"schema": "tfbuild.small/1", "number": "3"}', "[" * 100_000):
        with pytest.raises(ValueError, match="not a small one: "):
            read(broken)
    with pytest.raises(ValueError, match=r"a report of schema 'tfbuild\.small/2', not 'tfbuild\.small/1'"):
        read(text.replace("/1", "/2"))


def test_a_schema_has_its_name_and_the_version_of_its_language() -> None:
    text = records.json_schema(Small, "tfbuild.small/1")
    assert text.endswith("}\n")
    schema = msgspec.json.decode(text)
    assert (schema["title"], schema["$schema"]) == (
        "tfbuild.small/1", "https://json-schema.org/draft/2020-12/schema"
    )  # fmt: skip
    assert list(schema) == sorted(schema)
    assert schema["$defs"]["Small"]["required"] == ["schema", "number"]
