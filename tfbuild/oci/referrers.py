"""Documents attached to an image in a registry: each is a manifest with the image as its subject.

Source: github.com/opencontainers/distribution-spec, spec.md, v1.1.0, "Listing Referrers", "Pushing Manifests with
Subject" and "Referrers Tag Schema": a registry without subjects gets an index under the tag sha256-<hex> instead.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from tfbuild.errors import RegistryRefused, VerificationFailed
from tfbuild.oci import manifests
from tfbuild.oci.client import Registry
from tfbuild.oci.manifests import Damaged, Forged, Mangled, Manifest, digest_of
from tfbuild.oci.references import DIGEST

# image-spec, manifest.md, v1.1.0, "Guidance for an Empty Descriptor".
EMPTY = b"{}"
EMPTY_TYPE = "application/vnd.oci.empty.v1+json"
SBOM = "application/vnd.cyclonedx+json"
PROVENANCE = "application/vnd.in-toto+json"
# No index offers an image without both.
NEEDED = (SBOM, PROVENANCE)
# cosign 3 and other tools of Sigstore's, and cosign 2 where it uses referrers. By default cosign 2 sets the tag of
# the referrers tag schema with ".sig" behind it (measured with cosign 3.1.1; github.com/sigstore/cosign, README.md).
SIGNATURES = ("application/vnd.dev.sigstore.bundle", "application/vnd.dev.cosign.artifact.sig")
TITLE = "org.opencontainers.image.title"
CREATED = "org.opencontainers.image.created"
# Two pushes at once may overwrite each other's index. Each reads it again and repairs it, up to this many times.
MENDS = 5
# The descriptors of what is attached to an image.
Rows = Sequence[Mapping[str, Any]]
Read = TypeVar("Read")
# Raises VerificationFailed if what has this reference by digest is not signed.
Demand = Callable[[str], None]
# Signs what has this reference by digest.
Sign = Callable[[str], None]
HINT = "push the image again to attach it again; if that does not help, somebody is changing this registry"


@dataclass(frozen=True, kw_only=True)
class Attachment:
    """A document to attach. `title`: its file name; `created`: RFC 3339."""

    media_type: str
    title: str
    created: str
    content: bytes


def manifest(attachment: Attachment, subject: Manifest) -> bytes:
    """Return the manifest that attaches a document to `subject`; the same bytes every time."""
    document = {
        "schemaVersion": 2,
        "mediaType": manifests.IMAGES[0],
        "artifactType": attachment.media_type,
        "config": {"mediaType": EMPTY_TYPE, "digest": digest_of(EMPTY), "size": len(EMPTY)},
        "layers": [
            {
                "mediaType": attachment.media_type,
                "digest": digest_of(attachment.content),
                "size": len(attachment.content),
                "annotations": {TITLE: attachment.title},
            }
        ],
        "subject": {"mediaType": subject.media_type, "digest": subject.digest, "size": len(subject.content)},
        "annotations": {CREATED: attachment.created} if attachment.created else {},
    }
    return json.dumps(document, indent=2).encode()


def attach(registry: Registry, attachment: Attachment, subject: Manifest) -> str:
    """Attach a document to an image in the registry, and return the digest of the manifest that does so."""
    registry.upload(EMPTY)
    registry.upload(attachment.content)
    content = manifest(attachment, subject)
    if not registry.put_referrer(content):
        row = {
            "mediaType": manifests.IMAGES[0],
            "digest": digest_of(content),
            "size": len(content),
            "artifactType": attachment.media_type,
            "annotations": json.loads(content)["annotations"],
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


def listed(registry: Registry, digest: str) -> list[dict[str, Any]]:
    """Return the descriptors of what is attached to an image, in the registry's order."""
    rows = registry.referrers(digest)
    if rows is None:
        rows = _rows(registry.manifest(fallback_tag(digest)))
    return [_typed(registry, row) for row in rows]


def _typed(registry: Registry, row: dict[str, Any]) -> dict[str, Any]:
    """Return a descriptor with the type that its manifest has, where a tool or a registry left that out.

    skopeo 1.9 drops it when it copies an index, cosign 3.1 writes that of the configuration (github.com/sigstore/
    cosign/issues/4641), and so does the registry of go-containerregistry 0.20.7 in its list; all three were measured.
    """
    digest = str(row.get("digest", ""))
    if row.get("artifactType") not in (None, "", EMPTY_TYPE) or not DIGEST.fullmatch(digest):
        return row
    try:
        manifest = registry.manifest(digest)
        return row | {"artifactType": manifest.json().get("artifactType", "")} if manifest is not None else row
    except Forged:
        return row


def complete(rows: Rows) -> bool:
    """Return whether an SBOM and a provenance are attached to an image, of which `rows` were `listed`."""
    return types(rows) >= {*NEEDED}


def types(rows: Rows) -> set[str]:
    """Return the types of the documents attached to an image, which are `listed`."""
    return {str(row.get("artifactType")) for row in rows}


def signed(registry: Registry, digest: str, rows: Rows) -> bool:
    """Return whether a signature is attached to an image (`rows`) or stored under its tag; it is not checked."""
    attached = any(kind.startswith(SIGNATURES) for kind in types(rows))
    return attached or bool(registry.digest(f"{fallback_tag(digest)}.sig"))


def accepted(registry: Registry, digest: str, demand: Demand | None) -> bool:
    """Return whether `demand` accepts the signature of what has this digest; True where none is demanded."""
    try:
        if demand is not None:
            demand(f"{registry.repository}@{digest}")
    except VerificationFailed:
        return False
    return True


def _rows(index: Manifest | None) -> list[dict[str, Any]]:
    return manifests.descriptors(index.json()) if index is not None else []


def documents(
    registry: Registry,
    subject: Manifest,
    media_type: str,
    rows: Rows | None = None,
    *,
    demand: Demand | None = None,
    strict: bool = False,
) -> list[bytes]:
    """Return the documents of one type attached to an image, each checked against its digests and its subject.

    `rows`: what is attached, where it was `listed` already. `demand` is asked about each manifest that attaches one.
    Whoever may push can attach anything: what is missing, was changed, is about another image or is refused by `demand`
    raises VerificationFailed only if nothing else can be read, or with `strict`.
    """
    digests = contents(registry, subject, media_type, rows, demand=demand, strict=strict)

    def read(digest: str) -> bytes:
        with _damage_refused(f"the {media_type} attached to {subject.digest}"):
            return registry.blob(digest, media_type)

    return _readable(digests, read, strict=strict)


def contents(
    registry: Registry,
    subject: Manifest,
    media_type: str,
    rows: Rows | None = None,
    *,
    demand: Demand | None = None,
    strict: bool = False,
) -> list[str]:
    """Return the digests of the documents of one type attached to an image, without reading them; as `documents`."""
    every = listed(registry, subject.digest) if rows is None else rows
    own = [str(row.get("digest", "")) for row in every if row.get("artifactType") == media_type]

    def read(digest: str) -> str:
        name = f"the {media_type} attached to {subject.digest}"
        with _damage_refused(name):
            content = _document_digest(name, registry.manifest(digest) if DIGEST.fullmatch(digest) else None, subject)
        try:
            if demand is not None:
                demand(f"{registry.repository}@{digest}")
        except VerificationFailed as error:
            raise VerificationFailed(
                f"the attached {media_type} is not signed: {error.reason}", hint="push the image again with --sign"
            ) from error
        return content

    return _readable(own, read, strict=strict)


def _readable(digests: Iterable[str], read: Callable[[str], Read], *, strict: bool) -> list[Read]:
    results: list[Read] = []
    failure: VerificationFailed | None = None
    for digest in digests:
        try:
            results.append(read(digest))
        except VerificationFailed as error:
            failure = error
    if failure is not None and (strict or not results):
        raise failure
    return results


@contextmanager
def _damage_refused(name: str) -> Iterator[None]:
    """Raise VerificationFailed for an attached document that is missing or invalid, but not for a broken registry."""
    try:
        yield
    except Mangled:
        raise
    except Damaged as error:
        raise VerificationFailed(f"{name} is gone or invalid: {error.reason}", hint=HINT) from error


def _document_digest(name: str, attached: Manifest | None, subject: Manifest) -> str:
    """Return the digest of the document that a manifest attaches to `subject`. Raises VerificationFailed or Forged."""
    if attached is None:
        raise VerificationFailed(f"{name} is listed but missing", hint=HINT)
    content = attached.json()
    owner, layers = content.get("subject"), content.get("layers")
    if not isinstance(owner, dict) or owner.get("digest") != subject.digest:
        raise VerificationFailed(f"{name} is about another image ({attached.digest})", hint=HINT)
    if not isinstance(layers, list) or len(layers) != 1 or not isinstance(layers[0], dict):
        raise VerificationFailed(f"{name} does not have exactly one document ({attached.digest})", hint=HINT)
    return str(layers[0].get("digest", ""))
