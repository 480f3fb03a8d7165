"""Quantities in options and messages; tests/pipeline has the options that refuse them."""

from tests.rows import each
from tfbuild.util import quantities


@each(
    "text, seconds",
    [("", 0), ("5h30m", 19800), ("90m", 5400), ("90min", 5400), ("45s", 45), ("1h", 3600), ("1h2m3s", 3723)],
)
def test_a_time_limit_is_read(text: str, seconds: float) -> None:
    assert quantities.limit_seconds(text) == seconds


def test_one_is_no_plural() -> None:
    assert [quantities.counted(number, "image") for number in (0, 1, 2)] == ["0 images", "1 image", "2 images"]
