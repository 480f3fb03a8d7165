"""Documents are attached to one image, found again by its whole digest, and taken for nothing but what they are."""

import json

import pytest

from tests.oci.fake_registry import FakeRegistry, connect
from tests.oci.fake_registry import fake as fake
from tfbuild.errors import RegistryRefused
from tfbuild.oci import client, manifests
from tfbuild.oci.client import PROVENANCE, SBOM, Registry
from tfbuild.oci.manifests import Manifest, digest_of

SUBJECT = Manifest(digest=digest_of(b"image"), media_type=manifests.IMAGES[0], content=b"image")
BILL = (SUBJECT, SBOM, "x.cdx.json", "2026-11-21T10:00:00+00:00", b"bill")
ATTESTATION = (SUBJECT, PROVENANCE, "x.provenance.json", "", b"attestation")
# By the specification; cosign and skopeo read it too.
TAG = f"manifests/sha256-{SUBJECT.digest.removeprefix('sha256:')}"


@pytest.fixture(params=["lists", "tags"])
def registry(request: pytest.FixtureRequest, fake: type[FakeRegistry]) -> Registry:
    """A registry that lists referrers, and one that does not, for which an index under a tag does."""
    if request.param == "lists":
        fake.content[f"referrers/{SUBJECT.digest}"] = (manifests.INDEX, b'{"manifests": []}')
    return connect(fake)


def test_what_is_attached_is_found(registry: Registry, fake: type[FakeRegistry]) -> None:
    assert client.attached_types(registry, SUBJECT.digest) == set()
    bill = client.attach(registry, *BILL)
    assert not client.complete(registry, SUBJECT.digest), "one of two"
    client.attach(registry, *ATTESTATION)
    assert client.complete(registry, SUBJECT.digest)
    before = fake.content.get(TAG)
    assert (before is None) == (f"referrers/{SUBJECT.digest}" in fake.content), "an index only where none is listed"
    client.attach(registry, *BILL)
    assert fake.content.get(TAG) == before
    assert registry.blob(digest_of(b"bill"), "bill") == b"bill"
    # What a clean-up of untagged manifests deletes stays in the index under the tag.
    del fake.content[f"manifests/{bill}"]
    assert client.complete(registry, SUBJECT.digest) == (before is None)


def test_a_registry_that_only_says_that_it_lists_gets_an_index(
    fake: type[FakeRegistry], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake, "_list_as_referrer", lambda self, body: {"OCI-Subject": SUBJECT.digest})
    for document in (BILL, ATTESTATION):
        client.attach(connect(fake), *document)
    assert client.complete(connect(fake), SUBJECT.digest)


def test_the_manifest_is_the_specifications(registry: Registry) -> None:
    assert (SBOM, PROVENANCE) == ("application/vnd.cyclonedx+json", "application/vnd.in-toto+json")
    digest = client.attach(registry, *BILL)
    manifest = registry.manifest(digest)
    assert manifest is not None
    read = manifest.json()
    assert (read["schemaVersion"], read["mediaType"], read["artifactType"]) == (2, manifests.IMAGES[0], SBOM)
    assert read["subject"] == {"mediaType": SUBJECT.media_type, "digest": SUBJECT.digest, "size": 5}
    assert read["config"] == {"mediaType": client.EMPTY_TYPE, "digest": digest_of(b"{}"), "size": 2}
    (layer,) = read["layers"]
    assert (layer["mediaType"], layer["size"]) == (SBOM, 4)
    assert layer["annotations"] == {"org.opencontainers.image.title": "x.cdx.json"}
    assert read["annotations"] == {"org.opencontainers.image.created": BILL[3]}
    undated = registry.manifest(client.attach(registry, *ATTESTATION))
    assert undated is not None
    assert undated.json()["annotations"] == {}


def test_the_index_under_the_tag_keeps_what_others_put_there(fake: type[FakeRegistry]) -> None:
    other = {"digest": digest_of(b"other"), "artifactType": "signature"}
    fake.content[TAG] = (manifests.INDEX, json.dumps({"manifests": [other]}).encode())
    digest = client.attach(connect(fake), *BILL)
    kept, added = json.loads(fake.content[TAG][1])["manifests"]
    assert kept == other
    assert added == {
        "mediaType": manifests.IMAGES[0], "digest": digest, "artifactType": SBOM,
        "size": len(fake.content[f"manifests/{digest}"][1]), "annotations": {client.CREATED: BILL[3]},
    }  # fmt: skip


def test_an_index_that_others_overwrite_is_repaired_or_given_up(
    fake: type[FakeRegistry], monkeypatch: pytest.MonkeyPatch
) -> None:
    registry, puts = connect(fake), []
    put = Registry.put

    def overwritten(self: Registry, reference: str, content: bytes, media_type: str) -> bool:
        if f"manifests/{reference}" != TAG:
            return put(self, reference, content, media_type)
        puts.append(reference)
        return put(self, reference, content, media_type) if len(puts) == lost else False

    monkeypatch.setattr(client, "LATE", 5 * (0,))
    monkeypatch.setattr(Registry, "put", overwritten)
    lost = 3
    client.attach(registry, *BILL)
    assert len(puts) == 3
    del fake.content[TAG]
    lost = 0
    with pytest.raises(RegistryRefused, match="keeps changing"):
        client.attach(registry, *BILL)
    assert len(puts) == 3 + len(client.LATE)
