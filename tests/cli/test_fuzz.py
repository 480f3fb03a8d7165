"""Hostile values of every option: each command ends with a documented code, one message, and no file but its own."""

import itertools
import socket
import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.cli import hostile
from tests.cli.hostile import Pair, Place
from tests.rows import each
from tfbuild.engine import daemon

# --- every option of every verb ---------------------------------------------------------------------------------------

# In turn, so that all values are used, and that an option of several verbs meets several of them. A switch takes none.
TABLE = tuple(zip(hostile.EVERY, itertools.cycle(hostile.HOSTILE), strict=False))


@pytest.fixture
def place() -> Iterator[Place]:
    with hostile.place() as new:
        yield new


@each("pair, value", TABLE)
def test_every_option_of_every_verb_takes_a_hostile_value(pair: Pair, value: str, place: Place) -> None:
    hostile.try_pair(pair, value, place)


@pytest.mark.nightly
@each("pair, value", itertools.product(hostile.EVERY, (*hostile.HOSTILE, *hostile.LIKELY)))
def test_every_option_of_every_verb_takes_every_hostile_value(pair: Pair, value: str, place: Place) -> None:
    hostile.try_pair(pair, value, place)


def test_no_verb_and_no_option_is_left_out_of_the_table() -> None:
    tried = {(pair.verb.name, pair.option) for pair, _ in TABLE if pair.option}
    assert tried == {(name, option) for name, verb in hostile.VERBS.items() for option in verb.options}
    assert {"engine", "test", "generate"} <= hostile.VERBS.keys() == {pair.verb.name for pair, _ in TABLE}
    assert {value for _, value in TABLE} == set(hostile.HOSTILE)


def test_what_a_command_does_is_seen(place: Place) -> None:
    """That the table's tests can fail: a file elsewhere, a program, a network, and a command without an end."""
    with hostile.watched() as watch:
        (place.root / "elsewhere").touch()
        (place.work / "own").write_text("x")
        subprocess.run(["true"], check=True)
        with pytest.raises(OSError, match="no network"):
            socket.create_connection(("localhost", 1))
    assert watch.outside((place.work,)) == {str(place.root / "elsewhere")}
    assert len(watch.started) == 1
    with pytest.raises(hostile.TooLong), hostile.limited(1):
        time.sleep(30)
    with pytest.raises(AssertionError, match="would be installed"), hostile.disarmed(place.root):
        daemon._script("start")
