"""The support table: nothing is refused, and what was really done can be planned."""

from tests.commandline import ROOT
from tools import support


def test_nothing_is_refused_and_what_was_done_can_be_planned() -> None:
    rows = list(support.rows())
    assert not [row for row in rows if row.build is None]
    keys = {(row.release, row.target, row.python, row.platform) for row in rows}
    for one in support.evidence():
        assert (one.release, one.target, one.python, one.platform) in keys
        assert (ROOT / one.by).exists()
