"""The support table: fresh, whole, and telling what is planned, what is refused and what was really done apart."""

from collections import Counter
from functools import cache
from pathlib import Path

from tfbuild import plan
from tfbuild.facts import releases, targets, toolchains
from tools import support
from tools.support import Combination

ROOT = Path(__file__).parents[2]


@cache
def rows() -> tuple[Combination, ...]:
    return tuple(support.rows())


def test_every_combination_is_there_once() -> None:
    keys = Counter((row.release, row.python, row.target, row.platform) for row in rows())
    assert set(keys.values()) == {1}
    pythons = sum(
        len(set(releases.pythons(release)) & set(toolchains.base_pythons())) for release in releases.newest_first()
    )
    assert len(keys) == pythons * len(targets.names()) * len(plan.PLATFORMS)


def test_nothing_is_refused() -> None:
    assert not [row for row in rows() if row.build is None]


def test_what_was_done_can_be_planned() -> None:
    keys = {(row.release, row.target, row.python, row.platform) for row in rows() if row.build}
    for one in support.evidence():
        assert (one.release, one.target, one.python, one.platform) in keys
        assert (ROOT / one.by).exists()
