"""Intervals of ratios, and documents: the numbers, worked out by hand, and the limits of the words."""

import math
import random
from dataclasses import dataclass

import pytest

from tfbuild.measure import evaluate, records
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
    found = evaluate.interval([float(number) for number in reversed(range(count))])
    assert found
    assert (found.low, found.high) == (cut, count - 1 - cut)
    assert found.median == (count - 1) / 2
    assert found.coverage == pytest.approx(coverage)
    assert found.coverage >= 0.95


def test_the_interval_of_few_ratios_is_their_range() -> None:
    assert evaluate.interval([]) is evaluate.interval([1.0]) is None
    assert evaluate.interval([1.0, 3.0]) == between(1.0, 3.0, 2.0, 0.5)
    assert evaluate.interval([3.0, 1.0, 2.0, 4.0, 5.0]) == between(1.0, 5.0, 3.0, 1 - 2 / 32)
    six = evaluate.interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    assert six == between(1.0, 6.0, 3.5, 1 - 2 / 64)


def test_the_interval_covers_the_true_ratio_as_often_as_it_says() -> None:
    noise = random.Random(5)
    hits = 0
    for _ in range(1000):
        interval = evaluate.interval([math.exp(noise.gauss(0, 0.1)) for _ in range(9)])
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
    assert evaluate.effect(between(*ratio), between(*band)) == effect
    unsure = between(*ratio, coverage=0.94)
    assert evaluate.effect(unsure, between(*band)) == NO_DIFFERENCE
    assert evaluate.effect(between(*ratio), between(*band, coverage=0.94)) == NO_DIFFERENCE
    assert evaluate.effect(None, between(*band)) == evaluate.effect(between(*ratio), None) == NO_DIFFERENCE


def test_confidence_is_spelled_where_it_is_less_than_usual() -> None:
    assert evaluate.interval_text(None) == ""
    assert evaluate.interval_text(between(1.357, 1.412, 1.388, 0.95)) == "x1.39 [1.36, 1.41]"
    assert evaluate.interval_text(between(1.0, 2.0, 1.5, 0.75)) == "x1.50 [1.00, 2.00] at 75%"
    assert evaluate.sure(between(1, 2, coverage=0.95))
    assert not evaluate.sure(between(1, 2, coverage=0.9499))
    assert not evaluate.sure(None)


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
    assert evaluate.too_slow(between(low, high)) is slow
    assert evaluate.too_noisy(between(low, high)) is noisy


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
