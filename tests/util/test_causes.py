"""The cause of a failure is told in the system's words."""

import socket
from pathlib import Path

import pytest
import requests

from tests.ports import free_port
from tfbuild.util.terminal import cause


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
