"""Any values of any options: each command ends with a documented code, one message, and no file but its own."""

import itertools
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from inspect import Parameter, signature
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cli import hostile
from tests.cli.hostile import Pair, Place
from tests.cli.test_bad_input import NO_ENGINE
from tests.commandline import answer
from tests.rows import each
from tfbuild import cli
from tfbuild.cli.verbs import Verb
from tfbuild.engine import daemon

# It installs one. It is disarmed in the table below.
LEFT_OUT = ("engine",)
VERBS = {name: verb for name, verb in cli.VERBS.items() if name not in LEFT_OUT}
VALUES = st.one_of(
    st.sampled_from((*hostile.HOSTILE, *hostile.LIKELY)), st.text(max_size=20).filter(lambda text: "\0" not in text)
)


@st.composite
def commands(draw: st.DrawFn) -> list[str]:
    """A verb with some of its options, and its positional words."""
    verb: Verb = draw(st.sampled_from(list(VERBS.values())))
    words = [verb.name]
    chosen = draw(st.lists(st.sampled_from(sorted(verb.options)), max_size=3, unique=True)) if verb.options else []
    for option in chosen:
        switch = verb.options[option].switch
        words.append(f"--{option}" if switch else f"--{option}={draw(VALUES)}")
    positional = [
        parameter for parameter in signature(verb.body).parameters.values()
        if parameter.kind is Parameter.POSITIONAL_OR_KEYWORD
    ]  # fmt: skip
    return [*words, *(draw(VALUES) for _ in positional)]


@given(commands())
def test_no_command_line_ends_in_a_traceback_or_writes_elsewhere(words: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder, "a", "work")
        work.mkdir(parents=True)
        done = answer(*words, cwd=work, env={**NO_ENGINE, "TFBUILD_REGISTRY": ""})
        assert done.returncode in hostile.CODES, done.stderr
        written = {path.relative_to(folder).parts[:3] for path in Path(folder).rglob("*") if path.is_file()}
        # The value of --output may lead elsewhere.
        output = any(word.startswith("--output=") for word in words)
        assert output or all(parts[:2] == ("a", "work") for parts in written), written
        assert not list(Path(folder).rglob("pwned"))
        lines = done.stderr.splitlines()
        assert "Traceback" not in done.stderr
        assert all(line.isprintable() or "\t" in line for line in lines), done.stderr
        assert done.stderr.count("error: ") <= 1 or done.returncode == 1, done.stderr


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
