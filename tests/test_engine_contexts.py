"""Where the engine is, by the environment and by contexts as Docker's client writes them."""

import hashlib
import json
from pathlib import Path

import pytest

from tfbuild.engine import buildx, docker_cli, docker_contexts, selection
from tfbuild.engine.docker_contexts import SOCKET
from tfbuild.errors import EngineMissing, UsageError


def context(folder: Path, name: str, host: str, *, skip: bool = False, files: tuple[str, ...] = ()) -> None:
    """As `docker context create` writes it, without a config.json."""
    digest = hashlib.sha256(name.encode()).hexdigest()
    meta = folder / "contexts" / "meta" / digest
    meta.mkdir(parents=True)
    endpoint = {"Host": host, "SkipTLSVerify": skip}
    (meta / "meta.json").write_text(json.dumps({"Name": name, "Metadata": {}, "Endpoints": {"docker": endpoint}}))
    for file in files:
        tls = folder / "contexts" / "tls" / digest / "docker"
        tls.mkdir(parents=True, exist_ok=True)
        (tls / file).write_text("PEM")


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    context(tmp_path, "far", "ssh://builder")
    context(tmp_path, "near", "unix:///run/near.sock")
    context(tmp_path, "tls", "tcp://10.0.0.1:2376", files=("ca.pem", "cert.pem", "key.pem"))
    context(tmp_path, "ca-alone", "tcp://10.0.0.1:2376", files=("ca.pem",))
    context(tmp_path, "half", "tcp://10.0.0.1:2376", files=("ca.pem", "cert.pem"))
    context(tmp_path, "trusting", "tcp://10.0.0.1:2376", skip=True)
    context(tmp_path, "bare", "tcp://10.0.0.1:2375")
    return {"DOCKER_CONFIG": str(tmp_path)}


@pytest.mark.parametrize(
    ("named", "address", "local"),
    [
        ({}, SOCKET, True),
        ({"DOCKER_CONTEXT": "default"}, SOCKET, True),
        ({"DOCKER_CONTEXT": "far"}, "ssh://builder", False),
        ({"DOCKER_CONTEXT": "near"}, "unix:///run/near.sock", True),
        ({"DOCKER_HOST": "tcp://b:1", "DOCKER_CONTEXT": "far"}, "tcp://b:1", False),
    ],
)
def test_the_address_goes_before_the_context(
    environ: dict[str, str], named: dict[str, str], address: str, local: bool
) -> None:
    found = docker_contexts.endpoint(environ | named)
    assert (found.address, found.local, found.tls) == (address, local, None)


def test_the_current_context_counts(environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`docker context use` writes it down; what runs there is elsewhere, though no variable says so."""
    monkeypatch.delenv("DOCKER_HOST")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    assert not selection.USUAL.elsewhere()
    (tmp_path / "config.json").write_text('{"currentContext": "far"}')
    assert docker_contexts.endpoint(environ).context == "far"
    assert selection.USUAL.elsewhere()


@pytest.mark.parametrize(
    ("name", "client", "verify"), [("tls", True, True), ("ca-alone", False, True), ("trusting", False, False)]
)
def test_a_context_is_spoken_to_with_its_own_files(
    environ: dict[str, str], tmp_path: Path, name: str, client: bool, verify: bool
) -> None:
    # What belongs to DOCKER_HOST is no business of a context's.
    others = {"DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": "/nowhere"}
    found = docker_contexts.endpoint(environ | others | {"DOCKER_CONTEXT": name})
    assert found.tls is not None
    assert (found.tls.cert is not None, bool(found.tls.verify)) == (client, verify)
    assert found.tls.ca_cert is None or Path(found.tls.ca_cert).is_relative_to(tmp_path)
    assert docker_contexts.endpoint(environ | others | {"DOCKER_CONTEXT": "bare"}).tls is None


def test_certificates_that_are_not_there_are_named(environ: dict[str, str]) -> None:
    with pytest.raises(EngineMissing, match=r"TLS certificates cannot be used"):
        docker_contexts.endpoint(environ | {"DOCKER_CONTEXT": "half"})


def test_the_environment_s_tls_is_for_tcp_alone(environ: dict[str, str], tmp_path: Path) -> None:
    for name in ("ca.pem", "cert.pem", "key.pem"):
        (tmp_path / name).write_text("PEM")
    tls = {"DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": str(tmp_path)}
    found = docker_contexts.endpoint(environ | tls | {"DOCKER_HOST": "tcp://b:2376"})
    assert found.tls is not None
    assert found.tls.ca_cert == str(tmp_path / "ca.pem")
    assert docker_contexts.endpoint(environ | tls | {"DOCKER_HOST": "unix:///x"}).tls is None
    # Certificates alone ask for nothing, as with Docker's own client.
    assert (
        docker_contexts.endpoint(environ | {**tls, "DOCKER_TLS_VERIFY": "", "DOCKER_HOST": "tcp://b:2375"}).tls is None
    )


def test_an_unknown_context_is_refused_with_those_that_there_are(environ: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(EngineMissing, match=r"no Docker context 'near-by'") as refusal:
        docker_contexts.endpoint(environ | {"DOCKER_CONTEXT": "near-by"})
    assert "bare, ca-alone, default, far" in refusal.value.hint
    next(tmp_path.glob("contexts/meta/*/meta.json")).write_text("{")
    assert len(docker_contexts.names(environ)) == 7


def test_a_context_that_cannot_be_read_is_said_so(environ: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "contexts" / "meta" / hashlib.sha256(b"far").hexdigest() / "meta.json"
    file.write_text('{"Name": 3}')
    with pytest.raises(EngineMissing, match=r"'far' cannot be read"):
        docker_contexts.endpoint(environ | {"DOCKER_CONTEXT": "far"})


def test_the_builder_of_the_engine_itself_is_no_other_one(environ: dict[str, str]) -> None:
    assert buildx.named(environ) == ""
    assert buildx.named(environ | {"BUILDX_BUILDER": "default"}) == ""
    assert buildx.named(environ | {"BUILDX_BUILDER": "farm"}) == "farm"
    assert buildx.named(environ | {"BUILDX_BUILDER": "tls", "DOCKER_CONTEXT": "tls"}) == ""
    assert buildx.named(environ | {"BUILDX_BUILDER": "tls"}) == "tls"


@pytest.mark.parametrize("address", ["ssh://", "ssh://-oProxyCommand=id", "ssh://host/run/docker.sock", "ssh://a b"])
def test_nothing_but_a_host_gets_to_ssh(address: str) -> None:
    with pytest.raises(UsageError, match=r"names no ssh host"):
        selection.choose(address)


def test_a_socket_is_spoken_to_without_the_tls_of_another_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    monkeypatch.setenv("DOCKER_CONTEXT", "far")
    told = docker_cli.environment("unix:///x")
    assert told["DOCKER_HOST"] == "unix:///x"
    assert not {"DOCKER_TLS_VERIFY", "DOCKER_CONTEXT"} & set(told)
    assert docker_cli.environment("tcp://b:1")["DOCKER_TLS_VERIFY"] == "1"
