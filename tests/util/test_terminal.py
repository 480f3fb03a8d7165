"""Text on a terminal is what it was, without the markup and the pictures that rich knows."""

import io

import pytest

from tfbuild.util import terminal


@pytest.mark.parametrize("value", ["tfbuild:fire:1", "a:x:b", ":warning:"])
def test_a_name_between_colons_is_no_emoji(value: str) -> None:
    stream = io.StringIO()
    table = terminal.table()
    table.add_row("image", value)
    terminal.write(terminal.console(stream), [table])
    assert stream.getvalue().split() == ["image", value]
