"""What is attached to an image in a registry: manifests whose subject it is, each with one document.

Source: github.com/opencontainers/distribution-spec, spec.md, v1.1.0, "Listing Referrers", "Pushing Manifests with
Subject" and "Referrers Tag Schema": a registry that knows no subjects gets an index under the tag sha256-<hex> instead.
"""

import json
from dataclasses import dataclass
from typing import Any

from tfbuild.errors import RegistryRefused, VerificationFailed
from tfbuild.oci import client
from tfbuild.oci.client import Manifest, Registry

# image-spec, manifest.md, v1.1.0, "Guidance for an Empty Descriptor".
EMPTY = b"{}"
EMPTY_TYPE = "application/vnd.oci.empty.v1+json"
SBOM = "application/vnd.cyclonedx+json"
PROVENANCE = "application/vnd.in-toto+json"
# Without both, no index offers an image.
NEEDED = (SBOM, PROVENANCE)
TITLE = "org.opencontainers.image.title"
CREATED = "org.opencontainers.image.created"
# Two that attach at once may overwrite each other's index: each looks again, and mends it, so often.
MENDS = 5


@dataclass(frozen=True, kw_only=True)
class Attachment:
    """A document to attach. `title`: the name of its file; `created`: RFC 3339."""

    media_type: str
    title: str
    created: str
    content: bytes


def manifest(attachment: Attachment, subject: Manifest) -> bytes:
    """The manifest that attaches a document to `subject`, the same bytes each time."""
    notes = {CREATED: attachment.created} if attachment.created else {}
    document = {
        "schemaVersion": 2,
        "mediaType": client.IMAGES[0],
        "artifactType": attachment.media_type,
        "config": {"mediaType": EMPTY_TYPE, "digest": client.digest_of(EMPTY), "size": len(EMPTY)},
        "layers": [
            {
                "mediaType": attachment.media_type,
                "digest": client.digest_of(attachment.content),
                "size": len(attachment.content),
                "annotations": {TITLE: attachment.title},
            }
        ],
        "subject": {"mediaType": subject.media_type, "digest": subject.digest, "size": len(subject.content)},
        "annotations": notes,
    }
    return json.dumps(document, indent=2).encode()


def attach(registry: Registry, attachment: Attachment, subject: Manifest) -> str:
    """Attaches a document to an image that is there; the digest of the manifest that does."""
    registry.upload(EMPTY)
    registry.upload(attachment.content)
    content = manifest(attachment, subject)
    if not registry.put_referrer(content):
        row = {
            "mediaType": client.IMAGES[0],
            "digest": client.digest_of(content),
            "size": len(content),
            "artifactType": attachment.media_type,
            "annotations": json.loads(content)["annotations"],
        }
        _add(registry, fallback_tag(subject.digest), row)
    return client.digest_of(content)


def fallback_tag(digest: str) -> str:
    return digest.replace(":", "-", 1)


def _add(registry: Registry, tag: str, row: dict[str, Any]) -> None:
    """Puts `row` into the index under `tag`, besides what others put there."""
    for _ in range(MENDS):
        there = registry.manifest(tag)
        rows = _rows(there)
        if any(known.get("digest") == row["digest"] for known in rows):
            return
        index = {"schemaVersion": 2, "mediaType": client.INDEX, "manifests": [*rows, row]}
        registry.put(tag, json.dumps(index, indent=2).encode(), client.INDEX)
    raise RegistryRefused(f"{registry.repository}:{tag} keeps changing", hint="push again when the others are done")


def listed(registry: Registry, digest: str) -> list[dict[str, Any]]:
    """The descriptors of what is attached to an image, in the registry's order."""
    own = registry.referrers(digest)
    return own if own is not None else _rows(registry.manifest(fallback_tag(digest)))


def complete(registry: Registry, digest: str) -> bool:
    """True where an SBOM and a provenance are attached to an image; what they say is not looked at."""
    return set(NEEDED) <= {row.get("artifactType") for row in listed(registry, digest)}


def _rows(index: Manifest | None) -> list[dict[str, Any]]:
    return client.rows(index.json()) if index is not None else []


def documents(registry: Registry, subject: Manifest, media_type: str) -> list[bytes]:
    """The documents of a type that are attached to an image, each checked against its digests and its subject.

    Raises VerificationFailed where one is missing, changed, or about another image.
    """
    rows = [row for row in listed(registry, subject.digest) if row.get("artifactType") == media_type]
    return [_document(registry, subject, media_type, str(row.get("digest", ""))) for row in rows]


def _document(registry: Registry, subject: Manifest, media_type: str, digest: str) -> bytes:
    hint = "push the image again, which attaches it anew; if that does not help, somebody changes this registry"
    what = f"the {media_type} attached to {subject.digest}"
    try:
        found = registry.manifest(digest)
        if found is None:
            raise VerificationFailed(f"{what} is listed and not there ({digest})", hint=hint)
        content = found.json()
        about, layers = content.get("subject"), content.get("layers")
        if not isinstance(about, dict) or about.get("digest") != subject.digest:
            raise VerificationFailed(f"{what} is about another image ({digest})", hint=hint)
        if not isinstance(layers, list) or len(layers) != 1 or not isinstance(layers[0], dict):
            raise VerificationFailed(f"{what} is not one document ({digest})", hint=hint)
        return registry.blob(str(layers[0].get("digest", "")), media_type)
    except RegistryRefused as error:
        raise VerificationFailed(f"{what} was changed or lost: {error.reason}", hint=hint) from error
