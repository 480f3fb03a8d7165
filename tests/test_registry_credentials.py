"""Which credentials a registry and its token server are shown, and what is said where they cannot be read."""

import base64
import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.test_registry_untrusted import Shelf, here, registry
from tfbuild.errors import RegistryRefused

__all__ = ["here"]  # a fixture


def test_the_engines_credentials_are_used_and_not_those_of_netrc(
    here: type[Shelf], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    word = base64.b64encode(b"engine:secret").decode()
    host: str = here.host  # type: ignore[attr-defined]
    (tmp_path / "config.json").write_text(json.dumps({"auths": {host: {"auth": word}}}))
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login another password word\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    here.needs = f"Basic {word}"
    assert registry(here).tags() == []
    assert here.seen == ["", f"Basic {word}"]


class Seller(BaseHTTPRequestHandler):
    """Sells tokens as a registry's own server does; `told`: what was asked for, and how."""

    told: list[tuple[str, str, str]]

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0"))).decode()
        self.told.append((self.command, body, self.headers.get("Authorization", "")))
        content = b'{"access_token": "bought"}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_GET  # noqa: N815

    def log_message(self, format: str, *args: Any) -> None:
        pass


def bought_of(here: type[Shelf]) -> tuple[str, str, str]:
    """What the server that sells tokens is told by a registry that asks for one of its."""
    told: list[tuple[str, str, str]] = []
    handler = type("Here", (Seller,), {"told": told})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        here.needs, here.realm = "Bearer bought", f"http://127.0.0.1:{server.server_port}/token"
        assert registry(here).tags() == []
        server.shutdown()
    (only,) = told
    return only


def helper(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A credential helper that the engine's configuration names."""
    program = folder / "docker-credential-tests"
    program.write_text(f"#!/bin/sh\ncat > /dev/null\n{text}\n")
    program.chmod(0o755)
    (folder / "config.json").write_text(json.dumps({"credsStore": "tests"}))
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


IDENTITY = "grant_type=refresh_token&client_id=tfbuild&refresh_token=an+identity&service=x&scope=pull"


def test_an_identity_token_of_the_configuration_buys_a_token(here: type[Shelf], tmp_path: Path) -> None:
    host: str = here.host  # type: ignore[attr-defined]
    entry = {
        "auth": base64.b64encode(b"00000000-0000-0000-0000-000000000000:").decode(),
        "identitytoken": "an identity",
    }
    (tmp_path / "config.json").write_text(json.dumps({"auths": {host: entry}}))
    assert bought_of(here) == ("POST", IDENTITY, "")


def test_an_identity_token_of_a_helper_buys_a_token(
    here: type[Shelf], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper(tmp_path, """echo '{"ServerURL": "x", "Username": "<token>", "Secret": "an identity"}'""", monkeypatch)
    assert bought_of(here) == ("POST", IDENTITY, "")


def test_a_name_and_a_secret_of_a_helper_buy_a_token(
    here: type[Shelf], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper(tmp_path, """echo '{"ServerURL": "x", "Username": "us", "Secret": "secret"}'""", monkeypatch)
    assert bought_of(here) == ("GET", "", f"Basic {base64.b64encode(b'us:secret').decode()}")
    helper(tmp_path, "echo credentials not found in native keychain; exit 1", monkeypatch)
    assert bought_of(here) == ("GET", "", "")


UNREADABLE = [
    (None, "docker-credential-tests not installed or not available in PATH"),
    ("echo the keyring is locked; exit 1", "docker-credential-tests exited with .the keyring is locked"),
    ("echo hello", "JSONDecodeError"),
]


@pytest.mark.parametrize(("text", "said"), UNREADABLE)
def test_a_helper_that_fails_is_named(
    text: str | None, said: str, here: type[Shelf], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper(tmp_path, text or "", monkeypatch)
    if text is None:
        (tmp_path / "docker-credential-tests").unlink()
    here.needs = "Basic x"
    with pytest.raises(RegistryRefused, match=f"(?s)stored credentials cannot be read: .*{said}.*docker login again"):
        registry(here).tags()


@pytest.mark.parametrize("entry", [{"auth": "no base64!"}, {"auth": "bm8gY29sb24="}, {"auth": 1}, "x"])
def test_a_configuration_of_another_shape_is_no_traceback(entry: object, here: type[Shelf], tmp_path: Path) -> None:
    host: str = here.host  # type: ignore[attr-defined]
    (tmp_path / "config.json").write_text(json.dumps({"auths": {host: entry}}))
    here.needs = "Basic x"
    with pytest.raises(RegistryRefused, match="stored credentials cannot be read"):
        registry(here).tags()
