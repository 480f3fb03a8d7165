"""Registries that refuse, fail or lie: every refusal says what to do, and all content is checked."""

import gc
import json
from pathlib import Path

import pytest
from requests.exceptions import SSLError

from tests.oci.fake_registry import FakeRegistry, connect
from tests.oci.fake_registry import fake as fake
from tests.servers import self_signed, serving
from tfbuild.errors import RegistryRefused, conceal
from tfbuild.oci import manifests, transport

# --- hints of errors --------------------------------------------------------------------------------------------------


# urllib3 leaves the socket of a failed TLS handshake to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize(
    ("certified", "message"),
    [
        (True, r"(?s)this machine does not trust the certificate of .*, the token server of .*--ca-cert"),
        (False, r"(?s)the token server of .* does not speak TLS.*put a TLS proxy in front of it"),
    ],
)
def test_a_token_server_without_a_certificate_is_named(
    certified: bool, message: str, fake: type[FakeRegistry], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr("time.sleep", waited.append)
    with serving(fake, self_signed(tmp_path) if certified else None) as host:
        fake.needs, fake.realm = "a token", f"https://{host}/token"
        with pytest.raises(RegistryRefused, match=message):
            connect(fake).manifest("x")
    # It would be the same again.
    assert waited == []
    gc.collect()


def test_what_speaks_no_tls_is_not_asked_again() -> None:
    certain = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "CERTIFICATE_VERIFY_FAILED")
    assert [transport._is_certain(SSLError(name)) for name in (*certain, "UNEXPECTED_EOF")] == [True, True, True, False]


@pytest.mark.parametrize("realm", ["http://127.evil.example/x", "file:///etc/passwd", "//x", ""])
def test_credentials_are_not_sent_unencrypted(fake: type[FakeRegistry], realm: str) -> None:
    fake.needs, fake.realm = "a token", realm or " "
    with pytest.raises(RegistryRefused, match="which is not https"):
        connect(fake).manifest("x")


@pytest.mark.parametrize(
    ("status", "message", "hint"),
    [
        (401, "", "; the stored login may have expired, or there may be no such repository"),
        (403, "", " as a user with the permission"),
        (403, "adding 1 GiB will exceed the configured upper limit of 1 GiB", "make room there"),
        (429, "Quota exceeded for requests per minute", "too many requests"),
        (500, "mkdir /var/lib/registry: no space left on device", "make room there"),
        (505, "", "has an internal error"),
        (400, "The image tag 'latest-mkl' already exists and cannot be overwritten because it is immutable.", "moving"),
        (400, "manifest invalid", "does not support this request"),
        (404, "repository name not known to registry", "do not create one on the first push"),
    ],
)
def test_each_refusal_says_what_to_do(
    fake: type[FakeRegistry], status: int, message: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "TRIES", 0)
    first = {"code": "X", "message": message, "detail": "quite"} if message else "no object"
    body = json.dumps({"errors": [first, {"message": "other"}][: 1 + bool(message)]}).encode()
    monkeypatch.setattr(fake, "do_PUT", lambda self: self.answer(status, "application/json", body))
    with pytest.raises(RegistryRefused) as refusal:
        connect(fake).put("latest-mkl", b'{"manifests": []}', manifests.INDEX)
    assert hint in refusal.value.hint
    assert refusal.value.reason.endswith(f": {message}: quite" if message else ": no reason given")
    assert ("internal error" in refusal.value.hint) == (status == 505)


# --- pages of lists ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("location", ["/v2/elsewhere/7?state=x", "7?state=x"])
def test_an_upload_goes_to_the_location_that_the_registry_names(
    location: str, fake: type[FakeRegistry], monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin(self: FakeRegistry) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self.answer(202, "text/plain", b"", Location=location)

    monkeypatch.setattr(fake, "do_POST", begin, raising=False)
    digest = connect(fake).upload(b"content")
    uploads = "/v2/us/x/blobs/uploads/"
    assert fake.requests[-1] == f"PUT {location if location[0] == '/' else uploads + location}&digest={digest}"
    assert [kind for kind, body in fake.content.values() if body == b"content"] == ["application/octet-stream"]


# --- hostile content --------------------------------------------------------------------------------------------------


def test_invalid_tags_are_left_out(fake: type[FakeRegistry]) -> None:
    fake.content["tags/list"] = ("application/json", json.dumps({"tags": ["a-b", "x\x1b[31m", "../x", 1]}).encode())
    assert connect(fake).tags() == ["1", "a-b"]


def test_a_refusals_reason_has_neither_control_characters_nor_the_login(fake: type[FakeRegistry]) -> None:
    conceal("us-robot", "s3nt-and-said")
    fake.needs, fake.reason = "nobody's", "No\x1b[31m us-robot"
    with pytest.raises(RegistryRefused) as refusal:
        connect(fake).manifest("x")
    assert "answers 401 No[31m ***:" in str(refusal.value)
