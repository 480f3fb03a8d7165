"""What a registry sends is anybody's: nothing of it is believed unread, and nothing half-pushed takes the rest away."""

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

from tests.machines import machine
from tfbuild import cpu, plan, publish
from tfbuild.cli import publishing
from tfbuild.context.labels import labels_of
from tfbuild.cpu import isa
from tfbuild.engine import Engine, Progress
from tfbuild.errors import NothingFits, RegistryRefused, UnknownImage, UsageError, VerificationFailed
from tfbuild.oci import client, referrers
from tfbuild.oci.client import Registry, Repository
from tfbuild.plan import Request
from tfbuild.publish import described, indexes
from tfbuild.publish.choose import Choice, Published


class Shelf(BaseHTTPRequestHandler):
    """Manifests, blobs and tags as they were put in, by the path below /v2/us/x/."""

    content: dict[str, tuple[str, bytes]] = {}  # noqa: RUF012 - each server has a class of its own
    seen: list[str] = []  # noqa: RUF012
    asked: list[str] = []  # noqa: RUF012
    links: dict[str, dict[str, str]] = {}  # noqa: RUF012
    needs = ""
    realm = ""
    reason: str | None = None

    def do_GET(self) -> None:
        self.seen.append(self.headers.get("Authorization", ""))
        self.asked.append(f"{self.command} {self.path}")
        path = self.path.removeprefix("/v2/us/x/").partition("?")[0]
        if self.needs and self.headers.get("Authorization") != self.needs:
            challenge = f'Bearer realm="{self.realm}",service="x",scope="pull"' if self.realm else 'Basic realm="x"'
            self.answer(401, "application/json", b"{}", **{"WWW-Authenticate": challenge})
        elif path in self.content:
            kind, body = self.content[path]
            # Relative to what was asked for, as any link is.
            more = {"Link": '<list>; rel="next"'} if kind == "endless" else self.links.get(self.path, {})
            told = {"Docker-Content-Digest": client.digest_of(body)} if path.startswith("manifests/") else {}
            self.answer(200, kind, body, **more, **told)
        elif path == "tags/list":
            tags = [name.partition("/")[2] for name in self.content if re.fullmatch("manifests/[^:]+", name)]
            self.answer(200, "application/json", json.dumps({"tags": tags}).encode())
        else:
            self.answer(404, "application/json", b"{}")

    do_HEAD = do_GET  # noqa: N815

    def do_PUT(self) -> None:
        self.asked.append(f"{self.command} {self.path}")
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
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Shelf]]:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    handler = type("Here", (Shelf,), {"content": {}, "seen": [], "asked": [], "links": {}})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        handler.host = f"127.0.0.1:{server.server_port}"  # type: ignore[attr-defined]
        yield handler
        server.shutdown()


def registry(here: type[Shelf]) -> Registry:
    return Registry(Repository.parse(f"{here.host}/us/x"))  # type: ignore[attr-defined]


@cache
def planned(release: str, cpu: str) -> dict[str, str]:
    build = plan.select(Request(target="mkl", release=release, cpu=cpu, platform="linux/amd64"), None)
    return labels_of(build)


def image(
    here: type[Shelf], release: str, labels: dict[str, str] | None = None, *, whole: bool = True, cpu: str = "avx"
) -> str:
    """Puts an image there as a push does, or as one that was stopped before its papers were attached."""
    every = planned(release, cpu) | (labels or {})
    told = {"created": "2026-11-01T00:00:00Z", "config": {"Labels": every}}
    config = json.dumps(told).encode()
    digest = client.digest_of(config)
    here.content[f"blobs/{digest}"] = ("application/octet-stream", config)
    document = {"schemaVersion": 2, "mediaType": client.IMAGES[0], "config": {"digest": digest}, "layers": []}
    content = json.dumps(document).encode()
    manifest = client.digest_of(content)
    for name in (every["io.tfbuild.id"], manifest):
        here.content[f"manifests/{name}"] = (client.IMAGES[0], content)
    if whole:
        rows = [{"artifactType": kind} for kind in referrers.NEEDED]
        here.content[f"referrers/{manifest}"] = (client.INDEX, json.dumps({"manifests": rows}).encode())
    return every["io.tfbuild.id"]


def offered(here: type[Shelf], tag: str) -> list[str]:
    index = registry(here).manifest(tag)
    assert index is not None
    return [one.id for one in indexes.read_index(index)]


def published(place: Registry, name: str) -> Published:
    manifest = place.manifest(name)
    assert manifest is not None
    found = indexes.of_config(place.config(manifest), manifest.digest)
    assert found is not None
    return found


def gather(here: type[Shelf], name: str) -> list[str]:
    place = registry(here)
    return indexes.gather(place, published(place, name))


def newer(here: type[Shelf], name: str) -> str:
    """An image of a newer release, with the Python and the instruction set of an image of 2.14.1."""
    return image(here, "2.20.0", {"io.tfbuild.id": name.replace("2.14.1", "2.20.0"), "io.tfbuild.python": "3.11"})


def empty_referrers(here: type[Shelf], name: str) -> None:
    manifest = client.digest_of(here.content[f"manifests/{name}"][1])
    here.content[f"referrers/{manifest}"] = (client.INDEX, b'{"manifests": []}')


def test_a_half_pushed_newer_release_does_not_empty_latest(here: type[Shelf]) -> None:
    old = image(here, "2.14.1")
    empty_referrers(here, image(here, "2.20.0", whole=False))
    here.content["manifests/9999-mkl-of-somebody"] = ("text/plain", b"{}")
    gather(here, old)
    assert offered(here, "latest-mkl") == [old]


def test_a_push_reads_the_images_that_an_index_names_by_one_request_each(here: type[Shelf]) -> None:
    names = [image(here, "2.20.0", {"io.tfbuild.id": f"2.20.0-mkl-py3.13-avx-{number}"}) for number in range(100)]
    gather(here, names[0])
    assert len(offered(here, "2.20-mkl")) == 100
    new = image(here, "2.20.0", {"io.tfbuild.id": "2.20.0-mkl-py3.13-avx-new"})
    here.asked.clear()
    gather(here, new)
    assert offered(here, "latest-mkl").count(new) == 1
    # Once to see what is there, and once more to see that nothing changed meanwhile.
    assert len([one for one in here.asked if one.startswith("HEAD ")]) == 2 * 101
    assert len([one for one in here.asked if "/blobs/" in one]) == 1
    assert len(here.asked) < 230


def test_a_registry_that_tells_no_digests_is_read_in_full(here: type[Shelf], monkeypatch: pytest.MonkeyPatch) -> None:
    name = image(here, "2.20.0")
    monkeypatch.setattr(client.Registry, "digest", lambda self, tag: "")
    gather(here, name)
    assert offered(here, "2.20-mkl") == [name]


def test_a_fixed_tag_that_moved_is_read_again(here: type[Shelf]) -> None:
    old, other = image(here, "2.20.0"), image(here, "2.20.0", cpu="x86-64-v3")
    gather(here, old)
    before = registry(here).digest(old)
    image(here, "2.20.0", {"io.tfbuild.version": "later"})
    assert registry(here).digest(old) != before
    gather(here, other)
    index = registry(here).manifest("2.20-mkl")
    assert index is not None
    assert {one.digest for one in indexes.read_index(index)} == {registry(here).digest(name) for name in (old, other)}


def test_an_image_that_an_index_lacks_or_tells_other_things_of_is_not_offered(here: type[Shelf]) -> None:
    name = image(here, "2.14.1")
    place = registry(here)
    found = published(place, name)
    tags = indexes.indexes(found)
    assert tags == ("2.14-mkl", "2.14.1-mkl", "latest-mkl")
    assert indexes.standing(place, found) == indexes.Standing(lacking=tags, named=False)
    gather(here, name)
    assert indexes.standing(place, found) == indexes.Standing(lacking=(), named=True)
    del here.content["manifests/2.14-mkl"]
    kind, content = here.content["manifests/2.14.1-mkl"]
    here.content["manifests/2.14.1-mkl"] = (kind, content.replace(b'"avx', b'"sse'))
    assert indexes.standing(place, found).lacking == ("2.14-mkl", "2.14.1-mkl")
    # The latest one need not name an image of which there is one of a newer release.
    gather(here, newer(here, name))
    assert indexes.standing(place, found).lacking == ("2.14-mkl", "2.14.1-mkl")
    assert name not in offered(here, "latest-mkl")


def test_a_push_names_the_indexes_that_offer_its_image_and_no_others(here: type[Shelf]) -> None:
    old, other = image(here, "2.14.1"), image(here, "2.14.1", cpu="x86-64-v3")
    assert gather(here, newer(here, old)) == ["2.20-mkl", "2.20.0-mkl", "latest-mkl"]
    assert gather(here, old) == ["2.14-mkl", "2.14.1-mkl"]
    assert gather(here, other) == ["2.14-mkl", "2.14.1-mkl", "latest-mkl"]


def test_an_image_that_no_index_offers_was_not_pushed_well(here: type[Shelf]) -> None:
    """Its fixed tag is another image by now, or what was attached to it is not listed."""
    name = image(here, "2.20.0")
    first = published(registry(here), name)
    image(here, "2.20.0", {"io.tfbuild.version": "later"})
    with pytest.raises(RegistryRefused, match=f"no index of .* offers {first.digest}"):
        indexes.gather(registry(here), first)
    assert offered(here, "2.20-mkl") == [name]
    empty_referrers(here, name)
    with pytest.raises(RegistryRefused, match="its provenance are gone"):
        gather(here, name)


def break_blob(here: type[Shelf], name: str, content: bytes | None) -> None:
    """Takes the configuration of an image away, or puts other bytes under its digest."""
    digest = json.loads(here.content[f"manifests/{name}"][1])["config"]["digest"]
    kind, _ = here.content.pop(f"blobs/{digest}")
    if content is not None:
        here.content[f"blobs/{digest}"] = (kind, content)


@pytest.mark.parametrize("content", [None, b"{}", b"x" * (client.MOST_BYTES + 1)])
def test_a_damaged_image_keeps_no_other_from_being_listed_and_offered(here: type[Shelf], content: bytes | None) -> None:
    broken, sound = image(here, "2.20.0"), image(here, "2.20.0", cpu="x86-64-v3")
    break_blob(here, broken, content)
    notes: list[str] = []
    place = registry(here)
    listed = indexes.images(place, place.tags(), notes.append)
    assert [found.id for found, _ in listed] == [sound]
    (note,) = notes
    assert f"{place.repository}:{broken} is left out" in note
    notes.clear()
    assert indexes.gather(registry(here), published(registry(here), sound), notes.append)[-1] == "latest-mkl"
    assert notes == [note]
    assert offered(here, "latest-mkl") == [sound]


def test_a_configuration_that_is_none_damages_its_image_alone(here: type[Shelf]) -> None:
    sound = image(here, "2.20.0")
    for digest in ("", "../tags/list", client.digest_of(b"[]")):
        document = {"mediaType": client.IMAGES[0], "config": {"digest": digest}}
        here.content[f"manifests/2.20.0-mkl-of-{len(digest)}"] = (client.IMAGES[0], json.dumps(document).encode())
    here.content[f"blobs/{client.digest_of(b'[]')}"] = ("application/octet-stream", b"[]")
    notes: list[str] = []
    assert [found.id for found, _ in indexes.images(registry(here), registry(here).tags(), notes.append)] == [sound]
    assert len(notes) == 3


def test_a_registry_in_trouble_is_not_taken_for_damage(here: type[Shelf], monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its indexes would be written without what it cannot give just now."""
    monkeypatch.setattr(client, "TRIES", 0)
    name, other = image(here, "2.20.0"), image(here, "2.20.0", cpu="x86-64-v3")
    digest = json.loads(here.content[f"manifests/{other}"][1])["config"]["digest"]
    whole = here.do_GET

    def do_get(self: Shelf) -> None:
        if self.path.endswith(digest):
            self.answer(503, "application/json", b"{}")
        else:
            whole(self)

    monkeypatch.setattr(here, "do_GET", do_get)
    with pytest.raises(RegistryRefused, match="answers 503"):
        gather(here, name)
    assert "manifests/latest-mkl" not in here.content


def test_a_python_that_is_not_published_is_not_taken_for_a_cpu_that_is_too_old(here: type[Shelf]) -> None:
    for python in ("3.9", "3.13"):
        image(here, "2.20.0", {"io.tfbuild.id": f"2.20.0-mkl-py{python}-avx", "io.tfbuild.python": python})
    gather(here, "2.20.0-mkl-py3.9-avx")
    host = cpu.parse(machine("rocky9-zen5").cpuinfo())

    def select(python: str) -> Choice:
        features = frozenset(isa.of_cpu(host).features)
        return publish.select(registry(here), host, features, release="2.20", target="mkl", python=python)

    with pytest.raises(NothingFits, match=r"(?s)2.20-mkl has no image with Python 3.10.*hint: it has: 3.9, 3.13"):
        select("3.10")
    found = select("")
    assert found.best is not None
    (other,) = found.passed_over
    assert other.reason == "Python 3.13 is newer; --python 3.9 chooses among such images"


def test_where_nothing_fits_json_has_the_nearest_and_what_is_missing(
    here: type[Shelf], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("x86-64-v4", "x86-64-v3"):
        gather(here, image(here, "2.20.0", cpu=name))
    words: dict[str, Any] = {"release": "", "target": "mkl", "python": "", "ca_cert": "", "dry_run": True, "json": True}
    words |= {"engine": "", "signed": ""}
    words["registry"] = f"{here.host}/us/x"  # type: ignore[attr-defined]

    (tmp_path / "cpuinfo").write_text("processor\t: 0\nvendor_id\t: GenuineIntel\nflags\t\t: fpu sse sse2 lm\n")
    with pytest.raises(NothingFits):
        publishing.pull(**words, cpuinfo=str(tmp_path / "cpuinfo"))
    told = json.loads(capsys.readouterr().out)
    assert (told["id"], told["reference"], told["image"]) == (None, None, None)
    assert told["nearest"].endswith("x86-64-v3")
    assert "avx2" in told["missing"]
    assert "avx512f" not in told["missing"]
    assert len(told["passed_over"]) == 2
    (tmp_path / "cpuinfo").write_text(machine("rhel7-haswell").cpuinfo())
    publishing.pull(**words, cpuinfo=str(tmp_path / "cpuinfo"))
    told = json.loads(capsys.readouterr().out)
    assert told["id"].endswith("x86-64-v3")
    assert (told["image"], told["nearest"], told["missing"], len(told["passed_over"])) == (None, None, [], 1)


# --- which errors say what to do --------------------------------------------------------------------------------------


def sold_by(here: type[Shelf], status: int, monkeypatch: pytest.MonkeyPatch) -> RegistryRefused:
    """What is said where the registry wants a token of a server that answers `status`."""
    monkeypatch.setattr(client, "TRIES", 1)
    monkeypatch.setattr(client, "BACKOFF", 0)

    def answer(self: BaseHTTPRequestHandler) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    quiet = {"do_GET": answer, "log_message": lambda *_: None}
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Seller", (BaseHTTPRequestHandler,), quiet)) as seller:
        threading.Thread(target=seller.serve_forever, args=(0.01,), daemon=True).start()
        here.needs, here.realm = "a token", f"http://127.0.0.1:{seller.server_port}/token"
        with pytest.raises(RegistryRefused) as refusal:
            registry(here).manifest("x")
        seller.shutdown()
    return refusal.value


@pytest.mark.parametrize(
    ("status", "said", "hint"),
    [
        (401, "us/x answers 401", "docker login"),
        (403, "us/x answers 401", "docker login"),
        (429, "has its tokens from, answers 429", "too many requests"),
        (503, "has its tokens from, answers 503", "in trouble; try again later"),
    ],
)
def test_trouble_where_tokens_are_sold_is_not_taken_for_a_wrong_password(
    here: type[Shelf], status: int, said: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = sold_by(here, status, monkeypatch)
    assert said in refusal.reason
    assert hint in refusal.hint


def test_a_token_server_that_cannot_be_reached_is_named(here: type[Shelf], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "TRIES", 0)
    monkeypatch.setenv("NO_PROXY", "*")
    here.needs, here.realm = "a token", "https://tokens.invalid/token"
    with pytest.raises(RegistryRefused, match=r"^error: tokens.invalid, where 127.0.0.1.* does not answer"):
        registry(here).manifest("x")


# urllib3 leaves the socket of a failed TLS handshake to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize(
    ("certified", "said"),
    [
        (True, r"(?s)where .* has no certificate that is trusted.*--ca-cert"),
        (False, r"(?s)where .* does not speak TLS.*put TLS before it"),
    ],
)
def test_a_token_server_without_a_certificate_is_named(
    certified: bool, said: str, here: type[Shelf], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "TRIES", 0)
    with ThreadingHTTPServer(("127.0.0.1", 0), here) as seller:
        if certified:
            seller.socket = stranger(tmp_path).wrap_socket(seller.socket, server_side=True)
        threading.Thread(target=seller.serve_forever, args=(0.01,), daemon=True).start()
        here.needs, here.realm = "a token", f"https://127.0.0.1:{seller.server_port}/token"
        with pytest.raises(RegistryRefused, match=said):
            registry(here).manifest("x")
        seller.shutdown()
    gc.collect()


def stranger(folder: Path) -> ssl.SSLContext:
    """A server's side of TLS, with a certificate that nobody signed."""
    new = ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    words = ("-subj", "/CN=stranger", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "x.pem")
    subprocess.run([*new, *words], cwd=folder, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "x.pem", folder / "key.pem")
    return context


@pytest.mark.parametrize(
    "realm", ["http://tokens.invalid/x", "http://127.evil.example/x", "file:///etc/passwd", "//x", ""]
)
def test_credentials_are_not_sent_in_the_open(here: type[Shelf], realm: str) -> None:
    here.needs, here.realm = "a token", realm or " "
    with pytest.raises(RegistryRefused, match="which is not https"):
        registry(here).manifest("x")


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (403, {"code": "DENIED", "message": "adding 1 GiB will exceed the configured upper limit of 1 GiB"}),
        (403, {"code": "DENIED", "message": "denied", "detail": "storage quota of us is used up"}),
        (500, {"code": "UNKNOWN", "message": "mkdir /var/lib/registry: no space left on device"}),
        (413, {}),
    ],
)
def test_a_registry_without_room_says_so(
    here: type[Shelf], status: int, error: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "TRIES", 0)
    body = json.dumps({"errors": [error]}).encode()
    monkeypatch.setattr(here, "do_PUT", lambda self: self.answer(status, "application/json", body))
    with pytest.raises(RegistryRefused) as refusal:
        registry(here).put("x", b"{}", client.INDEX)
    assert f"answers {status}" in refusal.value.reason
    assert refusal.value.hint == "the registry's quota or size limit is reached: make room there"


def test_a_quota_of_requests_is_not_one_of_room(here: type[Shelf], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "TRIES", 0)
    body = b'{"errors": [{"code": "TOOMANYREQUESTS", "message": "Quota exceeded for requests per minute"}]}'
    monkeypatch.setattr(here, "do_PUT", lambda self: self.answer(429, "application/json", body))
    with pytest.raises(RegistryRefused, match="hint: too many requests"):
        registry(here).put("x", b"{}", client.INDEX)


@pytest.mark.parametrize(
    ("status", "message", "hint"),
    [
        (400, "The image tag 'latest-mkl' already exists and cannot be overwritten because it is immutable.", "moving"),
        (412, "Failed to process request due to 'latest-mkl' configured as immutable.", "moving ones"),
        (400, "manifest invalid", "takes no such request"),
        (404, "repository name not known to registry", "make none by themselves"),
        (405, "the operation is unsupported", "read-only"),
        (409, "blob upload is in progress", "try again later"),
        (418, "", "takes no such request"),
    ],
)
def test_what_no_later_time_changes_is_not_called_a_registrys_trouble(
    here: type[Shelf], status: int, message: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = json.dumps({"errors": [{"code": "X", "message": message}]}).encode()
    monkeypatch.setattr(here, "do_PUT", lambda self: self.answer(status, "application/json", body))
    with pytest.raises(RegistryRefused) as refusal:
        registry(here).put("latest-mkl", b'{"manifests": []}', client.INDEX)
    assert hint in refusal.value.hint
    assert "in trouble" not in refusal.value.hint


def test_a_registry_that_takes_no_index_over_dockers_manifests_is_told_from_others(
    here: type[Shelf], monkeypatch: pytest.MonkeyPatch
) -> None:
    body = b'{"errors": [{"code": "MANIFEST_INVALID", "message": "manifest invalid"}]}'
    monkeypatch.setattr(here, "do_PUT", lambda self: self.answer(400, "application/json", body))
    for kind, told in ((client.IMAGES[1], True), (client.IMAGES[0], False)):
        content = json.dumps({"manifests": [{"mediaType": kind}]}).encode()
        with pytest.raises(RegistryRefused) as refusal:
            registry(here).put("latest-mkl", content, client.INDEX)
        assert ("older Quays" in refusal.value.hint) == told


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
def test_only_this_machine_is_spoken_to_in_the_open(host: str, scheme: str) -> None:
    assert Repository.parse(f"{host}/us/x").url == f"{scheme}://{host}/v2/us/x/"


def test_a_registry_at_an_ipv6_address_needs_a_name() -> None:
    with pytest.raises(UsageError, match=r"(?s)IPv6.*/etc/hosts"):
        Repository.parse("[::1]:5000/us/x")


# --- lists in parts ---------------------------------------------------------------------------------------------------


def test_referrers_are_read_to_their_last_page(here: type[Shelf]) -> None:
    digest = client.digest_of(b"")
    parts = [[{"digest": "a", "artifactType": referrers.SBOM}], [{"digest": "b", "artifactType": referrers.PROVENANCE}]]
    for name, part in zip((digest, "the-rest"), parts, strict=True):
        here.content[f"referrers/{name}"] = (client.INDEX, json.dumps({"manifests": part}).encode())
    assert not referrers.complete(registry(here), digest)
    here.links[f"/v2/us/x/referrers/{digest}"] = {"Link": '<the-rest?n=1>; rel="next"'}
    assert referrers.listed(registry(here), digest) == [*parts[0], *parts[1]]
    assert referrers.complete(registry(here), digest)


def test_referrers_without_an_end_are_refused(here: type[Shelf], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MOST_PAGES", 20)
    here.content["referrers/x"] = (client.INDEX, b'{"manifests": []}')
    here.links["/v2/us/x/referrers/x"] = {"Link": '<x>; rel="next"'}
    with pytest.raises(RegistryRefused, match="no end of them"):
        registry(here).referrers("x")


@pytest.mark.parametrize("status", [404, 405])
def test_a_registry_that_lists_no_referrers_has_them_under_a_tag(
    status: int, here: type[Shelf], monkeypatch: pytest.MonkeyPatch
) -> None:
    get = here.do_GET
    digest = client.digest_of(b"")

    def answer(self: Shelf) -> None:
        if "/referrers/" in self.path:
            self.answer(status, "application/json", b"{}")
        else:
            get(self)

    monkeypatch.setattr(here, "do_GET", answer)
    rows = [{"artifactType": kind} for kind in referrers.NEEDED]
    content = json.dumps({"manifests": rows}).encode()
    here.content[f"manifests/{referrers.fallback_tag(digest)}"] = (client.INDEX, content)
    assert registry(here).referrers(digest) is None
    assert referrers.complete(registry(here), digest)


@pytest.mark.parametrize("where", ["/v2/elsewhere/7?state=x", "7?state=x", "?state=x"])
def test_an_upload_goes_to_where_the_registry_says(
    where: str, here: type[Shelf], monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin(self: Shelf) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self.answer(202, "text/plain", b"", Location=where)

    monkeypatch.setattr(here, "do_POST", begin, raising=False)
    digest = registry(here).upload(b"content")
    begun = "/v2/us/x/blobs/uploads/"
    assert here.asked[-1] == f"PUT {where if where[0] == '/' else begun + where}&digest={digest}"


def test_what_is_on_its_way_is_no_tag_of_an_image(here: type[Shelf]) -> None:
    name = image(here, "2.20.0")
    tag = client.arriving_tag(f"sha256:{64 * 'a'}")
    here.content[f"manifests/{tag}"] = here.content[f"manifests/{name}"]
    assert registry(here).tags() == [name]
    assert client.TAG.fullmatch(tag)


# --- hostile content --------------------------------------------------------------------------------------------------


def test_what_no_kernel_prints_keeps_the_shell_form_from_an_image(here: type[Shelf]) -> None:
    name = image(here, "2.20.0", {"io.tfbuild.features": "avx sse3 avx_ifma something_new"})
    gather(here, name)
    notes = json.loads(here.content["manifests/latest-mkl"][1])["manifests"][0]["annotations"]
    assert notes["io.tfbuild.cpuinfo"] == "avx avx_ifma pni something_new"


@pytest.mark.parametrize(
    "labels",
    [
        {"io.tfbuild.id": "2.20.0-mkl\x1b[31m"},
        {"io.tfbuild.id": "../x"},
        {"io.tfbuild.instruction-set": "[bold]avx\x07"},
        {"io.tfbuild.features": "avx\x1b]0;x"},
    ],
)
def test_labels_that_no_plan_has_are_not_tfbuilds(labels: dict[str, str]) -> None:
    build = plan.select(Request(target="mkl", release="2.20.0", cpu="avx", platform="linux/amd64"), None)
    known = labels_of(build)
    digest = client.digest_of(b"")
    assert indexes.of_config({"config": {"Labels": known}}, digest) is not None
    assert indexes.of_config({"config": {"Labels": known | labels}}, digest) is None
    assert indexes.of_config({"config": {"Labels": known}}, "latest") is None


def test_an_image_that_does_not_say_its_features_does_not_fit_every_host() -> None:
    build = plan.select(Request(target="mkl", release="2.20.0", cpu="avx", platform="linux/amd64"), None)
    labels = {name: value for name, value in labels_of(build).items() if name != "io.tfbuild.features"}
    assert indexes.of_config({"config": {"Labels": labels}}, client.digest_of(b"")) is None


@pytest.mark.parametrize("config", [{"config": "x"}, {"config": {"Labels": ["x"]}}, {"config": []}, {"created": 1}])
def test_a_configuration_of_another_shape_is_not_tfbuilds(config: dict[str, object]) -> None:
    assert indexes.of_config(config, client.digest_of(b"")) is None


def test_an_index_of_another_shape_offers_nothing(here: type[Shelf]) -> None:
    rows = [{"annotations": ["x"]}, {"annotations": {"io.tfbuild.release": 1}, "digest": 2}, "x"]
    here.content["manifests/latest-mkl"] = (client.INDEX, json.dumps({"manifests": rows}).encode())
    assert offered(here, "latest-mkl") == []


@pytest.mark.parametrize("layers", ["x", [1], [{"size": "many"}], [{"size": None}], {"size": 1}])
def test_sizes_that_are_none_count_nothing(layers: object) -> None:
    content = json.dumps({"layers": layers}).encode()
    assert client.Manifest(digest="x", media_type=client.IMAGES[0], content=content).size == 0


def test_an_engine_knows_an_image_by_either_of_its_digests(here: type[Shelf]) -> None:
    """And an index by neither: what it gathers is not told apart by it."""
    manifest = registry(here).manifest(image(here, "2.20.0"))
    assert manifest is not None
    assert manifest.ids == (manifest.config, client.digest_of(manifest.content))
    assert client.Manifest(digest=manifest.digest, media_type=client.INDEX, content=b'{"manifests": []}').ids == ()


class Pulled(Engine):
    """An engine that has pulled an image, which it knows by `id`."""

    def __init__(self, id: str) -> None:
        self.id, self.names = id, list[str]()

    def pull(self, ref: str, progress: Progress) -> None:
        pass

    def image(self, ref: str) -> Any:
        return type("Found", (), {"id": self.id})

    def tag(self, ref: str, new: str) -> None:
        self.names.append(new)


def test_what_was_pulled_is_known_again_however_the_engine_keeps_images(here: type[Shelf]) -> None:
    name = image(here, "2.20.0")
    place = registry(here)
    manifest = place.manifest(name)
    assert manifest is not None
    choice = Choice(best=published(place, name), nearest=None, missing=(), passed_over=())
    for known in manifest.ids:
        engine = Pulled(known)
        assert publish.pull(engine, place, choice, Progress()) == f"{place.repository}:{name}"
        assert engine.names == [f"{place.repository}:{name}"]
    other = Pulled(client.digest_of(b"other"))
    with pytest.raises(RegistryRefused, match="is another image on this engine"):
        publish.pull(other, place, choice, Progress())
    assert other.names == []


def test_json_without_an_end_to_its_depth_is_refused(here: type[Shelf]) -> None:
    here.content["manifests/x"] = (client.INDEX, b"[" * 1_000_000)
    with pytest.raises(RegistryRefused, match="no JSON"):
        registry(here).manifest("x")


def test_a_list_of_tags_without_an_end_is_refused(here: type[Shelf], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MOST_PAGES", 20)
    here.content["tags/list"] = ("endless", b'{"tags": []}')
    with pytest.raises(RegistryRefused, match="no end of them"):
        registry(here).tags()


def test_tags_that_no_registry_has_are_left_out(here: type[Shelf]) -> None:
    here.content["tags/list"] = ("application/json", json.dumps({"tags": ["a-b", "x\x1b[31m", "../x", 1]}).encode())
    assert registry(here).tags() == ["1", "a-b"]


def test_an_answers_reason_is_fit_for_a_terminal(here: type[Shelf]) -> None:
    here.needs, here.reason = "nobody's", "No\x1b[31m"
    with pytest.raises(RegistryRefused) as refusal:
        registry(here).manifest("x")
    assert "\x1b" not in str(refusal.value)


def test_the_certificates_that_are_given_go_before_the_environments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "TRIES", 0)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "none"))
    monkeypatch.setenv("NO_PROXY", "*")
    (tmp_path / "ca.pem").write_text("")
    with pytest.raises(RegistryRefused, match=r"registry\.invalid"):
        Registry(Repository.parse("registry.invalid/us/x"), ca=tmp_path / "ca.pem").manifest("x")


def test_an_identifier_that_is_no_tag_names_no_file(here: type[Shelf], tmp_path: Path) -> None:
    name = image(here, "2.20.0", {"io.tfbuild.id": "../x\x1b[31m"})
    digest = client.digest_of(here.content[f"manifests/{name}"][1])
    with pytest.raises(UnknownImage, match="was not made by tfbuild"):
        described.check(registry(here), digest, tmp_path)


@pytest.mark.parametrize("config", [{"config": ["x"]}, {"config": {"Labels": ["x"]}}, {"config": 1}, {}])
def test_an_image_whose_configuration_has_another_shape_is_not_tfbuilds(
    config: dict[str, object], here: type[Shelf], tmp_path: Path
) -> None:
    content = json.dumps(config).encode()
    here.content[f"blobs/{client.digest_of(content)}"] = ("application/octet-stream", content)
    manifest = json.dumps({"mediaType": client.IMAGES[0], "config": {"digest": client.digest_of(content)}}).encode()
    here.content["manifests/x"] = (client.IMAGES[0], manifest)
    with pytest.raises(UnknownImage, match="x was not made by tfbuild"):
        described.check(registry(here), "x", tmp_path)


def test_an_error_steers_no_terminal() -> None:
    told = str(VerificationFailed("labels differ: \x1b[2J\x9b1m\u202ex\r, é and\nmore\tof it"))
    assert told == "error: labels differ: [2J1mx, é and\nmore\tof it"
