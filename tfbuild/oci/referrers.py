"""Documents attached to an image in a registry: each is a manifest with the image as its subject.

Source: github.com/opencontainers/distribution-spec, spec.md, v1.1.0, "Listing Referrers", "Pushing Manifests with
Subject" and "Referrers Tag Schema": a registry without subjects gets an index under the tag sha256-<hex> instead.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfbuild.errors import RegistryRefused
from tfbuild.oci import manifests
from tfbuild.oci.client import MOST_REFERRERS, Registry
from tfbuild.oci.manifests import Malformed, Manifest, digest_of
from tfbuild.oci.references import DIGEST

# image-spec, manifest.md, v1.1.0, "Guidance for an Empty Descriptor".
EMPTY = b"{}"
EMPTY_TYPE = "application/vnd.oci.empty.v1+json"
SBOM = "application/vnd.cyclonedx+json"
PROVENANCE = "application/vnd.in-toto+json"
TITLE = "org.opencontainers.image.title"
CREATED = "org.opencontainers.image.created"
# Two pushes at once may overwrite each other's list. Each reads it again and repairs it, up to this many times.
MENDS = 5


@dataclass(frozen=True, kw_only=True)
class Attachment:
    """A document to attach. `title`: its file name; `created`: RFC 3339."""

    media_type: str
    title: str
    created: str
    content: bytes


def artifact(kind: str, layers: Sequence[Mapping[str, Any]], annotations: Mapping[str, str]) -> dict[str, Any]:
    """Return a manifest that is not an image: of type `kind`, with an empty configuration and these layers."""
    return {
        "schemaVersion": 2,
        "mediaType": manifests.IMAGES[0],
        "artifactType": kind,
        "config": {"mediaType": EMPTY_TYPE, "digest": digest_of(EMPTY), "size": len(EMPTY)},
        "layers": list(layers),
        "annotations": dict(annotations),
    }


def attach(registry: Registry, attachment: Attachment, subject: Manifest) -> str:
    """Attach a document to an image in the registry, and return the digest of the manifest that does so."""
    registry.upload(EMPTY)
    layer = {
        "mediaType": attachment.media_type,
        "digest": registry.upload(attachment.content),
        "size": len(attachment.content),
        "annotations": {TITLE: attachment.title},
    }
    annotations = {CREATED: attachment.created} if attachment.created else {}
    document = artifact(attachment.media_type, [layer], annotations)
    document["subject"] = {"mediaType": subject.media_type, "digest": subject.digest, "size": len(subject.content)}
    content = json.dumps(document, indent=2).encode()
    if not registry.put(digest_of(content), content, manifests.IMAGES[0]):
        row = {
            "mediaType": manifests.IMAGES[0],
            "digest": digest_of(content),
            "size": len(content),
            "artifactType": attachment.media_type,
            "annotations": annotations,
        }
        _add(registry, fallback_tag(subject.digest), row)
    return digest_of(content)


def fallback_tag(digest: str) -> str:
    """Return the tag that lists what is attached to an image, for a registry without a list of referrers."""
    return digest.replace(":", "-", 1)


def _add(registry: Registry, tag: str, row: dict[str, Any]) -> None:
    """Add `row` to the index under `tag`, and keep the rows of others."""
    for _ in range(MENDS):
        rows = _rows(registry.manifest(tag))
        if any(known.get("digest") == row["digest"] for known in rows):
            return
        index = {"schemaVersion": 2, "mediaType": manifests.INDEX, "manifests": [*rows, row]}
        registry.put(tag, json.dumps(index, indent=2).encode(), manifests.INDEX)
    raise RegistryRefused(f"{registry.repository}:{tag} keeps changing", hint="push again when other pushes are done")


def types(registry: Registry, digest: str) -> set[str]:
    """Return the types of the documents attached to an image. Raises Malformed if there are too many."""
    rows = registry.referrers(digest)
    if rows is None:
        rows = _rows(registry.manifest(fallback_tag(digest)))
        if len(rows) > MOST_REFERRERS:
            raise registry.too_many_referrers(digest)
    return {_type(registry, row) for row in rows}


def complete(registry: Registry, digest: str) -> bool:
    """Return whether an SBOM and a provenance are attached to an image: no index offers one without both."""
    return {SBOM, PROVENANCE} <= types(registry, digest)


def _type(registry: Registry, row: Mapping[str, Any]) -> str:
    """Return the type in a descriptor, or that of its manifest where a tool or a registry left it out.

    skopeo 1.9 drops it when it copies an index, cosign 3.1 writes that of the configuration (github.com/sigstore/
    cosign/issues/4641), and so does the registry of go-containerregistry 0.20.7 in its list; all three were measured.
    """
    digest, kind = str(row.get("digest", "")), row.get("artifactType")
    if kind in (None, "", EMPTY_TYPE) and DIGEST.fullmatch(digest):
        try:
            manifest = registry.manifest(digest)
            kind = manifest.json().get("artifactType") if manifest is not None else kind
        except Malformed:
            pass
    return str(kind or "")


def _rows(index: Manifest | None) -> list[dict[str, Any]]:
    return manifests.descriptors(index.json()) if index is not None else []
