"""Locating the engine by the environment and by contexts as Docker's client writes them."""

import hashlib
import json
import os
from pathlib import Path

import pytest

from tfbuild.engine import Engine, build, connection
from tfbuild.engine.connection import SOCKET, EngineChoice
from tfbuild.errors import EngineMissing, UsageError


def context(folder: Path, name: str, host: str, *, skip: bool = False, files: tuple[str, ...] = ()) -> None:
    """Write a context as `docker context create` does, without a config.json."""
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
    ("variables", "address", "local"),
    [
        ({}, SOCKET, True),
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


def test_a_user_without_a_name_and_a_home_has_no_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(EngineMissing, match="there is no Docker context 'far'") as error:
        connection.read_context("far", {})
    assert error.value.hint.startswith("one of: default;")


def test_the_current_context_is_used(environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`docker context use` stores it; its engine is elsewhere, though no variable says so."""
    monkeypatch.delenv("DOCKER_HOST")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    assert not connection.USUAL.elsewhere()
    (tmp_path / "config.json").write_text('{"currentContext": "far"}')
    assert connection.endpoint(environ).context == "far"
    assert connection.USUAL.elsewhere()


@pytest.mark.parametrize("current", ["5", '["far"]', "{}"])
def test_a_current_context_that_is_no_name_is_refused(
    current: str, environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    (tmp_path / "config.json").write_text(f'{{"currentContext": {current}}}')
    if current == "{}":
        assert connection.endpoint(environ).address == connection.SOCKET
        return
    with pytest.raises(EngineMissing, match=r"the current context in Docker's config.json is not a name"):
        connection.endpoint(environ)


@pytest.mark.parametrize(
    "address",
    ["foo", "tcp://[::1", "tcp://a:b", "tcp://h:99999", "fd://", "http://x:0", "unix", "tcp://", "gopher://x:1"],
)
def test_an_address_that_no_engine_can_have_is_not_blamed_on_credentials(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", address)
    with pytest.raises(EngineMissing, match="is not an engine's address: ") as error:
        Engine.connect()
    assert error.value.hint.startswith("DOCKER_HOST and --engine take unix://PATH")


@pytest.mark.parametrize(
    ("name", "client", "verify"), [("tls", True, True), ("ca-alone", False, True), ("trusting", False, False)]
)
def test_a_context_uses_its_own_tls_files(
    environ: dict[str, str], tmp_path: Path, name: str, client: bool, verify: bool
) -> None:
    # The TLS variables belong to DOCKER_HOST and do not apply to a context.
    others = {"DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": "/nowhere"}
    tls = connection.endpoint(environ | others | {"DOCKER_CONTEXT": name}).tls
    assert tls is not None
    assert (tls.cert is not None, bool(tls.verify)) == (client, verify)
    assert tls.ca_cert is None or Path(tls.ca_cert).is_relative_to(tmp_path)
    assert connection.endpoint(environ | others | {"DOCKER_CONTEXT": "bare"}).tls is None


def test_missing_certificates_are_an_error(environ: dict[str, str]) -> None:
    with pytest.raises(EngineMissing, match=r"TLS certificates cannot be used"):
        connection.endpoint(environ | {"DOCKER_CONTEXT": "half"})


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


def test_an_unknown_context_is_refused_with_the_known_ones(environ: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(EngineMissing, match=r"no Docker context 'near-by'") as caught:
        connection.endpoint(environ | {"DOCKER_CONTEXT": "near-by"})
    assert "bare, ca-alone, default, far" in caught.value.hint
    next(tmp_path.glob("contexts/meta/*/meta.json")).write_text("{")
    assert len(connection.context_names(environ)) == 7


def test_an_unreadable_context_is_an_error(environ: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "contexts" / "meta" / hashlib.sha256(b"far").hexdigest() / "meta.json"
    file.write_text('{"Name": 3}')
    with pytest.raises(EngineMissing, match=r"'far' cannot be read"):
        connection.endpoint(environ | {"DOCKER_CONTEXT": "far"})


def test_the_engine_s_own_builder_does_not_count_as_named(environ: dict[str, str]) -> None:
    assert build.named_builder(environ) == ""
    assert build.named_builder(environ | {"BUILDX_BUILDER": "default"}) == ""
    assert build.named_builder(environ | {"BUILDX_BUILDER": "farm"}) == "farm"
    assert build.named_builder(environ | {"BUILDX_BUILDER": "tls", "DOCKER_CONTEXT": "tls"}) == ""
    assert build.named_builder(environ | {"BUILDX_BUILDER": "tls"}) == "tls"


@pytest.mark.parametrize("address", ["ssh://", "ssh://-oProxyCommand=id", "ssh://host/run/docker.sock", "ssh://a b"])
def test_ssh_is_given_nothing_but_a_host(address: str) -> None:
    with pytest.raises(UsageError, match=r"names no ssh host"):
        connection.choose(address)


def test_a_socket_is_used_without_the_tls_of_another_engine() -> None:
    others = {"DOCKER_TLS_VERIFY": "1", "DOCKER_CONTEXT": "far", "DOCKER_HOST": "tcp://b:2"}
    assert EngineChoice(engine="unix:///x").environment(others) == {"DOCKER_HOST": "unix:///x"}
    assert EngineChoice(engine="near").environment(others) == {"DOCKER_CONTEXT": "near"}
    verified = {"DOCKER_HOST": "tcp://b:1", "DOCKER_TLS_VERIFY": "1", "BUILDX_BUILDER": "farm"}
    assert EngineChoice(engine="tcp://b:1", builder="farm").environment(others) == verified
    assert EngineChoice().environment(others) == others
