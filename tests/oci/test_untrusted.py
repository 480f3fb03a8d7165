"""Untrusted registries: all content is checked, and an unfinished push does not hide other images."""

import gc
import json
import re
import ssl
import subprocess
import threading
from collections.abc import Iterator
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.cpu.machines import machine
from tfbuild import cpu, plan, publish
from tfbuild.cli import publishing
from tfbuild.context.labels import labels_of
from tfbuild.cpu import isa
from tfbuild.engine import Engine, Progress
from tfbuild.errors import NothingFits, RegistryRefused, UnknownImage, UsageError, VerificationFailed
from tfbuild.oci import client, manifests, references, referrers, transport
from tfbuild.oci.client import Registry
from tfbuild.oci.manifests import Manifest, digest_of
from tfbuild.oci.references import Repository
from tfbuild.plan import Request
from tfbuild.publish import described, indexes
from tfbuild.publish.choose import Choice, Published


class FakeRegistry(BaseHTTPRequestHandler):
    """Serves manifests, blobs and tags from `content`, by their path below /v2/us/x/."""

    content: dict[str, tuple[str, bytes]] = {}  # noqa: RUF012 - each server has a class of its own
    authorizations: list[str] = []  # noqa: RUF012
    requests: list[str] = []  # noqa: RUF012
    links: dict[str, dict[str, str]] = {}  # noqa: RUF012
    needs = ""
    realm = ""
    reason: str | None = None

    def do_GET(self) -> None:
        self.authorizations.append(self.headers.get("Authorization", ""))
        self.requests.append(f"{self.command} {self.path}")
        path = self.path.removeprefix("/v2/us/x/").partition("?")[0]
        if self.needs and self.headers.get("Authorization") != self.needs:
            challenge = f'Bearer realm="{self.realm}",service="x",scope="pull"' if self.realm else 'Basic realm="x"'
            self.answer(401, "application/json", b"{}", **{"WWW-Authenticate": challenge})
        elif path in self.content:
            kind, body = self.content[path]
            # Links are relative to the request.
            link = {"Link": '<list>; rel="next"'} if kind == "endless" else self.links.get(self.path, {})
            digest = {"Docker-Content-Digest": digest_of(body)} if path.startswith("manifests/") else {}
            self.answer(200, kind, body, **link, **digest)
        elif path == "tags/list":
            tags = [name.partition("/")[2] for name in self.content if re.fullmatch("manifests/[^:]+", name)]
            self.answer(200, "application/json", json.dumps({"tags": tags}).encode())
        else:
            self.answer(404, "application/json", b"{}")

    do_HEAD = do_GET  # noqa: N815

    def do_PUT(self) -> None:
        self.requests.append(f"{self.command} {self.path}")
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.content[self.path.removeprefix("/v2/us/x/")] = (self.headers["Content-Type"], body)
        self.answer(201, "text/plain", b"")

    def answer(self, status: int, kind: str, body: bytes, **headers: str) -> None:
        self.send_response(status, self.reason)
        for name, value in ({"Content-Type": kind, "Content-Length": str(len(body))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[FakeRegistry]]:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    handler = type("Here", (FakeRegistry,), {"content": {}, "authorizations": [], "requests": [], "links": {}})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        handler.host = f"127.0.0.1:{server.server_port}"  # type: ignore[attr-defined]
        yield handler
        server.shutdown()


def connect(fake: type[FakeRegistry]) -> Registry:
    return Registry(Repository.parse(f"{fake.host}/us/x"))  # type: ignore[attr-defined]


@cache
def labels_of_plan(release: str, cpu: str) -> dict[str, str]:
    build = plan.select(Request(target="mkl", release=release, cpu=cpu, platform="linux/amd64"), None)
    return labels_of(build)


def image(
    fake: type[FakeRegistry],
    release: str,
    labels: dict[str, str] | None = None,
    *,
    whole: bool = True,
    cpu: str = "avx",
) -> str:
    """Put an image there as a push does; without `whole`, as a push that was stopped before attaching its SBOM."""
    all_labels = labels_of_plan(release, cpu) | (labels or {})
    config = json.dumps({"created": "2026-11-01T00:00:00Z", "config": {"Labels": all_labels}}).encode()
    digest = digest_of(config)
    fake.content[f"blobs/{digest}"] = ("application/octet-stream", config)
    document = {"schemaVersion": 2, "mediaType": manifests.IMAGES[0], "config": {"digest": digest}, "layers": []}
    content = json.dumps(document).encode()
    manifest = digest_of(content)
    for name in (all_labels["io.tfbuild.id"], manifest):
        fake.content[f"manifests/{name}"] = (manifests.IMAGES[0], content)
    if whole:
        rows = [{"artifactType": kind} for kind in referrers.NEEDED]
        fake.content[f"referrers/{manifest}"] = (manifests.INDEX, json.dumps({"manifests": rows}).encode())
    return all_labels["io.tfbuild.id"]


def offered(fake: type[FakeRegistry], tag: str) -> list[str]:
    index = connect(fake).manifest(tag)
    assert index is not None
    return [image.id for image in indexes.read_index(index)]


def published(registry: Registry, name: str) -> Published:
    manifest = registry.manifest(name)
    assert manifest is not None
    image = indexes.of_config(registry.config(manifest), manifest.digest)
    assert image is not None
    return image


def gather(fake: type[FakeRegistry], name: str) -> list[str]:
    registry = connect(fake)
    return indexes.gather(registry, published(registry, name))


def push_newer(fake: type[FakeRegistry], name: str) -> str:
    """Put an image of a newer release there, with the Python and instruction set of `name`, an image of 2.14.1."""
    return image(fake, "2.20.0", {"io.tfbuild.id": name.replace("2.14.1", "2.20.0"), "io.tfbuild.python": "3.11"})


def empty_referrers(fake: type[FakeRegistry], name: str) -> None:
    manifest = digest_of(fake.content[f"manifests/{name}"][1])
    fake.content[f"referrers/{manifest}"] = (manifests.INDEX, b'{"manifests": []}')


def test_an_unfinished_push_of_a_newer_release_does_not_empty_latest(fake: type[FakeRegistry]) -> None:
    old = image(fake, "2.14.1")
    empty_referrers(fake, image(fake, "2.20.0", whole=False))
    fake.content["manifests/9999-mkl-of-somebody"] = ("text/plain", b"{}")
    gather(fake, old)
    assert offered(fake, "latest-mkl") == [old]


def test_a_push_sends_one_request_for_each_image_in_an_index(fake: type[FakeRegistry]) -> None:
    names = [image(fake, "2.20.0", {"io.tfbuild.id": f"2.20.0-mkl-py3.13-avx-{number}"}) for number in range(100)]
    gather(fake, names[0])
    assert len(offered(fake, "2.20-mkl")) == 100
    new = image(fake, "2.20.0", {"io.tfbuild.id": "2.20.0-mkl-py3.13-avx-new"})
    fake.requests.clear()
    gather(fake, new)
    assert offered(fake, "latest-mkl").count(new) == 1
    # Once to read what is there, and once to check that nothing has changed since.
    assert len([request for request in fake.requests if request.startswith("HEAD ")]) == 2 * 101
    assert len([request for request in fake.requests if "/blobs/" in request]) == 1
    assert len(fake.requests) < 230


def test_a_registry_without_digest_headers_is_read_in_full(
    fake: type[FakeRegistry], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = image(fake, "2.20.0")
    monkeypatch.setattr(client.Registry, "digest", lambda self, tag: "")
    gather(fake, name)
    assert offered(fake, "2.20-mkl") == [name]


def test_a_fixed_tag_that_moved_is_read_again(fake: type[FakeRegistry]) -> None:
    old, other = image(fake, "2.20.0"), image(fake, "2.20.0", cpu="x86-64-v3")
    gather(fake, old)
    before = connect(fake).digest(old)
    image(fake, "2.20.0", {"io.tfbuild.version": "later"})
    assert connect(fake).digest(old) != before
    gather(fake, other)
    index = connect(fake).manifest("2.20-mkl")
    assert index is not None
    assert {image.digest for image in indexes.read_index(index)} == {
        connect(fake).digest(name) for name in (old, other)
    }


def test_an_image_is_not_offered_if_an_index_lacks_it_or_describes_it_differently(fake: type[FakeRegistry]) -> None:
    name = image(fake, "2.14.1")
    registry = connect(fake)
    pushed = published(registry, name)
    tags = indexes.indexes(pushed)
    assert tags == ("2.14-mkl", "2.14.1-mkl", "latest-mkl")
    assert indexes.standing(registry, pushed) == indexes.Standing(lacking=tags, named=False)
    gather(fake, name)
    assert indexes.standing(registry, pushed) == indexes.Standing(lacking=(), named=True)
    del fake.content["manifests/2.14-mkl"]
    kind, content = fake.content["manifests/2.14.1-mkl"]
    fake.content["manifests/2.14.1-mkl"] = (kind, content.replace(b'"avx', b'"sse'))
    assert indexes.standing(registry, pushed).lacking == ("2.14-mkl", "2.14.1-mkl")
    # The latest index need not name an image that exists for a newer release.
    gather(fake, push_newer(fake, name))
    assert indexes.standing(registry, pushed).lacking == ("2.14-mkl", "2.14.1-mkl")
    assert name not in offered(fake, "latest-mkl")


def test_a_push_returns_only_the_indexes_that_offer_its_image(fake: type[FakeRegistry]) -> None:
    old, other = image(fake, "2.14.1"), image(fake, "2.14.1", cpu="x86-64-v3")
    assert gather(fake, push_newer(fake, old)) == ["2.20-mkl", "2.20.0-mkl", "latest-mkl"]
    assert gather(fake, old) == ["2.14-mkl", "2.14.1-mkl"]
    assert gather(fake, other) == ["2.14-mkl", "2.14.1-mkl", "latest-mkl"]


def test_a_push_fails_if_no_index_offers_its_image(fake: type[FakeRegistry]) -> None:
    """Because its fixed tag now names another image, or its SBOM and provenance are not listed."""
    name = image(fake, "2.20.0")
    first = published(connect(fake), name)
    image(fake, "2.20.0", {"io.tfbuild.version": "later"})
    with pytest.raises(RegistryRefused, match=f"no index of .* offers {first.digest}"):
        indexes.gather(connect(fake), first)
    assert offered(fake, "2.20-mkl") == [name]
    empty_referrers(fake, name)
    with pytest.raises(RegistryRefused, match="its provenance are gone"):
        gather(fake, name)


def break_blob(fake: type[FakeRegistry], name: str, content: bytes | None) -> None:
    """Remove the configuration of an image, or put other bytes under its digest."""
    digest = json.loads(fake.content[f"manifests/{name}"][1])["config"]["digest"]
    kind, _ = fake.content.pop(f"blobs/{digest}")
    if content is not None:
        fake.content[f"blobs/{digest}"] = (kind, content)


@pytest.mark.parametrize("content", [None, b"{}", b"x" * (transport.MOST_BYTES + 1)])
def test_a_damaged_image_does_not_hide_other_images(fake: type[FakeRegistry], content: bytes | None) -> None:
    broken, sound = image(fake, "2.20.0"), image(fake, "2.20.0", cpu="x86-64-v3")
    break_blob(fake, broken, content)
    notes: list[str] = []
    registry = connect(fake)
    listed = indexes.images(registry, registry.tags(), notes.append)
    assert [image.id for image, _ in listed] == [sound]
    (note,) = notes
    assert f"{registry.repository}:{broken} is left out" in note
    notes.clear()
    assert indexes.gather(connect(fake), published(connect(fake), sound), notes.append)[-1] == "latest-mkl"
    assert notes == [note]
    assert offered(fake, "latest-mkl") == [sound]


def test_an_invalid_configuration_only_damages_its_own_image(fake: type[FakeRegistry]) -> None:
    sound = image(fake, "2.20.0")
    for digest in ("", "../tags/list", digest_of(b"[]")):
        document = {"mediaType": manifests.IMAGES[0], "config": {"digest": digest}}
        fake.content[f"manifests/2.20.0-mkl-of-{len(digest)}"] = (manifests.IMAGES[0], json.dumps(document).encode())
    fake.content[f"blobs/{digest_of(b'[]')}"] = ("application/octet-stream", b"[]")
    notes: list[str] = []
    assert [image.id for image, _ in indexes.images(connect(fake), connect(fake).tags(), notes.append)] == [sound]
    assert len(notes) == 3


def test_a_failing_registry_is_not_mistaken_for_damage(
    fake: type[FakeRegistry], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise indexes would be written without the images that it cannot deliver right now."""
    monkeypatch.setattr(transport, "TRIES", 0)
    name, other = image(fake, "2.20.0"), image(fake, "2.20.0", cpu="x86-64-v3")
    digest = json.loads(fake.content[f"manifests/{other}"][1])["config"]["digest"]
    healthy = fake.do_GET

    def do_get(self: FakeRegistry) -> None:
        if self.path.endswith(digest):
            self.answer(503, "application/json", b"{}")
        else:
            healthy(self)

    monkeypatch.setattr(fake, "do_GET", do_get)
    with pytest.raises(RegistryRefused, match="answers 503"):
        gather(fake, name)
    assert "manifests/latest-mkl" not in fake.content


def test_an_unpublished_python_is_not_reported_as_an_unsupported_cpu(fake: type[FakeRegistry]) -> None:
    for python in ("3.9", "3.13"):
        image(fake, "2.20.0", {"io.tfbuild.id": f"2.20.0-mkl-py{python}-avx", "io.tfbuild.python": python})
    gather(fake, "2.20.0-mkl-py3.9-avx")
    host = cpu.parse(machine("rocky9-zen5").cpuinfo())

    def select(python: str) -> Choice:
        features = frozenset(isa.of_cpu(host).features)
        return publish.select(connect(fake), host, features, release="2.20", target="mkl", python=python)

    with pytest.raises(NothingFits, match=r"(?s)2.20-mkl has no image with Python 3.10.*hint: it has: 3.9, 3.13"):
        select("3.10")
    choice = select("")
    assert choice.best is not None
    (other,) = choice.passed_over
    assert other.reason == "Python 3.13 is newer; --python 3.9 chooses among its images"


def test_json_names_the_nearest_image_and_its_missing_features_if_nothing_fits(
    fake: type[FakeRegistry], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("x86-64-v4", "x86-64-v3"):
        gather(fake, image(fake, "2.20.0", cpu=name))
    options: dict[str, Any] = {"release": "", "target": "mkl", "python": "", "ca_cert": "", "engine": "", "signed": ""}
    options |= {"dry_run": True, "json": True}
    options["registry"] = f"{fake.host}/us/x"  # type: ignore[attr-defined]

    (tmp_path / "cpuinfo").write_text("processor\t: 0\nvendor_id\t: GenuineIntel\nflags\t\t: fpu sse sse2 lm\n")
    with pytest.raises(NothingFits):
        publishing.pull(**options, cpuinfo=str(tmp_path / "cpuinfo"))
    output = json.loads(capsys.readouterr().out)
    assert (output["id"], output["reference"], output["image"]) == (None, None, None)
    assert output["nearest"].endswith("x86-64-v3")
    assert "avx2" in output["missing"]
    assert "avx512f" not in output["missing"]
    assert len(output["passed_over"]) == 2
    (tmp_path / "cpuinfo").write_text(machine("rhel7-haswell").cpuinfo())
    publishing.pull(**options, cpuinfo=str(tmp_path / "cpuinfo"))
    output = json.loads(capsys.readouterr().out)
    assert output["id"].endswith("x86-64-v3")
    assert (output["image"], output["nearest"], output["missing"], len(output["passed_over"])) == (None, None, [], 1)


# --- hints of errors --------------------------------------------------------------------------------------------------


def refusal_of_token_server(fake: type[FakeRegistry], status: int, monkeypatch: pytest.MonkeyPatch) -> RegistryRefused:
    """The error for a registry whose token server answers `status`."""
    monkeypatch.setattr(transport, "TRIES", 1)
    monkeypatch.setattr(transport, "BACKOFF", 0)

    def answer(self: BaseHTTPRequestHandler) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    quiet = {"do_GET": answer, "log_message": lambda *_: None}
    with ThreadingHTTPServer(("127.0.0.1", 0), type("TokenServer", (BaseHTTPRequestHandler,), quiet)) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        fake.needs, fake.realm = "a token", f"http://127.0.0.1:{server.server_port}/token"
        with pytest.raises(RegistryRefused) as refusal:
            connect(fake).manifest("x")
        server.shutdown()
    return refusal.value


@pytest.mark.parametrize(
    ("status", "message", "hint"),
    [
        (401, "us/x answers 401", "docker login"),
        (403, "us/x answers 401", "docker login"),
        (429, "the token server of {host}, answers 429", "too many requests"),
        (503, "the token server of {host}, answers 503", "has an internal error: try again later"),
    ],
)
def test_a_failing_token_server_is_not_mistaken_for_a_wrong_password(
    fake: type[FakeRegistry], status: int, message: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = refusal_of_token_server(fake, status, monkeypatch)
    assert message.format(host=fake.host) in refusal.reason  # type: ignore[attr-defined]
    assert hint in refusal.hint


def test_a_token_server_that_cannot_be_reached_is_named(
    fake: type[FakeRegistry], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "TRIES", 0)
    monkeypatch.setenv("NO_PROXY", "*")
    fake.needs, fake.realm = "a token", "https://tokens.invalid/token"
    with pytest.raises(
        RegistryRefused, match=r"^error: tokens.invalid, the token server of 127.0.0.1.* does not answer"
    ):
        connect(fake).manifest("x")


# urllib3 leaves the socket of a failed TLS handshake to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize(
    ("certified", "message"),
    [
        (True, r"(?s)the token server of .* has no certificate that this machine trusts.*--ca-cert"),
        (False, r"(?s)the token server of .* does not speak TLS.*put a TLS proxy in front of it"),
    ],
)
def test_a_token_server_without_a_certificate_is_named(
    certified: bool, message: str, fake: type[FakeRegistry], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "TRIES", 0)
    with ThreadingHTTPServer(("127.0.0.1", 0), fake) as server:
        if certified:
            server.socket = self_signed(tmp_path).wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        fake.needs, fake.realm = "a token", f"https://127.0.0.1:{server.server_port}/token"
        with pytest.raises(RegistryRefused, match=message):
            connect(fake).manifest("x")
        server.shutdown()
    gc.collect()


def self_signed(folder: Path) -> ssl.SSLContext:
    """The TLS context of a server with a self-signed certificate."""
    command = ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    subject = ("-days", "2", "-subj", "/CN=stranger", "-addext", "subjectAltName=IP:127.0.0.1")
    subprocess.run(
        [*command, *subject, "-keyout", "key.pem", "-out", "x.pem"], cwd=folder, check=True, capture_output=True
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "x.pem", folder / "key.pem")
    return context


@pytest.mark.parametrize(
    "realm", ["http://tokens.invalid/x", "http://127.evil.example/x", "file:///etc/passwd", "//x", ""]
)
def test_credentials_are_not_sent_unencrypted(fake: type[FakeRegistry], realm: str) -> None:
    fake.needs, fake.realm = "a token", realm or " "
    with pytest.raises(RegistryRefused, match="which is not https"):
        connect(fake).manifest("x")


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (403, {"code": "DENIED", "message": "adding 1 GiB will exceed the configured upper limit of 1 GiB"}),
        (403, {"code": "DENIED", "message": "denied", "detail": "storage quota of us is used up"}),
        (500, {"code": "UNKNOWN", "message": "mkdir /var/lib/registry: no space left on device"}),
        (413, {}),
    ],
)
def test_a_full_registry_says_so(
    fake: type[FakeRegistry], status: int, error: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "TRIES", 0)
    body = json.dumps({"errors": [error]}).encode()
    monkeypatch.setattr(fake, "do_PUT", lambda self: self.answer(status, "application/json", body))
    with pytest.raises(RegistryRefused) as refusal:
        connect(fake).put("x", b"{}", manifests.INDEX)
    assert f"answers {status}" in refusal.value.reason
    assert refusal.value.hint == "the registry's quota or size limit is reached: make room there"


def test_a_request_quota_is_not_mistaken_for_a_full_registry(
    fake: type[FakeRegistry], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "TRIES", 0)
    body = b'{"errors": [{"code": "TOOMANYREQUESTS", "message": "Quota exceeded for requests per minute"}]}'
    monkeypatch.setattr(fake, "do_PUT", lambda self: self.answer(429, "application/json", body))
    with pytest.raises(RegistryRefused, match="hint: too many requests"):
        connect(fake).put("x", b"{}", manifests.INDEX)


@pytest.mark.parametrize(
    ("status", "message", "hint"),
    [
        (400, "The image tag 'latest-mkl' already exists and cannot be overwritten because it is immutable.", "moving"),
        (412, "Failed to process request due to 'latest-mkl' configured as immutable.", "moving ones"),
        (400, "manifest invalid", "does not support this request"),
        (404, "repository name not known to registry", "do not create one on the first push"),
        (405, "the operation is unsupported", "read-only mirror"),
        (409, "blob upload is in progress", "try again later"),
        (418, "", "does not support this request"),
    ],
)
def test_a_permanent_refusal_is_not_reported_as_an_internal_error(
    fake: type[FakeRegistry], status: int, message: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = json.dumps({"errors": [{"code": "X", "message": message}]}).encode()
    monkeypatch.setattr(fake, "do_PUT", lambda self: self.answer(status, "application/json", body))
    with pytest.raises(RegistryRefused) as refusal:
        connect(fake).put("latest-mkl", b'{"manifests": []}', manifests.INDEX)
    assert hint in refusal.value.hint
    assert "internal error" not in refusal.value.hint


def test_a_registry_that_refuses_indexes_of_dockers_manifests_is_recognized(
    fake: type[FakeRegistry], monkeypatch: pytest.MonkeyPatch
) -> None:
    body = b'{"errors": [{"code": "MANIFEST_INVALID", "message": "manifest invalid"}]}'
    monkeypatch.setattr(fake, "do_PUT", lambda self: self.answer(400, "application/json", body))
    for kind, recognized in ((manifests.IMAGES[1], True), (manifests.IMAGES[0], False)):
        content = json.dumps({"manifests": [{"mediaType": kind}]}).encode()
        with pytest.raises(RegistryRefused) as refusal:
            connect(fake).put("latest-mkl", content, manifests.INDEX)
        assert ("older versions of Quay" in refusal.value.hint) == recognized


@pytest.mark.parametrize(
    ("host", "scheme"),
    [
        ("localhost:5000", "http"),
        ("127.0.0.1", "http"),
        ("127.8.9.1:5000", "http"),
        ("127.evil.com", "https"),
        ("127.0.0.1.evil.com", "https"),
        ("localhost.evil.com:80", "https"),
        ("10.0.0.1:5000", "https"),
    ],
)
def test_plain_http_is_only_used_for_loopback_addresses(host: str, scheme: str) -> None:
    assert Repository.parse(f"{host}/us/x").url == f"{scheme}://{host}/v2/us/x/"


def test_an_ipv6_address_is_refused() -> None:
    with pytest.raises(UsageError, match=r"(?s)IPv6.*/etc/hosts"):
        Repository.parse("[::1]:5000/us/x")


# --- pages of lists ---------------------------------------------------------------------------------------------------


def test_all_pages_of_referrers_are_read(fake: type[FakeRegistry]) -> None:
    digest = digest_of(b"")
    pages = [[{"digest": "a", "artifactType": referrers.SBOM}], [{"digest": "b", "artifactType": referrers.PROVENANCE}]]
    for name, page in zip((digest, "the-rest"), pages, strict=True):
        fake.content[f"referrers/{name}"] = (manifests.INDEX, json.dumps({"manifests": page}).encode())
    assert not referrers.complete(connect(fake), digest)
    fake.links[f"/v2/us/x/referrers/{digest}"] = {"Link": '<the-rest?n=1>; rel="next"'}
    assert referrers.listed(connect(fake), digest) == [*pages[0], *pages[1]]
    assert referrers.complete(connect(fake), digest)


def test_an_endless_list_of_referrers_is_refused(fake: type[FakeRegistry], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MOST_PAGES", 20)
    fake.content["referrers/x"] = (manifests.INDEX, b'{"manifests": []}')
    fake.links["/v2/us/x/referrers/x"] = {"Link": '<x>; rel="next"'}
    with pytest.raises(RegistryRefused, match="an endless list of them"):
        connect(fake).referrers("x")


@pytest.mark.parametrize("status", [404, 405])
def test_referrers_are_read_from_a_tag_if_the_registry_does_not_list_them(
    status: int, fake: type[FakeRegistry], monkeypatch: pytest.MonkeyPatch
) -> None:
    get = fake.do_GET
    digest = digest_of(b"")

    def answer(self: FakeRegistry) -> None:
        if "/referrers/" in self.path:
            self.answer(status, "application/json", b"{}")
        else:
            get(self)

    monkeypatch.setattr(fake, "do_GET", answer)
    rows = [{"artifactType": kind} for kind in referrers.NEEDED]
    content = json.dumps({"manifests": rows}).encode()
    fake.content[f"manifests/{referrers.fallback_tag(digest)}"] = (manifests.INDEX, content)
    assert connect(fake).referrers(digest) is None
    assert referrers.complete(connect(fake), digest)


@pytest.mark.parametrize("location", ["/v2/elsewhere/7?state=x", "7?state=x", "?state=x"])
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


def test_arriving_tags_are_not_listed(fake: type[FakeRegistry]) -> None:
    name = image(fake, "2.20.0")
    tag = references.arriving_tag(f"sha256:{64 * 'a'}")
    fake.content[f"manifests/{tag}"] = fake.content[f"manifests/{name}"]
    assert connect(fake).tags() == [name]
    assert references.TAG.fullmatch(tag)


# --- hostile content --------------------------------------------------------------------------------------------------


def test_a_feature_without_a_kernel_name_keeps_its_own_in_cpuinfo(fake: type[FakeRegistry]) -> None:
    name = image(fake, "2.20.0", {"io.tfbuild.features": "avx sse3 avx_ifma something_new"})
    gather(fake, name)
    annotations = json.loads(fake.content["manifests/latest-mkl"][1])["manifests"][0]["annotations"]
    assert annotations["io.tfbuild.cpuinfo"] == "avx avx_ifma pni something_new"


@pytest.mark.parametrize(
    "labels",
    [
        {"io.tfbuild.id": "2.20.0-mkl\x1b[31m"},
        {"io.tfbuild.id": "../x"},
        {"io.tfbuild.instruction-set": "[bold]avx\x07"},
        {"io.tfbuild.features": "avx\x1b]0;x"},
    ],
)
def test_labels_that_no_plan_writes_are_refused(labels: dict[str, str]) -> None:
    build = plan.select(Request(target="mkl", release="2.20.0", cpu="avx", platform="linux/amd64"), None)
    valid = labels_of(build)
    digest = digest_of(b"")
    assert indexes.of_config({"config": {"Labels": valid}}, digest) is not None
    assert indexes.of_config({"config": {"Labels": valid | labels}}, digest) is None
    assert indexes.of_config({"config": {"Labels": valid}}, "latest") is None


def test_an_image_without_a_list_of_features_is_refused() -> None:
    build = plan.select(Request(target="mkl", release="2.20.0", cpu="avx", platform="linux/amd64"), None)
    labels = {name: value for name, value in labels_of(build).items() if name != "io.tfbuild.features"}
    assert indexes.of_config({"config": {"Labels": labels}}, digest_of(b"")) is None


@pytest.mark.parametrize("config", [{"config": "x"}, {"config": {"Labels": ["x"]}}, {"config": []}, {"created": 1}])
def test_a_malformed_configuration_is_refused(config: dict[str, object]) -> None:
    assert indexes.of_config(config, digest_of(b"")) is None


def test_a_malformed_index_offers_nothing(fake: type[FakeRegistry]) -> None:
    rows = [{"annotations": ["x"]}, {"annotations": {"io.tfbuild.release": 1}, "digest": 2}, "x"]
    fake.content["manifests/latest-mkl"] = (manifests.INDEX, json.dumps({"manifests": rows}).encode())
    assert offered(fake, "latest-mkl") == []


@pytest.mark.parametrize("layers", ["x", [1], [{"size": "many"}], [{"size": None}], {"size": 1}])
def test_invalid_sizes_are_not_counted(layers: object) -> None:
    content = json.dumps({"layers": layers}).encode()
    assert Manifest(digest="x", media_type=manifests.IMAGES[0], content=content).size == 0


def test_an_engine_may_know_an_image_by_either_of_its_digests(fake: type[FakeRegistry]) -> None:
    """An index has neither, because it does not identify one image."""
    manifest = connect(fake).manifest(image(fake, "2.20.0"))
    assert manifest is not None
    assert manifest.ids == (manifest.config, digest_of(manifest.content))
    assert Manifest(digest=manifest.digest, media_type=manifests.INDEX, content=b'{"manifests": []}').ids == ()


class Pulled(Engine):
    """An engine that knows the image it pulled by `id`."""

    def __init__(self, id: str) -> None:
        self.id, self.names = id, list[str]()

    def pull(self, ref: str, progress: Progress) -> None:
        pass

    def image(self, ref: str) -> Any:
        return type("Image", (), {"id": self.id})

    def tag(self, ref: str, new: str) -> None:
        self.names.append(new)


def test_a_pulled_image_is_recognized_by_either_digest(fake: type[FakeRegistry]) -> None:
    name = image(fake, "2.20.0")
    registry = connect(fake)
    manifest = registry.manifest(name)
    assert manifest is not None
    choice = Choice(best=published(registry, name), nearest=None, missing=(), passed_over=())
    for known in manifest.ids:
        engine = Pulled(known)
        assert publish.pull(engine, registry, choice, Progress()) == f"{registry.repository}:{name}"
        assert engine.names == [f"{registry.repository}:{name}"]
    other = Pulled(digest_of(b"other"))
    with pytest.raises(RegistryRefused, match="is another image on this engine"):
        publish.pull(other, registry, choice, Progress())
    assert other.names == []


def test_json_that_nests_too_deeply_is_refused(fake: type[FakeRegistry]) -> None:
    fake.content["manifests/x"] = (manifests.INDEX, b"[" * 1_000_000)
    with pytest.raises(RegistryRefused, match="is not JSON"):
        connect(fake).manifest("x")


def test_an_endless_list_of_tags_is_refused(fake: type[FakeRegistry], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MOST_PAGES", 20)
    fake.content["tags/list"] = ("endless", b'{"tags": []}')
    with pytest.raises(RegistryRefused, match="an endless list of them"):
        connect(fake).tags()


def test_invalid_tags_are_left_out(fake: type[FakeRegistry]) -> None:
    fake.content["tags/list"] = ("application/json", json.dumps({"tags": ["a-b", "x\x1b[31m", "../x", 1]}).encode())
    assert connect(fake).tags() == ["1", "a-b"]


def test_a_refusals_reason_has_no_control_characters(fake: type[FakeRegistry]) -> None:
    fake.needs, fake.reason = "nobody's", "No\x1b[31m"
    with pytest.raises(RegistryRefused) as refusal:
        connect(fake).manifest("x")
    assert "\x1b" not in str(refusal.value)


def test_given_certificates_override_those_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "TRIES", 0)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "none"))
    monkeypatch.setenv("NO_PROXY", "*")
    (tmp_path / "ca.pem").write_text("")
    with pytest.raises(RegistryRefused, match=r"registry\.invalid"):
        Registry(Repository.parse("registry.invalid/us/x"), ca=tmp_path / "ca.pem").manifest("x")


def test_an_identifier_that_is_not_a_tag_is_refused(fake: type[FakeRegistry], tmp_path: Path) -> None:
    name = image(fake, "2.20.0", {"io.tfbuild.id": "../x\x1b[31m"})
    digest = digest_of(fake.content[f"manifests/{name}"][1])
    with pytest.raises(UnknownImage, match="was not made by tfbuild"):
        described.check(connect(fake), digest, tmp_path)


@pytest.mark.parametrize("config", [{"config": ["x"]}, {"config": {"Labels": ["x"]}}, {"config": 1}, {}])
def test_checking_an_image_with_a_malformed_configuration_is_refused(
    config: dict[str, object], fake: type[FakeRegistry], tmp_path: Path
) -> None:
    content = json.dumps(config).encode()
    fake.content[f"blobs/{digest_of(content)}"] = ("application/octet-stream", content)
    manifest = json.dumps({"mediaType": manifests.IMAGES[0], "config": {"digest": digest_of(content)}}).encode()
    fake.content["manifests/x"] = (manifests.IMAGES[0], manifest)
    with pytest.raises(UnknownImage, match="x was not made by tfbuild"):
        described.check(connect(fake), "x", tmp_path)


def test_an_error_message_has_no_control_characters() -> None:
    message = str(VerificationFailed("labels differ: \x1b[2J\x9b1m\u202ex\r, é and\nmore\tof it"))
    assert message == "error: labels differ: [2J1mx, é and\nmore\tof it"
