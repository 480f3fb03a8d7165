"""Tables for people: as wide as the terminal and in colour on one, plain lines elsewhere."""

import sys
from collections.abc import Iterable
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

# Characters in a line where there is no terminal to say.
PLAIN_WIDTH = 120
# What a report keeps of a text from an image.
MOST_LETTERS = 600


def printable(text: str, most: int = MOST_LETTERS) -> str:
    """Make somebody else's words fit for a line on a terminal: no control characters, at most `most` characters."""
    return "".join(letter if letter.isprintable() else " " for letter in text)[:most]


def markdown_cell(text: str) -> str:
    """Escape what would end a cell of a Markdown table, or be taken for HTML."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def console(stream: IO[str] | None = None) -> "Console":
    """What draws on `stream` (default: stdout)."""
    from rich.console import Console

    stream = stream or sys.stdout
    return Console(file=stream, width=None if stream.isatty() else PLAIN_WIDTH, highlight=False)


def write(on: "Console", parts: Iterable["RenderableType"]) -> None:
    """The parts, one below the other, without the blanks that fill a table's lines up.

    A text that is not to be wrapped is left to the terminal, so that what is copied from it stays in one piece.
    """
    from rich.text import Text

    with on.capture() as captured:
        for part in parts:
            on.print(part, soft_wrap=isinstance(part, Text) and bool(part.no_wrap))
    on.file.writelines(f"{line.rstrip()}\n" for line in captured.get().splitlines())
