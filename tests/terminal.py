"""What is printed on a terminal of eighty columns."""

import io
import re
from collections.abc import Callable
from typing import IO

import pytest

ANSI = re.compile(r"\x1b\[[\d;]*m")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines(show: Callable[[IO[str]], None], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the lines that `show` prints there, without their colours."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    show(stream)
    return plain(stream.getvalue()).splitlines()


def plain(text: str) -> str:
    """Return the text without colours."""
    return ANSI.sub("", text)
