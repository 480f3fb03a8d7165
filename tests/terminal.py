"""What is printed on a terminal of eighty columns."""

import io
from collections.abc import Callable
from typing import IO

import pytest
from rich.text import Text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines(show: Callable[[IO[str]], None], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the lines that `show` prints there, without their colours."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    show(stream)
    return Text.from_ansi(stream.getvalue()).plain.splitlines()
