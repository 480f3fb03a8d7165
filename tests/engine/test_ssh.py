"""Engines behind ssh: which addresses there are, and why one does not answer (tests/with_engine has a real sshd)."""

import pytest

from tfbuild.engine import connection, ssh
from tfbuild.engine.ssh import Destination
from tfbuild.errors import UsageError


@pytest.mark.parametrize(
    ("address", "destination"),
    [
        ("ssh://web1", Destination(host="web1")),
        ("ssh://root@web-1.example.org/", Destination(host="root@web-1.example.org")),
        ("ssh://me@10.0.0.1:65535", Destination(host="me@10.0.0.1", port=65535)),
        (
            "ssh://[::1]:22/run/user/1000/docker.sock",
            Destination(host="::1", port=22, socket="/run/user/1000/docker.sock"),
        ),
    ],
)
def test_an_address_is_a_host_with_a_user_a_port_and_a_socket(address: str, destination: Destination) -> None:
    assert ssh.destination(address) == destination


@pytest.mark.parametrize(
    "address",
    ["ssh://", "ssh://-oProxyCommand=id", "ssh://a b", "ssh://h:65536", "ssh://a;b", "ssh://h/a:b",
     "ssh://web\N{CYRILLIC SMALL LETTER ER}"],
)  # fmt: skip
def test_only_a_valid_host_is_passed_to_ssh(address: str) -> None:
    for read in (ssh.destination, connection.choose):
        with pytest.raises(UsageError, match="names no ssh host"):
            read(address)


def test_a_changed_host_key_is_distinguished_from_an_unknown_one() -> None:
    last = "Host key verification failed."
    assert ssh.reason(f"a banner\n{last}\n\n") == last
    changed = ssh.reason(f"@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\n{last}\n")
    assert "accept it once" in ssh.advice("ssh://web1", last)
    assert "find out why" in ssh.advice("ssh://web1", changed)
    assert "its engine is down" in ssh.advice("ssh://web1", ssh.reason(""))
