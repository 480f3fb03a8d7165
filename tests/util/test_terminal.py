"""Text on a terminal is what it was, and the cause of a failure is in the system's words."""

import io
import re
import socket
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import requests

from tests.servers import running, self_signed
from tests.terminal import Terminal
from tfbuild.util import terminal
from tfbuild.util.terminal import cause


def coloured(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal with colours, twenty columns wide, in place of stdout."""
    stdout = Terminal()
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setattr(sys, "stdout", stdout)
    return stdout


@pytest.mark.parametrize("value", ["a:fire:1", "a:x:b", ":warning:"])
def test_a_name_between_colons_is_neither_an_emoji_nor_coloured(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stdout, table = coloured(monkeypatch), terminal.table()
    table.add_row("image", value)
    print(terminal.rendered([value, table]), end="")
    assert stdout.getvalue().startswith(f"{value}\n")
    assert stdout.getvalue().endswith(f"\nimage  {value}\n")


def test_a_table_has_a_line_for_each_row_and_its_columns_stand_apart() -> None:
    rows = [("web1", "3"), ("web22", "40")]
    table = terminal.table(("host", "cpus"), rows, figures=("cpus",))
    assert terminal.rendered([table], io.StringIO()).splitlines() == ["host   cpus", "web1      3", "web22    40"]


def test_what_is_too_wide_for_a_terminal_is_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert terminal.two_columns([("name", "x " * 100)]) == ["name  " + " ".join(["x"] * 100)]
    coloured(monkeypatch)
    head, *rows = terminal.rendered(
        [terminal.table(("host", "cpus"), [("x" * 16, "4")], figures=("cpus",))]
    ).splitlines()
    assert head.startswith("\x1b[2mhost ")
    assert rows == ["x" * 14 + "     4", "xx"]
    assert terminal.two_columns([("name", "one two three-four")]) == ["name  one two", "      three-four"]
    assert terminal.two_columns([("a", "b"), ("name", "one two 14-columns")])[1:] == [
        "name  one two",
        "      14-columns",
    ]
    monkeypatch.setenv("COLUMNS", "3")
    assert terminal.two_columns([("name", "ab")]) == ["name  a", "      b"]


def test_a_text_by_others_fits_one_line_and_can_be_written() -> None:
    assert terminal.printable("a\x1b\n" + "x" * 1000) == "a  " + "x" * 597
    assert terminal.as_text({"a": "\ud800", 1: None}) == {"a": "?", "1": "None"}
    assert terminal.as_text(["a"]) == {}


def test_a_server_that_never_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(requests.exceptions.ReadTimeout) as error:
            requests.get(f"http://127.0.0.1:{port}/", timeout=0.1)
    assert cause(error.value) == "no answer in time"


def test_a_server_that_speaks_no_tls_or_has_a_certificate_of_its_own(tmp_path: Path) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    with running(server):
        with pytest.raises(requests.exceptions.SSLError) as error:
            requests.get(f"https://127.0.0.1:{server.server_port}/", timeout=5)
        assert re.fullmatch(r"wrong version number|record layer failure", cause(error.value))
        server.socket = self_signed(tmp_path).wrap_socket(server.socket, server_side=True)
        with pytest.raises(requests.exceptions.SSLError) as error:
            requests.get(f"https://127.0.0.1:{server.server_port}/", timeout=5)
        assert cause(error.value) == "self-signed certificate"
        server.shutdown()


def test_any_other_error_keeps_its_text() -> None:
    assert cause(ValueError("two words")) == "two words"
    assert cause(ValueError()) == "ValueError"


def test_a_text_by_others_is_neither_markup_nor_html_in_a_report() -> None:
    written = terminal.foreign_cell("a|b [x](y) `c` *d* _e_ <f> &lt; \\ g\nh")
    assert written == r"a\|b \[x\](y) \`c\` \*d\* \_e\_ &lt;f> &amp;lt; \\ g h"
