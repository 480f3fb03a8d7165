"""Text of a report on a page: escaped, with code as code."""

import pytest

from tfbuild.pages import prose


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a < b", "a &lt; b"),
        ("set `x=1` and `y`", "set <code>x=1</code> and <code>y</code>"),
        ("`<script>` it", "<code>&lt;script&gt;</code> it"),
        ("one ` alone <b>", "one ` alone &lt;b&gt;"),
        ("", ""),
    ],
)
def test_only_code_becomes_an_element(text: str, shown: str) -> None:
    assert prose(text) == shown
