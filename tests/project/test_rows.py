"""A test of many rows fails if one of them does, and names each that does."""

from pathlib import Path

import pytest

from tests.rows import each


def test_every_combination_runs_and_each_failing_row_is_named(tmp_path: Path) -> None:
    seen = []

    @each("left", ["a", "b"])
    @each("right, much", [("x", 1), ("y", 2)])
    def check(left: str, right: str, much: int, tmp_path: Path) -> None:
        seen.append((left, right, much, tmp_path))
        assert (left, right) not in {("a", "y"), ("b", "x")}

    with pytest.raises(ExceptionGroup) as failure:
        check(tmp_path=tmp_path)
    assert seen == [("a", "x", 1, tmp_path), ("a", "y", 2, tmp_path), ("b", "x", 1, tmp_path), ("b", "y", 2, tmp_path)]
    assert failure.value.message == "2 of 4 rows fail: left=a, right=y, much=2; left=b, right=x, much=1"
    assert [error for error in failure.value.exceptions if not isinstance(error, AssertionError)] == []


def test_a_row_in_which_nothing_is_raised_is_named_like_any_other() -> None:
    @each("text", ["x", "1", "y", "2"])
    def check(text: str) -> None:
        with pytest.raises(ValueError, match="invalid literal"):
            int(text)

    with pytest.raises(BaseExceptionGroup, match=r"2 of 4 rows fail: text=1; text=2"):
        check()
