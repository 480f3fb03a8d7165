"""Hosts that ssh reaches: their names, and why one failed."""

import pytest

from tests.rows import each
from tfbuild.errors import UsageError
from tfbuild.util import ssh
from tfbuild.util.ssh import Destination


@pytest.mark.parametrize(
    ("text", "destination"),
    [
        ("ssh://web1", Destination(host="web1")),
        ("ssh web1", Destination(host="web1")),
        ("ssh   root@web-1.example.org", Destination(host="root@web-1.example.org")),
        ("ssh://me@10.0.0.1:65535", Destination(host="me@10.0.0.1", port=65535)),
        ("ssh://me@web1/", Destination(host="me@web1")),
        ("ssh://[::1]:22", Destination(host="::1", port=22)),
    ],
)
def test_destinations(text: str, destination: Destination) -> None:
    assert ssh.destination(text) == destination


@each("text", ["ssh://web1", "ssh://me@10.0.0.1:2222"])
def test_a_destination_is_named_as_it_is_given(text: str) -> None:
    assert str(ssh.destination(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "ssh://",
        "ssh -oProxyCommand=id x",
        "ssh://-oProxyCommand=id",
        "ssh a b",
        "ssh://h:65536",
        "ssh://a;b",
        "ssh://web\N{CYRILLIC SMALL LETTER ER}",
        "web3",
        "",
    ],
)
def test_only_a_valid_host_is_passed_to_ssh(text: str) -> None:
    with pytest.raises(UsageError, match="names no ssh host"):
        ssh.destination(text)


def test_a_changed_host_key_is_distinguished_from_an_unknown_one() -> None:
    last = "Host key verification failed."
    assert ssh.reason(f"a banner\n{last}\n", 255) == last
    changed = ssh.reason(f"@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\n{last}\n", 255)
    where = Destination(host="web1")
    assert "accept it once" in ssh.advice(where, last, "x")
    assert "find out why" in ssh.advice(where, changed, "x")


def test_an_end_without_output_says_who_ended() -> None:
    assert ssh.reason("\n", 255) == "ssh ended with 255"
    assert ssh.reason("", 3) == "the command there ended with 3"
