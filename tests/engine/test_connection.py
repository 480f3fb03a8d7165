"""Which engine is used, by the environment and by contexts of the real `docker` program."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.commandline import executable
from tests.servers import self_signed
from tfbuild.engine import Engine, connection
from tfbuild.engine.connection import SOCKET, Endpoint
from tfbuild.errors import EngineMissing, UsageError

ADDRESS = "tcp://10.0.0.1:2376"


@pytest.fixture(scope="module")
def environ(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Contexts as `docker context create` makes them, without a config.json."""
    docker = shutil.which("docker") or pytest.skip("no docker program here")
    folder = tmp_path_factory.mktemp("docker")
    self_signed(folder)
    ca, pair = f"ca={folder}/x.pem", f"cert={folder}/x.pem,key={folder}/key.pem"
    endpoints = {
        "far": "ssh://builder", "near": "unix:///run/near.sock", "bare": "tcp://10.0.0.1:2375",
        "ca-alone": f"{ADDRESS},{ca}", "trusting": f"{ADDRESS},skip-tls-verify=true", "tls": f"{ADDRESS},{ca},{pair}",
    }  # fmt: skip
    environ = {"PATH": os.environ["PATH"], "HOME": str(folder), "DOCKER_CONFIG": str(folder / "config")}
    for name, endpoint in endpoints.items():
        command = [docker, "context", "create", name, "--docker", f"host={endpoint}"]
        subprocess.run(command, env=environ, check=True, capture_output=True)
    return environ


@pytest.mark.parametrize(
    ("variables", "address", "local"),
    [
        ({}, SOCKET, True),
        ({"PATH": "/nowhere"}, SOCKET, True),
        ({"DOCKER_CONTEXT": "default"}, SOCKET, True),
        ({"DOCKER_CONTEXT": "far"}, "ssh://builder", False),
        ({"DOCKER_CONTEXT": "near"}, "unix:///run/near.sock", True),
        ({"DOCKER_HOST": "tcp://b:1", "DOCKER_CONTEXT": "far"}, "tcp://b:1", False),
    ],
)
def test_the_address_takes_precedence_over_the_context(
    environ: dict[str, str], variables: dict[str, str], address: str, local: bool
) -> None:
    endpoint = connection.endpoint(environ | variables)
    assert (endpoint.address, endpoint.local, endpoint.tls) == (address, local, None)


def test_the_current_context_is_used(environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`docker context use` stores it; its engine is elsewhere, though no variable says so."""
    shutil.copytree(environ["DOCKER_CONFIG"], tmp_path / "config")
    (tmp_path / "config" / "config.json").write_text('{"currentContext": "far"}')
    monkeypatch.delenv("DOCKER_HOST")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "config"))
    assert connection.elsewhere("")
    (tmp_path / "config" / "config.json").write_text('{"currentContext": "absent"}')
    with pytest.raises(EngineMissing, match=r"Docker's current context cannot be used: .*absent"):
        connection.endpoint(os.environ)
    with pytest.raises(EngineMissing, match="there is no Docker context 'nobody'"):
        connection.elsewhere("nobody")
    monkeypatch.setenv("DOCKER_CONTEXT", "gone")
    named = [connection.elsewhere(name) for name in ("near", "unix:///x", "ssh://web1")]
    assert named == [False, False, True], "what is not named is not looked for"


def test_a_context_needs_the_docker_program(environ: dict[str, str]) -> None:
    with pytest.raises(EngineMissing, match="none is on PATH"):
        connection.endpoint(environ | {"DOCKER_CONTEXT": "near", "PATH": "/nowhere"})


def test_podman_in_the_place_of_docker_s_program_has_no_contexts(tmp_path: Path) -> None:
    executable(tmp_path / "docker", 'test "$1" = --version && echo podman version 4.3.1')
    assert connection.endpoint({"PATH": str(tmp_path)}) == connection.HERE


@pytest.mark.parametrize(
    ("name", "client", "verify"), [("tls", True, True), ("ca-alone", False, True), ("trusting", False, False)]
)
def test_a_context_uses_its_own_tls_files(environ: dict[str, str], name: str, client: bool, verify: bool) -> None:
    # The TLS variables belong to DOCKER_HOST and do not apply to a context.
    others = {"DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": "/nowhere"}
    tls = connection.endpoint(environ | others | {"DOCKER_CONTEXT": name}).tls
    assert tls is not None
    assert (tls.cert is not None, bool(tls.verify)) == (client, verify)
    assert tls.ca_cert is None or Path(tls.ca_cert).is_relative_to(environ["DOCKER_CONFIG"])
    assert connection.endpoint(environ | others | {"DOCKER_CONTEXT": "bare"}).tls is None


def test_the_environment_s_tls_is_for_tcp_only(environ: dict[str, str], tmp_path: Path) -> None:
    for name in ("ca.pem", "cert.pem", "key.pem"):
        (tmp_path / name).write_text("PEM")
    variables = {"DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": str(tmp_path)}
    tls = connection.endpoint(environ | variables | {"DOCKER_HOST": "tcp://b:2376"}).tls
    assert tls is not None
    assert tls.ca_cert == str(tmp_path / "ca.pem")
    assert connection.endpoint(environ | variables | {"DOCKER_HOST": "unix:///x"}).tls is None
    # Certificates alone do not enable TLS, as with Docker's own client.
    certificates_only = {**variables, "DOCKER_TLS_VERIFY": "", "DOCKER_HOST": "tcp://b:2375"}
    assert connection.endpoint(environ | certificates_only).tls is None
    (tmp_path / "key.pem").unlink()
    with pytest.raises(EngineMissing, match=r"TLS certificates cannot be used"):
        connection.endpoint(environ | variables | {"DOCKER_HOST": "tcp://b:2376"})


@pytest.mark.parametrize("address", ["foo", "tcp://[::1", "tcp://a:b", "tcp://h:99999", "gopher://x:1"])
def test_an_address_that_no_engine_can_have_is_not_blamed_on_credentials(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", address)
    with pytest.raises(EngineMissing, match="is not an engine's address: ") as error:
        Engine.connect()
    assert error.value.hint.startswith("DOCKER_HOST and --engine take unix://PATH")


def test_the_name_of_an_engine_becomes_the_variables_of_docker_s_client() -> None:
    others = {"PATH": "/bin", "DOCKER_TLS_VERIFY": "1", "DOCKER_CONTEXT": "far", "DOCKER_HOST": "tcp://b:2"}
    rows = {
        "": others,
        "unix:///x": {"PATH": "/bin", "DOCKER_HOST": "unix:///x"},
        "near": {"PATH": "/bin", "DOCKER_CONTEXT": "near"},
        "tcp://b:1": {"PATH": "/bin", "DOCKER_HOST": "tcp://b:1", "DOCKER_TLS_VERIFY": "1"},
    }
    assert {name: connection.environment(name, others) for name in rows} == rows


# --- by ssh (tests/with_engine has a real sshd) -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "destination"),
    [
        ("ssh://web1", ("web1", 0, "/var/run/docker.sock")),
        ("ssh://root@web-1.example.org/", ("root@web-1.example.org", 0, "/var/run/docker.sock")),
        ("ssh://me@10.0.0.1:65535", ("me@10.0.0.1", 65535, "/var/run/docker.sock")),
        ("ssh://[::1]:22/run/user/1000/docker.sock", ("::1", 22, "/run/user/1000/docker.sock")),
    ],
)
def test_an_address_is_a_host_with_a_user_a_port_and_a_socket(address: str, destination: tuple[str, int, str]) -> None:
    assert connection.destination(address) == destination


@pytest.mark.parametrize(
    "address",
    ["ssh://", "ssh://-oProxyCommand=id", "ssh://a b", "ssh://h:65536", "ssh://a;b", "ssh://h/a:b",
     "ssh://web\N{CYRILLIC SMALL LETTER ER}"],
)  # fmt: skip
def test_only_a_valid_host_is_passed_to_ssh(address: str) -> None:
    with pytest.raises(UsageError, match="names no ssh host"):
        connection.destination(address)
    with pytest.raises(UsageError, match="names no ssh host"):
        Engine.connect(address)


SSH = """#!/bin/sh
echo "$@" > FOLDER/words
echo $$ > FOLDER/pid
while [ "$1" != -L ]; do shift; done
touch "${2%%:*}"
exec sleep 600
"""


def test_an_ssh_of_its_own_session_forwards_the_socket_and_ends_with_its_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C must not reach it before the containers are removed."""
    (tmp_path / "ssh").write_text(SSH.replace("FOLDER", str(tmp_path)))
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with connection.tunnel("ssh://me@web1:2222/run/docker.sock") as address:
        pid, words = int((tmp_path / "pid").read_text()), (tmp_path / "words").read_text().split()
        assert os.getsid(pid) == pid
        assert words[-6:] == [
            "-L", f"{address.removeprefix('unix://')}:/run/docker.sock", "-p", "2222", "--", "me@web1",
        ]  # fmt: skip
        assert {"-S", "none", "BatchMode=yes"} <= {*words}
    assert not Path(f"/proc/{pid}").exists()


def test_a_host_by_ssh_needs_its_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineMissing, match="ssh://web1 needs ssh, which is not on PATH"):
        connection.tunnel("ssh://web1").__enter__()


def test_what_ssh_prints_last_decides_what_to_do() -> None:
    last = "Host key verification failed."
    assert connection.reason(f"a banner\n{last}\n\n") == last
    for reason, hint in (
        (last, "check its key"),
        ("Permission denied (publickey).", "ssh-copy-id web1"),
        (connection.reason(""), "its engine is down"),
    ):
        assert hint in connection._advice(Endpoint(address="ssh://web1"), reason)
