"""Counts in messages; options are read in tests/pipeline."""

from tfbuild.util.quantities import counted


def test_one_is_no_plural() -> None:
    assert [counted(number, "image") for number in (0, 1, 2)] == ["0 images", "1 image", "2 images"]
