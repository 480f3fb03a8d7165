"""Quantities in options and messages; tests/pipeline has the options that refuse them."""

import pytest

from tests.rows import each
from tfbuild.errors import UsageError
from tfbuild.util import quantities


@each(
    "text, seconds",
    [("", 0), ("5h30m", 19800), ("90m", 5400), ("90min", 5400), ("45s", 45), ("1h", 3600), ("1h2m3s", 3723)],
)
def test_a_time_limit_is_read(text: str, seconds: float) -> None:
    assert quantities.limit_seconds(text) == seconds


@each(
    "text, why, instead",
    [
        ("90", "has no unit", "90m, or 90h for hours"),
        ("5x", "cannot be read", "5h30m"),
        ("0h", "cannot be read", "5h30m"),
    ],
)
def test_what_is_not_a_time_limit_is_refused_with_what_to_type(text: str, why: str, instead: str) -> None:
    with pytest.raises(UsageError) as refusal:
        quantities.limit_seconds(text)
    assert (refusal.value.reason, refusal.value.hint) == (f"--time-limit {text!r} {why}", f"--time-limit {instead}")


@each("text, size", [("40", 40 * 10**9), ("0", 0), ("", None)])
def test_gigabytes_are_read(text: str, size: int | None) -> None:
    assert quantities.gigabytes(text) == size


def test_one_is_no_plural() -> None:
    assert [quantities.counted(number, "image") for number in (0, 1, 2)] == ["0 images", "1 image", "2 images"]


@each(
    "text, why, instead",
    [
        ("0", "must be a positive integer", "3"),
        ("1000000", "is more than 999999", "3"),
        ("08", "must be a positive integer", "3"),
        ("8 cores", "must be a positive integer", "8"),
        ("", "must be a positive integer", "3"),
    ],
)
def test_what_is_not_a_count_is_refused_with_the_reason_and_a_number_to_type(text: str, why: str, instead: str) -> None:
    with pytest.raises(UsageError) as refusal:
        quantities.positive("jobs", text)
    assert refusal.value.reason == f"--jobs {text!r} {why}"
    assert refusal.value.hint == f"--jobs {instead}"
