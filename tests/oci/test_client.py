"""What the client asks of a registry and makes of its answers, when all is well and when parts are missing."""

import json
import os
from collections.abc import Callable, Mapping
from types import SimpleNamespace

import pytest

from tests.oci.fake_registry import FakeRegistry, connect
from tests.oci.fake_registry import fake as fake
from tfbuild.errors import RegistryRefused, UsageError
from tfbuild.oci import client, transport
from tfbuild.oci.client import Registry
from tfbuild.oci.manifests import IMAGES, INDEX, LISTS, Damaged, Manifest, WrongDigest, digest_of
from tfbuild.oci.references import Repository

TAGS = "/v2/us/x/tags/list?n=1000"


def put(fake: type[FakeRegistry], tag: str, document: object, kind: str = IMAGES[0]) -> str:
    content = json.dumps(document).encode()
    for name in (tag, digest_of(content)):
        fake.content[f"manifests/{name}"] = (kind, content)
    return digest_of(content)


def answering(
    fake: type[FakeRegistry], method: str, status: int, monkeypatch: pytest.MonkeyPatch, times: int = 1000,
    headers: Mapping[str, str] = {},
) -> list[str]:  # fmt: skip
    """Let the registry answer requests of a method with a status, `times`; return the paths of those."""
    usual: Callable[[FakeRegistry], None] | None = getattr(fake, f"do_{method}", None)
    asked: list[str] = []

    def answer(self: FakeRegistry) -> None:
        asked.append(self.path)
        if usual is not None and len(asked) > times:
            return usual(self)
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        return self.answer(status, "application/json", b"{}", **headers)

    monkeypatch.setattr(fake, f"do_{method}", answer, raising=False)
    return asked


# --- lists ------------------------------------------------------------------------------------------------------------


def test_the_tags_of_all_pages_are_listed_in_order(fake: type[FakeRegistry]) -> None:
    fake.content["tags/list"] = ("application/json", b'{"tags": ["c", "a"]}')
    fake.content["tags/more"] = ("application/json", b'{"tags": ["b"]}')
    fake.content["tags/last"] = ("application/json", b'{"tags": null}')
    fake.links[TAGS] = {"Link": '<more>; rel="next"'}
    fake.links["/v2/us/x/tags/more"] = {"Link": '<last?n=1>; rel="next"'}
    assert connect(fake).tags() == ["a", "b", "c"]
    assert fake.requests == [f"GET {path}" for path in (TAGS, "/v2/us/x/tags/more", "/v2/us/x/tags/last?n=1")]


def test_a_list_of_tags_is_never_cut_short(fake: type[FakeRegistry], monkeypatch: pytest.MonkeyPatch) -> None:
    """Indexes would lose what is behind the cut."""
    monkeypatch.setattr(client, "MOST_ROWS", 3)
    monkeypatch.setattr(client, "MOST_PAGES", 20)
    fake.content["tags/list"] = ("application/json", b'{"tags": ["a", "b"]}')
    fake.content["tags/more"] = ("application/json", b'{"tags": ["c"]}')
    fake.links[TAGS] = {"Link": '<more>; rel="next"'}
    assert connect(fake).tags() == ["a", "b", "c"]
    for page in (b'{"tags": ["c"]}', b'{"tags": []}'):  # more of them, and no end
        fake.content["tags/more"] = ("application/json", page)
        fake.links["/v2/us/x/tags/more"] = {"Link": '<more>; rel="next"'}
        with pytest.raises(RegistryRefused, match="has more than 3 tags, or an endless list"):
            connect(fake).tags()
    answering(fake, "GET", 404, monkeypatch)
    assert connect(fake).tags() == []


def test_a_registry_that_lists_no_referrers_is_asked_once(
    fake: type[FakeRegistry], monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = connect(fake)
    assert registry.referrers("x") is None
    assert registry.referrers("y") is None
    assert fake.requests == ["GET /v2/us/x/referrers/x"]
    for status in (303, 400, 405, 406):
        asked = answering(fake, "GET", status, monkeypatch, headers={"Location": f"http://{fake.host}/page"})
        assert connect(fake).referrers("x") is None
        assert asked == ["/v2/us/x/referrers/x"]


@pytest.mark.parametrize(("kind", "rows"), [(f"{INDEX}; charset=utf-8", [{"digest": "a"}]), ("application/json", None)])
def test_a_list_of_referrers_is_known_by_its_type(
    kind: str, rows: list[dict[str, str]] | None, fake: type[FakeRegistry]
) -> None:
    fake.content["referrers/x"] = (kind, b'{"manifests": [{"digest": "a"}, 1]}')
    assert connect(fake).referrers("x") == rows


def test_a_list_of_referrers_has_pages_and_an_end(fake: type[FakeRegistry], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MOST_ROWS", 3)
    fake.content["referrers/x"] = (INDEX, b'{"manifests": [{}, {}]}')
    fake.content["referrers/more"] = (INDEX, b'{"manifests": [{}]}')
    fake.links["/v2/us/x/referrers/x"] = {"Link": '<more>; rel="next"'}
    assert connect(fake).referrers("x") == [{}, {}, {}]
    fake.links["/v2/us/x/referrers/more"] = {"Link": '<x>; rel="next"'}
    with pytest.raises(Damaged, match="has more than 3 manifests, or an endless list"):
        connect(fake).referrers("x")


# --- manifests and blobs ----------------------------------------------------------------------------------------------


def test_a_manifest_is_checked_against_every_digest_there_is(
    fake: type[FakeRegistry], monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = put(fake, "x", {"a": 1})
    for reference in ("x", digest):
        read = connect(fake).manifest(reference)
        assert read == Manifest(digest=digest, media_type=IMAGES[0], content=b'{"a": 1}')
    assert connect(fake).manifest("y") is None
    other = digest_of(b"other")
    fake.content[f"manifests/{other}"] = fake.content["manifests/x"]
    with pytest.raises(WrongDigest, match=f"for {other} that does not match its digest"):
        connect(fake).manifest(other)
    answering(fake, "GET", 200, monkeypatch, headers={"Docker-Content-Digest": other})
    with pytest.raises(WrongDigest, match="sent a manifest for x that does not match its digest"):
        connect(fake).manifest("x")


def test_a_manifest_has_the_type_in_it_before_that_of_the_answer(fake: type[FakeRegistry]) -> None:
    put(fake, "x", {"mediaType": LISTS[1]}, kind="application/json")
    put(fake, "y", {}, kind=INDEX)
    kinds = [read.media_type for tag in "xy" if (read := connect(fake).manifest(tag))]
    assert kinds == [LISTS[1], INDEX]


def test_a_digest_is_asked_without_the_content_if_the_registry_says_it(
    fake: type[FakeRegistry], monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = put(fake, "x", {})
    assert (connect(fake).digest("x"), connect(fake).digest("y")) == (digest, "")
    assert fake.requests == ["HEAD /v2/us/x/manifests/x", "HEAD /v2/us/x/manifests/y"]
    # A registry that does not say it, and one that lost the content meanwhile.
    answering(fake, "HEAD", 200, monkeypatch)
    assert (connect(fake).digest("x"), connect(fake).digest("y")) == (digest, "")


def test_a_blob_that_is_lost_or_changed_damages_one_image(fake: type[FakeRegistry]) -> None:
    digest = digest_of(b"a")
    with pytest.raises(Damaged, match=rf"does not have the thing \({digest}\)"):
        connect(fake).blob(digest, "thing")
    fake.content[f"blobs/{digest}"] = ("", b"b")
    with pytest.raises(WrongDigest, match="sent a thing that does not match its digest"):
        connect(fake).blob(digest, "thing")
    fake.content[f"blobs/{digest}"] = ("", b"a")
    assert connect(fake).blob(digest, "thing") == b"a"
    fake.requests.clear()
    for invalid, shown in (("", "without a digest"), ("../tags/list", "../tags/list"), (f"{digest}0", f"{digest}0")):
        with pytest.raises(Damaged, match=rf"does not have the thing \({shown}\)"):
            connect(fake).blob(invalid, "thing")
        manifest = Manifest(
            digest="", media_type=IMAGES[0], content=json.dumps({"layers": [{"digest": invalid}]}).encode()
        )
        assert connect(fake).missing_layer(manifest) == shown
    assert fake.requests == []


def test_a_tag_of_an_image_has_a_digest_in_its_registry(fake: type[FakeRegistry]) -> None:
    digest = put(fake, "12-slim", {"manifests": []}, kind=INDEX)
    host: str = fake.host
    assert client.image_digest(f"{host}/us/x:12-slim") == digest
    with pytest.raises(RegistryRefused, match=f"{host}/us/x has no tag 13"):
        client.image_digest(f"{host}/us/x:13")
    with pytest.raises(UsageError):
        client.image_digest("UPPER")


# --- writing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [204, 401, 403, 404, 405, 501])
def test_a_registry_is_writable_if_an_upload_may_begin_whether_it_can_be_cancelled_or_not(
    status: int, fake: type[FakeRegistry], monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled = answering(fake, "DELETE", status, monkeypatch)
    connect(fake).refuse_unless_writable()
    assert cancelled == ["/v2/us/x/blobs/uploads/1"]
    answering(fake, "POST", 403, monkeypatch)
    with pytest.raises(RegistryRefused, match="answers 403"):
        connect(fake).refuse_unless_writable()


CONTENT = json.dumps({"schemaVersion": 2, "manifests": []}).encode()


@pytest.fixture
def losing(fake: type[FakeRegistry], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list of what the registry answers to the next uploads, which it then has not."""
    answers: list[int] = []
    put = fake.do_PUT

    def lose(self: FakeRegistry) -> None:
        if not answers:
            return put(self)
        self.requests.append(f"{self.command} {self.path}")
        self.rfile.read(int(self.headers["Content-Length"]))
        return self.answer(answers.pop(0), "application/json", b"{}")

    monkeypatch.setattr(fake, "do_PUT", lose)
    return answers


def uploads(fake: type[FakeRegistry]) -> int:
    return sum(request.startswith("PUT ") for request in fake.requests)


@pytest.mark.parametrize("answers", [[], [404], [400, 404], [400] * 4])
def test_what_was_lost_is_sent_again(
    answers: list[int], losing: list[int], fake: type[FakeRegistry], monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[int] = []
    monkeypatch.setattr(client, "_pause", lambda: pauses.append(uploads(fake)))
    losing[:] = answers
    connect(fake).put("x", CONTENT, INDEX)
    assert fake.content["manifests/x"] == (INDEX, CONTENT)
    assert pauses == [*range(1, len(answers) + 1)], "two that push at once would else lose to each other again"
    losing[:] = answers
    digest = connect(fake).upload(b"blob")
    assert fake.content[f"blobs/{digest}"][1] == b"blob"
    connect(fake).upload(b"blob")
    assert (uploads(fake), len(pauses)) == (2 * (len(answers) + 1), 2 * len(answers)), "what is there is not sent"


def test_after_five_times_it_is_an_error(losing: list[int], fake: type[FakeRegistry]) -> None:
    assert client.UPLOADS == 5
    losing[:] = [404] * 5
    with pytest.raises(RegistryRefused, match="answers 404"):
        connect(fake).put("x", CONTENT, INDEX)
    assert (losing, uploads(fake)) == ([], 5)
    losing[:] = [404] * 5
    with pytest.raises(RegistryRefused, match="keeps losing an upload"):
        connect(fake).upload(b"blob")
    assert (losing, uploads(fake)) == ([], 10)
    losing[:] = [400] * 5
    with pytest.raises(RegistryRefused, match="answers 400"):
        connect(fake).upload(b"blob")


# --- transport --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_a_busy_registry_is_asked_again_six_times(
    status: int, fake: type[FakeRegistry], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "BACKOFF", 0)
    digest = put(fake, "x", {})
    for method in ("GET", "HEAD", "PUT", "POST"):
        answering(fake, method, status, monkeypatch, times=2)
    registry = connect(fake)
    assert registry.digest("x") == digest
    assert registry.manifest("x") is not None
    assert registry.upload(b"blob") == digest_of(b"blob")
    asked = answering(fake, "GET", status, monkeypatch)
    with pytest.raises(RegistryRefused, match=f"us/x answers {status} .*: no reason given"):
        registry.manifest("x")
    assert len(asked) == 6


@pytest.mark.parametrize(
    ("variable", "address"), [("HTTPS_PROXY", "http://user:s3cret@127.0.0.1:9"), ("all_proxy", "socks5://127.0.0.1:9")]
)
def test_a_proxy_that_fails_is_named(variable: str, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "PATIENCE", 0.0)
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv(variable, address)
    with pytest.raises(RegistryRefused) as refusal:
        Registry(Repository.parse("registry.invalid/us/x")).digest("x")
    assert any(text in refusal.value.reason for text in ("SOCKS", "the proxy on the way to registry.invalid does not"))
    assert "s3cret" not in str(refusal.value)


@pytest.mark.parametrize("ours", ["registry.example", "registry.example:443"])
def test_a_token_is_sent_to_its_registry_only(ours: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An upload may go to another host, which is none of the token's business."""
    connection, sent = transport.Connection(Repository.parse(f"{ours}/us/x")), list[bool]()
    connection._authorization = "Bearer secret"

    def request(*_: object, headers: Mapping[str, str], **__: object) -> SimpleNamespace:
        sent.append("Authorization" in headers)
        return SimpleNamespace(status_code=200)

    monkeypatch.setattr(connection._session, "request", request)
    own = ("manifests/x", "https://registry.example/u?x", "https://registry.example:443/u", "https://Registry.example/")
    for url in (*own, "https://registry.example:5000/u", "https://other.example/u", "http://registry.example/u"):
        connection.request("GET", url)
    assert sent == [True] * 4 + [False] * 3


# --- manifests --------------------------------------------------------------------------------------------------------


def test_a_row_without_a_type_has_that_of_its_manifest(fake: type[FakeRegistry]) -> None:
    known = put(fake, "x", {"artifactType": client.SBOM})
    fake.content["manifests/broken"] = (IMAGES[0], b"{")
    rows = [
        {"digest": known}, {"digest": known, "artifactType": "own"}, {"digest": "gone"}, {"digest": "broken"},
        {"digest": put(fake, "y", {})},
    ]  # fmt: skip
    fake.content["referrers/s"] = (INDEX, json.dumps({"manifests": rows}).encode())
    assert client.attached_types(connect(fake), "s") == {client.SBOM, "own", ""}
