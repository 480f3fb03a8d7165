"""A push from an engine to a registry: what is there afterwards, in which order it comes, and what stops it before."""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.oci.fake_registry import FakeRegistry, connect
from tests.oci.fake_registry import fake as fake
from tests.publish.fake_images import INDEXES, attach, digest, labels_of_plan, offered
from tests.publish.fake_images import image as foreign_image
from tests.publish.test_sbom import files
from tests.publish.test_signing import cosign as cosign
from tests.publish.test_signing import words
from tests.verify.test_report import report
from tfbuild.engine import Engine, Image
from tfbuild.errors import (
    RegistryRefused,
    TfbuildError,
    Unfinished,
    UnknownImage,
    UsageError,
    VerificationFailed,
    Yanked,
)
from tfbuild.oci import client, manifests
from tfbuild.oci.client import Registry
from tfbuild.oci.manifests import digest_of
from tfbuild.oci.references import Repository, familiar
from tfbuild.publish import pushing, signing
from tfbuild.publish.pushing import Pushed
from tfbuild.util.progress import Progress
from tfbuild.verify import report as reporting

PLATFORM = {"os": "linux", "architecture": "amd64"}
CREATED = "2026-11-01T00:00:00Z"


LAYER = b"a layer"
PULLED = "sha256:pulled"


class Host(Engine):
    """An engine with one image. It pushes to a fake registry."""

    def __init__(self, fake: type[FakeRegistry], labels: dict[str, str] | None = None) -> None:
        self.fake, self.labels = fake, labels_of_plan("2.20.0", "x86-64-v3") | (labels or {})
        self.config = json.dumps({**PLATFORM, "created": CREATED, "config": {"Labels": self.labels}}).encode()
        self.own_id = digest_of(self.config)
        self.identifier = self.labels.get("io.tfbuild.id", "")
        self.names = {f"tfbuild:{self.identifier}"}
        self.others: set[str] = set()  # the names of the image PULLED
        self.pushed: list[str] = []
        self.files = files()

    def exists(self, ref: str) -> bool:
        return familiar(ref) in {*self.names, *self.others, self.own_id, PULLED}

    def image(self, ref: str) -> Image:
        if not self.exists(ref) and not ref.startswith(f"{connect(self.fake).repository}@"):
            raise UnknownImage(f"no image {ref}", hint="")
        return Image(
            id=PULLED if familiar(ref) in self.others else self.own_id,
            labels=self.labels, size=1, env=(), architecture="amd64",
            repo_digests=(), tags=tuple(self.names), created=CREATED,
        )  # fmt: skip

    def labelled(self, label: str) -> list[Image]:
        return [self.image(self.own_id)] if label in self.labels else []

    def tag(self, ref: str, new: str) -> None:
        self.image(ref)
        gets, loses = (self.others, self.names) if ref == PULLED else (self.names, self.others)
        gets.add(familiar(new))
        loses.discard(familiar(new))

    def untag(self, ref: str) -> None:
        self.names.remove(familiar(ref))

    def push(self, ref: str, progress: Progress) -> None:
        assert familiar(ref) in self.names
        self.pushed.append(ref)
        self.arrive(ref.rpartition(":")[2])

    def arrive(self, tag: str) -> str:
        """Put the image under a tag, as a push of the engine does; return the digest of its manifest."""
        document = {"schemaVersion": 2, "mediaType": manifests.IMAGES[0], "config": {"digest": self.own_id}}
        content = json.dumps(document | {"layers": [{"digest": digest_of(LAYER), "size": len(LAYER)}]}).encode()
        self.fake.content[f"blobs/{digest_of(LAYER)}"] = ("application/octet-stream", LAYER)
        self.fake.content[f"blobs/{self.own_id}"] = ("application/octet-stream", self.config)
        for name in (tag, digest_of(content)):
            self.fake.content[f"manifests/{name}"] = (manifests.IMAGES[0], content)
        return digest_of(content)

    def read_files(self, ref: str, wanted: Callable[[str], bool], limit: int, *_: Any) -> dict[str, bytes]:
        self.image(ref)
        assert all(map(wanted, self.files))
        return self.files


@pytest.fixture
def host(fake: type[FakeRegistry], tmp_path: Path) -> Host:
    """An engine with an image that passed verification."""
    host = Host(fake)
    verified(host, tmp_path)
    return host


def verified(host: Host, reports: Path, verdict: str = "pass", **image: Any) -> None:
    facts = replace(report().image, **({"id": host.own_id} | image))
    written = replace(report(), id=host.identifier, verdict=verdict, image=facts)
    reporting.write_report(written, reports)


def push(host: Host, reports: Path, name: str = "", registry: Registry | None = None, **options: Any) -> Pushed:
    named = name or f"tfbuild:{host.identifier}"
    given = {"force": False, "progress": Progress(), **options}
    return pushing.push(host, named, registry or connect(host.fake), reports, **given)


def writes(fake: type[FakeRegistry]) -> list[str]:
    return [request for request in fake.requests if request.startswith(("PUT ", "DELETE "))]


def test_a_pushed_image_is_offered_with_its_attestations(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrive = host.arrive
    monkeypatch.setattr(host, "arrive", lambda tag: "")  # GHCR shows it some seconds late
    monkeypatch.setattr(time, "sleep", lambda seconds: seconds and arrive(host.identifier))
    done = push(host, tmp_path)
    registry = connect(host.fake)
    ref = f"{registry.repository}:{host.identifier}"
    assert (done.ref, list(done.moved), done.uploaded, done.signed) == (ref, INDEXES, True, False)
    assert done.digest == registry.digest(host.identifier)
    assert done.to_json() == {
        "image": ref, "digest": done.digest, "uploaded": True, "indexes": INDEXES, "sbom": done.sbom,
        "provenance": done.provenance, "signed": False,
    }  # fmt: skip
    assert [offered(host.fake, tag) for tag in INDEXES] == [[host.identifier]] * len(INDEXES)
    for kind, attachment, key in ((client.SBOM, done.sbom, "bomFormat"), (client.PROVENANCE, done.provenance, "_type")):
        manifest = registry.manifest(str(attachment))
        assert manifest is not None
        document = manifest.json()
        assert (document["artifactType"], document["subject"]["digest"]) == (kind, done.digest)
        assert key in json.loads(registry.blob(document["layers"][0]["digest"], "document"))
    # The engine does not keep the name of the upload.
    assert host.names == {f"tfbuild:{host.identifier}"}
    assert host.pushed == [ref]


def test_pushing_again_uploads_nothing_and_makes_the_same_attestations(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as failing:
        failing.setattr(host, "push", lambda *_: host.image("gone"))
        with pytest.raises(UnknownImage):
            push(host, tmp_path)
    assert host.names == {f"tfbuild:{host.identifier}"}, "that of the upload is gone if it fails, too"
    first = push(host, tmp_path)
    host.fake.requests.clear()
    again = push(host, tmp_path)
    assert again == replace(first, uploaded=False)
    assert len(host.pushed) == 1
    assert f"PUT /v2/us/x/manifests/{host.identifier}" not in host.fake.requests
    # Named as it will be in the registry, which has lost a layer, or the configuration.
    for times, lost in enumerate((digest_of(LAYER), host.own_id), start=2):
        del host.fake.content[f"blobs/{lost}"]
        with pytest.raises(Unfinished, match="has lost a part"):
            pushing.finish(connect(host.fake), host.identifier, print)
        assert push(host, tmp_path, first.ref) == first
        assert len(host.pushed) == times
    # A name that the user gave it stays.
    host.tag(host.own_id, first.ref)
    del host.fake.content[f"blobs/{digest_of(LAYER)}"]
    assert push(host, tmp_path) == first
    assert first.ref in host.names
    host.tag(host.own_id, f"docker.io/us/x:{host.identifier}")
    pushing._transfer(host, host.own_id, f"docker.io/us/x:{host.identifier}", Progress())
    assert f"us/x:{host.identifier}" in host.names, "as engines list it"
    # Of an image that was pulled, this may be the only name.
    host.names, host.others = {f"tfbuild:{host.identifier}"}, {first.ref}
    pushing._transfer(host, host.own_id, first.ref, Progress())
    assert (host.names, host.others) == ({f"tfbuild:{host.identifier}"}, {first.ref})


def test_a_push_may_make_the_repository(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Quay hides one that does not exist from a login that may only make it."""
    read, begin = host.fake.do_GET, host.fake.do_POST

    def make(self: FakeRegistry) -> None:
        monkeypatch.setattr(host.fake, "do_GET", read)
        begin(self)

    monkeypatch.setattr(host.fake, "do_POST", make)
    for act in (partial(pushing.access, connect(host.fake), host.identifier), partial(push, host, tmp_path)):
        monkeypatch.setattr(host.fake, "do_GET", lambda self: self.answer(401, "text/plain", b""))
        act()
    assert len(host.pushed) == 1


def test_an_image_is_signed_before_anything_offers_it(host: Host, tmp_path: Path, cosign: Path) -> None:
    (cosign / "code").write_text("1")
    with pytest.raises(TfbuildError, match="cosign did not sign"):
        push(host, tmp_path, sign=signing.signer("--key k", None))
    assert not [path for path in host.fake.content if path.startswith("referrers/") or path.endswith("-mkl")]
    # By its code, CI builds it again; unsigned as a whole, it is an error.
    find = partial(pushing.find_published, connect(host.fake), host.identifier, signing.demand_of("--key k", None))
    with pytest.raises(Unfinished, match="its push did not finish"):
        find()
    push(host, tmp_path)
    with pytest.raises(VerificationFailed):
        find()
    # The same command goes on with what has arrived.
    (cosign / "code").write_text("0")
    done = push(host, tmp_path, sign=signing.signer("--key k", None))
    assert (done.signed, done.uploaded, len(host.pushed)) == (True, False, 1)
    assert words(cosign) == ["sign", "--yes", "--key", "k", f"{connect(host.fake).repository}@{done.digest}"]


def test_only_an_image_that_passed_verification_is_pushed(host: Host, tmp_path: Path) -> None:
    # A failure withdraws what passed before.
    for verdict, image in (("fail", {}), ("pass", {"id": digest_of(b"another")})):
        verified(host, tmp_path, verdict, **image)
        with pytest.raises(VerificationFailed, match=f"tfbuild:{host.identifier} is not verified"):
            push(host, tmp_path)
    for name, error in (("release", UnknownImage), ("features", RegistryRefused)):
        host = Host(host.fake, {f"io.tfbuild.{name}": "a;b"})
        verified(host, tmp_path)
        with pytest.raises(error):
            push(host, tmp_path)
    assert (host.pushed, writes(host.fake)) == ([], [])


def test_a_fixed_tag_is_only_moved_with_force(host: Host, tmp_path: Path) -> None:
    other = digest(host.fake, foreign_image(host.fake, "2.20.0", {"io.tfbuild.version": "other"}, cpu="x86-64-v3"))
    with pytest.raises(RegistryRefused, match=rf"{host.identifier} already names another image \({other}\)") as refusal:
        push(host, tmp_path)
    assert "--force" in refusal.value.hint
    assert (host.pushed, writes(host.fake)) == ([], [])
    done = push(host, tmp_path, force=True)
    assert done.uploaded
    assert connect(host.fake).digest(host.identifier) == done.digest != other


def test_a_yanked_image_is_not_pushed_again(host: Host, tmp_path: Path) -> None:
    push(host, tmp_path)
    assert pushing.yank(connect(host.fake), host.identifier, "crashes", print).endswith(f":{host.identifier}")
    assert [offered(host.fake, tag) for tag in INDEXES] == [[], [], []]
    host.fake.requests.clear()
    with pytest.raises(Yanked, match=f"{host.identifier} was yanked: crashes") as refusal:
        push(host, tmp_path, force=True)
    assert f"delete the tag {host.identifier}.yanked" in refusal.value.hint
    with pytest.raises(Yanked):
        pushing.finish(connect(host.fake), host.identifier, print)
    assert writes(host.fake) == []
    with pytest.raises(UnknownImage):
        pushing.yank(connect(host.fake), "2.20.0-mkl-py3.13-gone", "crashes", print)


def test_a_list_that_shows_new_tags_late_is_waited_for(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tags, known, slept = Registry.tags, list[str](), list[float]()
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(Registry, "tags", lambda self: tags(self) if sum(slept) > 2 else known)
    push(host, tmp_path)
    known, slept[:] = tags(connect(host.fake)), []
    pushing.yank(connect(host.fake), host.identifier, "crashes", print)
    assert [offered(host.fake, tag) for tag in INDEXES] == [[], [], []]
    monkeypatch.setattr(Registry, "tags", lambda self: known)
    with pytest.raises(RegistryRefused, match="does not list the tag"):
        pushing.yank(connect(host.fake), host.identifier, "crashes", print)


def test_ci_learns_which_tag_it_may_write_and_what_that_is_now(host: Host, tmp_path: Path) -> None:
    registry = connect(host.fake)
    ref = f"{registry.repository}:{host.identifier}"
    assert pushing.access(registry, host.identifier) == (ref, "")
    done = push(host, tmp_path)
    for name in (host.identifier, f"tfbuild:{host.identifier}", ref):
        assert pushing.access(registry, name) == (ref, done.digest)
    for name in (done.digest, "us/x", "latest-mkl", "2.20.0x-mkl-py3.13-avx"):
        with pytest.raises(UsageError, match="is not the identifier of an image"):
            pushing.access(registry, name)
    with pytest.raises(UsageError, match=f"is not in {registry.repository}\nhint: --registry ghcr.io/us/x"):
        pushing.access(registry, f"ghcr.io/us/x:{host.identifier}")
    # Docker lists an image of docker.io/us/x so.
    hub = Registry(Repository.parse("docker.io/us/x"))
    assert pushing.tag_of(hub, f"us/x:{host.identifier}") == host.identifier


def test_computing_the_indexes_of_an_image_writes_nothing_else(host: Host, tmp_path: Path) -> None:
    done = push(host, tmp_path)
    registry = connect(host.fake)
    del host.fake.content["manifests/latest-mkl"]
    host.fake.requests.clear()
    finished = pushing.finish(registry, host.identifier, print)
    assert finished == replace(done, uploaded=False, sbom=None, provenance=None, signed=None)
    assert writes(host.fake) == ["PUT /v2/us/x/manifests/latest-mkl"]
    attach(host.fake, done.digest)
    for tags in ((), INDEXES):  # the indexes still offer it, and have to be computed
        for tag in tags:
            del host.fake.content[f"manifests/{tag}"]
        with pytest.raises(Unfinished, match="has no SBOM or no provenance"):
            pushing.finish(connect(host.fake), host.identifier, print)
