"""Which credentials are sent to a registry and its token server, and the errors if they cannot be read."""

import base64
import json
import os
from pathlib import Path

import pytest

from tests.commandline import executable
from tests.oci.fake_registry import FakeRegistry, connect
from tests.oci.fake_registry import fake as fake
from tests.servers import Handler, serving
from tfbuild.errors import RegistryRefused, without_secrets


def test_the_engines_credentials_override_those_of_netrc(
    fake: type[FakeRegistry], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In UTF-8, as Docker's client sends it.
    encoded = base64.b64encode("somebody:пароль".encode()).decode()
    host: str = fake.host
    (tmp_path / "config.json").write_text(json.dumps({"auths": {host: {"auth": encoded}}}))
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login another password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    fake.needs = f"Basic {encoded}"
    assert connect(fake).tags() == []
    assert fake.authorizations == ["", f"Basic {encoded}"]
    # Nor are they sent to where it keeps its content, which may refuse a request with a second login.
    received: list[tuple[str, str, str]] = []
    storage = type("Here", (TokenServer,), {"received": received, "do_HEAD": TokenServer.do_GET})
    with serving(storage) as place:
        monkeypatch.setattr(fake, "do_HEAD", lambda self: self.answer(307, "", b"", Location=f"http://{place}/x"))
        assert connect(fake).digest("x") == ""
    assert received == [("HEAD", "", "")]


class TokenServer(Handler):
    """Issues tokens; `received`: the method, body and credentials of each request."""

    received: list[tuple[str, str, str]]
    content = b'{"access_token": "issued"}'

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0"))).decode()
        self.received.append((self.command, body, self.headers.get("Authorization", "")))
        self.say(200, self.content)

    do_POST = do_GET


def token_request(fake: type[FakeRegistry], content: bytes = TokenServer.content) -> tuple[str, str, str]:
    """The request that the token server gets: its method, body and credentials."""
    received: list[tuple[str, str, str]] = []
    handler = type("Here", (TokenServer,), {"received": received, "content": content})
    with serving(handler) as host:
        fake.needs, fake.realm = "Bearer issued", f"http://{host}/token"
        assert connect(fake).tags() == []
    (request,) = received
    return request


def test_a_server_that_a_registry_leads_to_gets_no_credentials(
    fake: type[FakeRegistry], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"auths": {fake.host: {"auth": "YTpi"}}}))
    received: list[tuple[str, str, str]] = []
    thief = type("Here", (TokenServer,), {"received": received})
    with serving(thief) as host:
        challenge = {"WWW-Authenticate": f'Bearer realm="http://{host}/token"'}
        monkeypatch.setattr(thief, "do_HEAD", lambda self: self.say(401, b"", challenge), raising=False)
        monkeypatch.setattr(fake, "do_HEAD", lambda self: self.answer(307, "", b"", Location=f"http://{host}/x"))
        with pytest.raises(RegistryRefused, match="answers 401"):
            connect(fake).digest("x")
    assert received == []


@pytest.mark.parametrize("ways", ["TOKEN", 'TOKEN, Basic realm="a"', 'Negotiate realm="a", TOKEN, Basic realm="b"'])
def test_of_several_ways_to_log_in_the_token_is_taken(ways: str, fake: type[FakeRegistry]) -> None:
    fake.ways = ways
    assert token_request(fake)[0] == "GET"


@pytest.mark.parametrize("token", ["a\nb", "жетон", "\ud800", "a b"])
def test_a_token_that_no_request_can_have_is_the_token_servers_fault(token: str, fake: type[FakeRegistry]) -> None:
    content = json.dumps({"token": token}).encode()
    with pytest.raises(RegistryRefused, match=r"token server of .*, sent a malformed token|token is not a JSON"):
        token_request(fake, content)


@pytest.mark.parametrize("status", [400, 401, 403, 404])
def test_where_no_token_is_given_the_registrys_own_refusal_is_told(status: int, fake: type[FakeRegistry]) -> None:
    handler = type("Here", (TokenServer,), {"do_GET": lambda self: self.say(status, b"{}")})
    with serving(handler) as host:
        fake.needs, fake.realm = "Bearer issued", f"http://{host}/token"
        with pytest.raises(RegistryRefused, match=r"401") as refusal:
            connect(fake).tags()
    assert refusal.value.hint.startswith("docker login")


def install_helper(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a credential helper and name it in the engine's configuration."""
    executable(folder / "docker-credential-tests", f"cat > /dev/null\n{text}")
    (folder / "config.json").write_text(json.dumps({"credsStore": "tests"}))
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


IDENTITY = "grant_type=refresh_token&client_id=tfbuild&refresh_token=an+identity&service=x&scope=pull"


def test_what_a_helper_has_is_exchanged_for_a_token(
    fake: type[FakeRegistry], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = """echo '{"ServerURL": "x", "Username": "%s", "Secret": "%s"}'"""
    install_helper(tmp_path, answer % ("<token>", "an identity"), monkeypatch)
    assert token_request(fake) == ("POST", IDENTITY, "")
    # A token that a registry repeats in its answer is printed nowhere.
    assert "issued" not in without_secrets("of the token issued", foreign=True)
    install_helper(tmp_path, answer % ("us", "secret"), monkeypatch)
    assert token_request(fake) == ("GET", "", f"Basic {base64.b64encode(b'us:secret').decode()}")
    install_helper(tmp_path, "echo credentials not found in native keychain; exit 1", monkeypatch)
    assert token_request(fake) == ("GET", "", "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "docker-credential-tests not installed or not available in PATH"),
        ("echo the keyring is locked; exit 1", "docker-credential-tests exited with .the keyring is locked"),
        ("echo hello", "JSONDecodeError"),
    ],
)
@pytest.mark.parametrize("entry", [{"auth": "no base64!"}, "x"])
def test_credentials_that_cannot_be_read_are_an_error_with_the_reason(
    text: str | None,
    message: str,
    entry: object,
    fake: type[FakeRegistry],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake.needs = "Basic x"
    install_helper(tmp_path, text or "", monkeypatch)
    if text is None:
        (tmp_path / "docker-credential-tests").unlink()
    refused = f"(?s)stored credentials cannot be read: .*{message}.*docker login again"
    with pytest.raises(RegistryRefused, match=refused):
        connect(fake).tags()
    (tmp_path / "config.json").write_text(json.dumps({"auths": {str(fake.host): entry}}))
    with pytest.raises(RegistryRefused, match="stored credentials cannot be read"):
        connect(fake).tags()
