"""Make foreign text and errors safe to print, and print tables: in colour on a terminal, or as plain lines."""

import os
import re
import sys
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal
from urllib.parse import unquote, urlsplit

from tfbuild.errors import conceal, without_secrets

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

# Piped output is not wrapped: programs that read it, such as grep, expect one line a row.
PLAIN_WIDTH = 100_000
# The most characters that a report keeps of a text from an image.
MOST_LETTERS = 600


def printable(text: str, most: int = MOST_LETTERS) -> str:
    """Make foreign text safe for one line: without secrets and control characters, at most `most` characters."""
    return "".join(letter if letter.isprintable() else " " for letter in without_secrets(text))[:most]


def as_text(labels: object) -> dict[str, str]:
    """Return labels as texts that can be written as UTF-8; {} if `labels` is not a mapping."""

    def text(value: object) -> str:
        # JSON can hold halves of surrogate pairs.
        return str(value).encode(errors="replace").decode()

    return {text(name): text(value) for name, value in labels.items()} if isinstance(labels, Mapping) else {}


def markdown_cell(text: str) -> str:
    """Escape characters that would end a cell of a Markdown table, or be read as HTML."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def foreign_cell(text: str) -> str:
    """Escape a text by others for a Markdown table: it has no links, code or emphasis either."""
    return re.sub(r"([`*_\[\]])", r"\\\1", markdown_cell(text.replace("&", "&amp;")))


def cause(error: BaseException) -> str:
    """Return the reason of the system error inside `error`, such as "Connection refused" without "[Errno 111]".

    If there is none, return the text of `error`.
    """
    return next(filter(None, map(_reason, _chain(error))), "") or str(error) or type(error).__name__


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and those inside it, the outermost first: of requests, of urllib3, the socket's own."""
    chain: list[BaseException] = [error]
    for inner in chain:
        yield inner
        within = (inner.__cause__, inner.__context__, *inner.args)
        chain += [part for part in within if isinstance(part, BaseException) and part not in chain]


def _reason(error: BaseException) -> str:
    # Imported here, because most commands meet no error.
    import http.client
    import ssl

    if isinstance(error, ssl.SSLCertVerificationError):
        return str(error.verify_message)
    if isinstance(error, ssl.SSLError):
        return str(error.reason or "").replace("_", " ").lower()
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, http.client.IncompleteRead):
        return "the connection ended early"
    if isinstance(error, http.client.RemoteDisconnected):
        return "the connection ended without an answer"
    if isinstance(error, http.client.BadStatusLine):
        return "it does not speak HTTP"
    if isinstance(error, OSError) and isinstance(error.errno, int):
        return error.strerror or ""
    return ""


def width(plain: int = PLAIN_WIDTH, stream: IO[str] | None = None) -> int:
    """Return how many characters a line of `stream` (default: stdout) has; `plain` if it is not a terminal."""
    if not (stream or sys.stdout).isatty():
        return plain
    import shutil

    return shutil.get_terminal_size().columns


def two_columns(rows: Iterable[tuple[str, str]]) -> list[str]:
    """Return the lines of a table of names and values; a long value fills several lines.

    Not by Rich: `tfbuild plan` would spend a quarter of its time on importing and using it.
    """
    rows = list(rows)
    first = max(len(name) for name, _ in rows) + 2
    folded = textwrap.TextWrapper(width=max(width() - first, 1), break_on_hyphens=False).wrap
    lines = []
    for name, value in rows:
        wrapped = folded(without_secrets(value))
        lines += [f"{title:{first}}{line}".rstrip() for title, line in zip_longest([name], wrapped, fillvalue="")]
    return lines


def table(titles: Sequence[str] = (), rows: Iterable[Sequence[str]] = (), *, figures: Collection[str] = ()) -> "Table":
    """Return a table without lines, for things that people compare; `figures`: the columns of numbers."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for title in titles:
        number = title in figures
        justify: Literal["left", "right"] = "right" if number else "left"
        table.add_column(title, overflow="fold", justify=justify, no_wrap=number, min_width=len(title))
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def rendered(parts: Iterable["RenderableType"], stream: IO[str] | None = None) -> str:
    """Return the parts one below the other, as text for `stream`, without the trailing blanks of table rows.

    Text with `no_wrap` is left to the terminal to wrap, so that it can be copied in one piece.
    """
    from rich.console import Console
    from rich.text import Text

    stream = stream or sys.stdout
    # Names by users and images are printed as they are: `:x:` is not an emoji.
    on = Console(file=stream, width=None if stream.isatty() else PLAIN_WIDTH, highlight=False, emoji=False)
    with on.capture() as captured:
        for part in parts:
            on.print(part, soft_wrap=isinstance(part, Text) and bool(part.no_wrap))
    return "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())


# --- logins ----------------------------------------------------------------------------------------------------------


def conceal_logins(environ: Mapping[str, str] = os.environ) -> None:
    """Hide the logins that requests sends by itself, in everything that is printed: a server may repeat them."""
    import base64

    for name, secret in (*_of_proxies(environ), *_of_netrc(environ)):
        encoded = (f"{name}:{secret}".encode(code, "replace") for code in ("utf-8", "latin-1"))
        conceal(name, secret, *(base64.b64encode(login).decode() for login in encoded))


def _of_proxies(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for variable, value in environ.items():
        if variable.lower().endswith("_proxy"):
            with suppress(ValueError):
                address = urlsplit(value if "://" in value else f"//{value}")
                if address.password:
                    yield unquote(address.username or ""), unquote(address.password)
                    yield address.username or "", address.password


def _of_netrc(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    import netrc

    for name in (environ["NETRC"],) if environ.get("NETRC") else ("~/.netrc", "~/_netrc"):
        with suppress(OSError, RuntimeError, ValueError, netrc.NetrcParseError):
            path = Path(name).expanduser()
            if path.is_file():
                for login, account, password in netrc.netrc(str(path)).hosts.values():
                    yield login or account or "", password or ""
