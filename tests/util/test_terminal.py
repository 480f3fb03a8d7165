"""Text on a terminal is what it was, and the cause of a failure is in the system's words."""

import errno
import io
import socket
from pathlib import Path

import pytest
import requests

from tests.ports import free_port
from tfbuild.util import terminal
from tfbuild.util.terminal import cause


@pytest.mark.parametrize("value", ["tfbuild:fire:1", "a:x:b", ":warning:"])
def test_a_name_between_colons_is_no_emoji(value: str) -> None:
    stream = io.StringIO()
    table = terminal.table()
    table.add_row("image", value)
    terminal.write(terminal.console(stream), [table])
    assert stream.getvalue().split() == ["image", value]


def test_a_table_has_a_line_for_each_row_and_its_columns_stand_apart() -> None:
    stream = io.StringIO()
    rows = [("web1", "3"), ("web22", "40")]
    terminal.write(terminal.console(stream), [terminal.table(("host", "cpus"), rows, figures=("cpus",))])
    assert stream.getvalue().splitlines() == ["host   cpus", "web1      3", "web22    40"]


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(FileNotFoundError) as error:
        Path("/nonexistent/x").read_text()
    assert cause(error.value) == "No such file or directory"


def test_a_server_that_is_not_there() -> None:
    with pytest.raises(requests.exceptions.ConnectionError) as error:
        requests.get(f"http://127.0.0.1:{free_port()}/", timeout=5)
    assert "urllib3" in repr(error.value) or "Pool" in str(error.value)
    assert cause(error.value) == "Connection refused"


def test_a_server_that_never_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(requests.exceptions.ReadTimeout) as error:
            requests.get(f"http://127.0.0.1:{port}/", timeout=0.1)
    assert cause(error.value) == "no answer in time"


def test_any_other_error_keeps_its_text() -> None:
    assert cause(ValueError("two words")) == "two words"
    assert cause(ValueError()) == "ValueError"


def test_a_cause_is_looked_for_in_the_reason_of_an_error_too() -> None:
    """As urllib.error.URLError has it."""
    error = ValueError("outer")
    error.reason = ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")  # type: ignore[attr-defined]
    assert cause(error) == "Connection refused"


def test_a_text_by_others_is_neither_markup_nor_html_in_a_report() -> None:
    written = terminal.foreign_cell("a|b [x](y) `c` *d* _e_ <f> &lt; \\ g\nh")
    assert written == r"a\|b \[x\](y) \`c\` \*d\* \_e\_ &lt;f> &amp;lt; \\ g h"
