"""Print tables: as wide as the terminal and in colour there, plain lines elsewhere."""

import sys
from collections.abc import Iterable
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

# Characters per line without a terminal.
PLAIN_WIDTH = 120
# The most characters that a report keeps of a text from an image.
MOST_LETTERS = 600


def printable(text: str, most: int = MOST_LETTERS) -> str:
    """Make foreign text safe for one line on a terminal: no control characters, at most `most` characters."""
    return "".join(letter if letter.isprintable() else " " for letter in text)[:most]


def markdown_cell(text: str) -> str:
    """Escape characters that would end a cell of a Markdown table, or be read as HTML."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def console(stream: IO[str] | None = None) -> "Console":
    """Return a console for `stream` (default: stdout)."""
    from rich.console import Console

    stream = stream or sys.stdout
    # What users and images name is printed as it is: `:x:` is no emoji.
    return Console(file=stream, width=None if stream.isatty() else PLAIN_WIDTH, highlight=False, emoji=False)


def table() -> "Table":
    """Return a table without lines, for things that people compare."""
    from rich.table import Table

    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")


def write(on: "Console", parts: Iterable["RenderableType"]) -> None:
    """Print the parts one below the other, without the trailing blanks of table rows.

    Text with `no_wrap` is left to the terminal to wrap, so that it can be copied in one piece.
    """
    from rich.text import Text

    with on.capture() as captured:
        for part in parts:
            on.print(part, soft_wrap=isinstance(part, Text) and bool(part.no_wrap))
    on.file.writelines(f"{line.rstrip()}\n" for line in captured.get().splitlines())
