"""Images in a fake registry, with the labels of real plans."""

import json
from collections.abc import Sequence, Set
from functools import cache

from tests.oci.fake_registry import FakeRegistry, connect
from tfbuild import plan
from tfbuild.context.labels import labels_of
from tfbuild.engine import Image
from tfbuild.errors import VerificationFailed
from tfbuild.oci import manifests, referrers
from tfbuild.oci.client import Registry
from tfbuild.oci.manifests import Manifest, digest_of
from tfbuild.plan import Request
from tfbuild.publish import index_updates, indexes, provenance, sbom
from tfbuild.publish.choose import Published


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
    layers: Sequence[bytes] = (),
) -> str:
    """Put an image there as a push does; without `whole`, as a push that was stopped before attaching its SBOM."""
    all_labels = labels_of_plan(release, cpu) | (labels or {})
    system, _, architecture = all_labels["io.tfbuild.platform"].partition("/")
    about = {"created": "2026-11-01T00:00:00Z", "os": system, "architecture": architecture}
    config = json.dumps({**about, "config": {"Labels": all_labels}}).encode()
    digest = digest_of(config)
    fake.content[f"blobs/{digest}"] = ("application/octet-stream", config)
    rows = [{"digest": digest_of(layer), "size": len(layer)} for layer in layers]
    document = {"schemaVersion": 2, "mediaType": manifests.IMAGES[0], "config": {"digest": digest}, "layers": rows}
    content = json.dumps(document).encode()
    manifest = digest_of(content)
    for name in (all_labels["io.tfbuild.id"], manifest):
        fake.content[f"manifests/{name}"] = (manifests.IMAGES[0], content)
    if whole:
        attest(fake, all_labels, Manifest(digest=manifest, media_type=manifests.IMAGES[0], content=content))
    return all_labels["io.tfbuild.id"]


def attest(fake: type[FakeRegistry], labels: dict[str, str], subject: Manifest) -> None:
    """Attach a provenance about the image with these labels, and what it names as the image's SBOM."""
    about = {"component": {"properties": [{"name": sbom.CONFIG, "value": subject.config}]}}
    bill = json.dumps({"bomFormat": "CycloneDX", "metadata": about}).encode()
    local = Image(id=subject.config, labels=labels, size=1, env=(), architecture="amd64", repo_digests=())
    statement = provenance.statement(
        local, repository="us/x", digest=subject.digest, built={}, wheel_sha256="", git_version="", report=b"{}",
        verified="2026-11-01T00:00:00Z", sbom=bill, run=None,
    )  # fmt: skip
    rows = []
    for kind, document in zip(referrers.NEEDED, (bill, provenance.to_json(statement)), strict=True):
        attachment = referrers.Attachment(media_type=kind, title="x", created="", content=document)
        attached = referrers.manifest(attachment, subject)
        fake.content[f"blobs/{digest_of(document)}"] = ("application/octet-stream", document)
        fake.content[f"manifests/{digest_of(attached)}"] = (manifests.IMAGES[0], attached)
        rows.append({"artifactType": kind, "digest": digest_of(attached)})
    fake.content[f"referrers/{subject.digest}"] = (manifests.INDEX, json.dumps({"manifests": rows}).encode())


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
    return index_updates.gather(registry, published(registry, name))


def push_newer(fake: type[FakeRegistry], name: str) -> str:
    """Put an image of a newer release there, with the Python and instruction set of `name`, an image of 2.14.1."""
    own = {"id": name.replace("2.14.1", "2.20.0"), "python": "3.11", "instruction-set": name.partition("-py3.11-")[2]}
    return image(fake, "2.20.0", {f"io.tfbuild.{label}": value for label, value in own.items()})


def signed(fake: type[FakeRegistry], name: str) -> set[str]:
    """The references that `push --sign` signs: an image and its provenance."""
    digest = digest_of(fake.content[f"manifests/{name}"][1])
    rows = json.loads(fake.content[f"referrers/{digest}"][1])["manifests"]
    attestations = [row["digest"] for row in rows if row["artifactType"] == referrers.PROVENANCE]
    return {f"{connect(fake).repository}@{one}" for one in (digest, *attestations)}


def demand_for(known: Set[str]) -> referrers.Demand:
    """Return what demands a signature where cosign accepts those of the references that are `known` then."""

    def demand(reference: str) -> None:
        if reference not in known:
            raise VerificationFailed(f"{reference} has no signature that cosign accepts")

    return demand


def empty_referrers(fake: type[FakeRegistry], name: str) -> None:
    manifest = digest_of(fake.content[f"manifests/{name}"][1])
    fake.content[f"referrers/{manifest}"] = (manifests.INDEX, b'{"manifests": []}')
