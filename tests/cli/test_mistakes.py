"""Each mistake in the transcript gets the message and the exit code that are written there."""

import re
from pathlib import Path

import pytest

from tests.cli import mistakes
from tests.cli.mistakes import Mistake
from tests.rows import each

# What only a programmer of tfbuild understands.
PYTHON = re.compile(
    r"Traceback|\[Errno|\bNone\b|\bTrue\b|\bFalse\b|Error\(|urllib3|HTTPConnection|object at 0x|PosixPath"
)
EVERY = tuple(mistakes.mistakes())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mistakes").resolve()
    mistakes.prepare(path)
    return path


@pytest.mark.parametrize("mistake", EVERY, ids=lambda mistake: mistake.line)
def test_a_mistake_is_answered_as_written_down(mistake: Mistake, folder: Path) -> None:
    assert mistake.say(folder) == mistake.said


@each("said", [mistake.said for mistake in EVERY])
def test_an_answer_says_what_to_do_and_shows_no_python(said: str) -> None:
    *text, code = said.splitlines()
    assert code != "exit code 0"
    assert any(line.startswith("error: ") for line in text)
    assert any(line.startswith("hint: ") for line in text)
    assert not PYTHON.search(said)


def test_there_are_enough_of_them_and_none_twice() -> None:
    lines = [mistake.line for mistake in EVERY]
    assert len(set(lines)) == len(lines)
    assert len(lines) >= 180
