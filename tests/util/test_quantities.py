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


@each("text, size", [("40", 40 * 10**9), ("0", 0), ("", None)])
def test_gigabytes_are_read(text: str, size: int | None) -> None:
    assert quantities.gigabytes(text) == size


@each("text", ["²", "-1", "1.5", "many"])
def test_invalid_gigabytes_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        quantities.gigabytes(text)


def test_one_is_no_plural() -> None:
    assert [quantities.counted(number, "image") for number in (0, 1, 2)] == ["0 images", "1 image", "2 images"]
