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


@each("text", ["90", "5x", "0h"])
def test_what_is_not_a_time_limit_is_refused_with_what_to_type(text: str) -> None:
    with pytest.raises(UsageError) as refusal:
        quantities.limit_seconds(text)
    assert repr(text) in refusal.value.reason
    assert refusal.value.hint == "--time-limit 5h30m"


def test_one_is_no_plural() -> None:
    assert [quantities.counted(number, "image") for number in (0, 1, 2)] == ["0 images", "1 image", "2 images"]


@each("text", ["0", "1000000", "08", "8 cores", ""])
def test_what_is_not_a_count_is_refused_with_a_number_to_type(text: str) -> None:
    with pytest.raises(UsageError) as refusal:
        quantities.positive("jobs", text)
    assert repr(text) in refusal.value.reason
    assert refusal.value.hint == "--jobs 3"
