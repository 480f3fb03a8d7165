"""Hostile values of every option: each command ends with a documented code, one message, and no file but its own."""

import itertools

import pytest

from tests.cli import hostile
from tests.cli.hostile import Pair, Place
from tests.cli.hostile import place as place
from tests.rows import each

# --- every option of every verb ---------------------------------------------------------------------------------------

# In turn, so that all values are used, and that an option of several verbs meets several of them. A switch takes none.
TABLE = tuple(zip(hostile.EVERY, itertools.cycle(hostile.HOSTILE), strict=False))


@each("pair, value", TABLE)
def test_every_option_of_every_verb_takes_a_hostile_value(pair: Pair, value: str, place: Place) -> None:
    hostile.try_pair(pair, value, place)


@pytest.mark.nightly
@each("pair, value", itertools.product(hostile.EVERY, (*hostile.HOSTILE, *hostile.LIKELY)))
def test_every_option_of_every_verb_takes_every_hostile_value(pair: Pair, value: str, place: Place) -> None:
    hostile.try_pair(pair, value, place)
