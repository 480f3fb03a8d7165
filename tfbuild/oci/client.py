"""The OCI distribution protocol, as far as tfbuild needs it; images' layers go through the engine.

Source: github.com/opencontainers/distribution-spec, spec.md, v1.1.0. What a registry sends is untrusted: content that
has a digest is checked against it, and every read is bounded.
"""

import json
import random
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import requests

from tfbuild.errors import RegistryRefused
from tfbuild.oci import transport
from tfbuild.oci.manifests import (
    IMAGES,
    INDEX,
    LISTS,
    Malformed,
    Manifest,
    Missing,
    WrongDigest,
    descriptor,
    descriptors,
    digest_of,
    parse_object,
)
from tfbuild.oci.references import DIGEST, TAG, Repository, parse_image
from tfbuild.oci.transport import Connection, body_of, parallel, redirect_address

ANY_MANIFEST = {"Accept": ", ".join((*LISTS, *IMAGES))}
MOST_ROWS = 10_000
MOST_PAGES = 1000
UPLOADS = 5
# If two clients upload the same content at once, a registry may answer one of them like this, because it reads a file
# that the other is still writing. Measured with docker-registry 2.8.2 on a file system: "provided digest did not match
# uploaded content".
CLASHES = (400, 404)
ALTERED = "the registry is broken, or something between it and this machine changes its content: try another network"
# image-spec, manifest.md, v1.1.0, "Guidance for an Empty Descriptor".
EMPTY_CONFIG = b"{}"
EMPTY_TYPE = "application/vnd.oci.empty.v1+json"
EMPTY = descriptor(EMPTY_TYPE, EMPTY_CONFIG)
SBOM = "application/vnd.cyclonedx+json"
PROVENANCE = "application/vnd.in-toto+json"
TITLE = "org.opencontainers.image.title"
CREATED = "org.opencontainers.image.created"
# Two pushes at once may overwrite each other's list. Each reads it again and repairs it, after so many seconds: GHCR
# shows a tag's new content up to some seconds late (vtmocanu/uzi issue 1102, NVIDIA/nodewright-packages PR 132).
LATE = (0, 0, 2, 4, 8)


class Registry:
    """One repository. `ca`: a company's CA certificates in PEM. Credentials are those of the engine's client."""

    def __init__(self, repository: Repository, *, ca: Path | None = None) -> None:
        self.repository = repository
        self.ca = ca
        self._request = Connection(repository, ca=ca).request
        self._lists_referrers = True

    # --- reading ---

    def tags(self) -> list[str]:
        """Return all tags, sorted; [] if there is no repository yet.

        The list is never cut short, because indexes are made of all tags. Raises RegistryRefused.
        """
        answer = self._request("GET", "tags/list?n=1000", accept=(404,))
        names = self._pages(answer, "tags") if answer.status_code != 404 else []
        return sorted(filter(TAG.fullmatch, map(str, names)))

    def _pages(self, answer: requests.Response, field: str, **options: Any) -> list[Any]:
        """Return the rows of a list, which begins with this answer. Raises Malformed for an endless one."""
        rows: list[Any] = []
        for _ in range(MOST_PAGES):
            page = parse_object(body_of(answer), f"list of {field}").get(field)
            rows += page if isinstance(page, list) else []
            url = answer.links.get("next", {}).get("url", "")
            if len(rows) > MOST_ROWS:
                break
            if not url:
                return rows
            answer = self._request("GET", redirect_address(answer.url, url), **options)
        raise Malformed(
            f"{self.repository} has more than {MOST_ROWS} {field}, or an endless list of them",
            hint="use a separate repository for tfbuild's images",
        )

    def manifest(self, reference: str) -> Manifest | None:
        """Return the manifest that a tag or a digest names; None if there is none.

        Raises RegistryRefused; WrongDigest if something else arrived, Malformed if it is no manifest.
        """
        answer = self._request("GET", f"manifests/{reference}", headers=ANY_MANIFEST, accept=(404,))
        if answer.status_code == 404:
            return None
        content = body_of(answer)
        digest = digest_of(content)
        declared = answer.headers.get("Docker-Content-Digest", "")
        if not content.lstrip().startswith(b"{"):
            raise Malformed(f"{self.repository} sent no manifest for {reference}", hint=ALTERED)
        if (declared or digest) != digest or (reference.startswith("sha256:") and reference != digest):
            raise WrongDigest(
                f"{self.repository} sent a manifest for {reference} that does not match its digest ({digest})",
                hint=ALTERED,
            )
        manifest = Manifest(digest=digest, media_type=answer.headers.get("Content-Type", ""), content=content)
        media_type = manifest.json().get("mediaType")
        return replace(manifest, media_type=str(media_type)) if media_type else manifest

    def digest(self, tag: str) -> str:
        """Return the digest that a tag stands for now, by a request without a body; "" if there is no such tag.

        This is the registry's claim: content is checked against its digest when it is read.
        """
        answer = self._request("HEAD", f"manifests/{tag}", headers=ANY_MANIFEST, accept=(404,))
        if answer.status_code == 404:
            return ""
        if declared := answer.headers.get("Docker-Content-Digest", ""):
            return declared
        manifest = self.manifest(tag)
        return manifest.digest if manifest is not None else ""

    def config(self, manifest: Manifest) -> dict[str, Any]:
        """Return the configuration of an image, with its labels, checked against the digest in the manifest.

        Raises Missing if it is missing, WrongDigest if it was changed, Malformed if it is not a configuration.
        """
        name = f"configuration of {manifest.digest}"
        return parse_object(self.blob(manifest.config, name), name)

    def blob(self, digest: str, name: str) -> bytes:
        """Return a small blob, checked against its digest. Raises Missing or WrongDigest, which call it `name`."""
        if (answer := self._find("GET", digest)) is None:
            raise Missing(
                f"{self.repository} does not have the {name} ({digest or 'without a digest'})",
                hint="push the image again, or another one with --force",
            )
        content = body_of(answer)
        if digest_of(content) != digest:
            raise WrongDigest(
                f"{self.repository} sent a {name} that does not match its digest ({digest})", hint=ALTERED
            )
        return content

    def _find(self, method: str, digest: str) -> requests.Response | None:
        """Return the registry's answer for a blob; None if it does not have the blob, or `digest` is not one."""
        answer = self._request(method, f"blobs/{digest}", accept=(404,)) if DIGEST.fullmatch(digest) else None
        return None if answer is None or answer.status_code == 404 else answer

    def missing_layer(self, manifest: Manifest) -> str:
        """Return the digest of the first layer that the registry lacks, or "" (one request without a body a layer)."""
        there = parallel(lambda digest: self._find("HEAD", digest) is not None, manifest.layers)
        rows = zip(manifest.layers, there, strict=True)
        return next((digest or "without a digest" for digest, has in rows if not has), "")

    def referrers(self, digest: str) -> list[dict[str, Any]] | None:
        """Return the descriptors of what refers to a manifest; None if the registry does not list them.

        Raises RegistryRefused; Malformed if the list does not end.
        """
        if not self._lists_referrers:
            return None
        # A registry without this list must answer 404 by the specification. Some know the path but no method for it,
        # Artifactory answers 406 (google/go-containerregistry#1962), and GHCR leads to a page of github.com, which may
        # answer 429 (artifacthub/hub#4785).
        accept, path = (400, 404, 405, 406), f"referrers/{digest}"
        answer = self._request("GET", path, headers={"Accept": INDEX}, accept=accept, follow=False)
        if answer.status_code != 200 or answer.headers.get("Content-Type", "").partition(";")[0] != INDEX:
            answer.close()
            self._lists_referrers = False
            return None
        return descriptors({"manifests": self._pages(answer, "manifests", headers={"Accept": INDEX})})

    # --- writing ---

    def put(self, reference: str, content: bytes, media_type: str) -> bool:
        """Upload a manifest or an index, whose parts the registry has already; repeat it after an answer in CLASHES.

        Returns whether the registry lists it as a referrer of its subject.
        """
        path, headers = f"manifests/{reference}", {"Content-Type": media_type}
        for left in reversed(range(UPLOADS)):
            accept = CLASHES if left else ()
            answer = self._request("PUT", path, headers=headers, data=content, accept=accept)
            if answer.status_code not in CLASHES:
                break
            _pause()
        return "OCI-Subject" in answer.headers

    def upload(self, content: bytes) -> str:
        """Upload a blob in one piece, unless the registry has it, and return its digest."""
        digest = digest_of(content)
        for left in reversed(range(UPLOADS)):
            if self._find("HEAD", digest) is not None:
                return digest
            address = self._begin_upload()
            headers = {"Content-Type": "application/octet-stream"}
            url = f"{address}{'&' if '?' in address else '?'}digest={digest}"
            # If an upload arrived but its answer was lost, the retry finds that upload gone.
            accept = CLASHES if left else (404,)
            if self._request("PUT", url, headers=headers, data=content, accept=accept).status_code not in accept:
                return digest
            _pause()
        raise RegistryRefused(f"{self.repository} keeps losing an upload ({digest})", hint="push again later")

    def refuse_unless_writable(self) -> None:
        """Raise RegistryRefused if pushing is not allowed: start an upload and cancel it."""
        # Registries drop abandoned uploads by themselves, so it does not matter if this one cannot be cancelled: many
        # logins that may push may not delete.
        self._request("DELETE", self._begin_upload(), accept=range(400, 600)).close()

    def _begin_upload(self) -> str:
        """Return the address to which a new blob is to be sent."""
        answer = self._request("POST", "blobs/uploads/")
        return redirect_address(answer.url, answer.headers.get("Location", ""))


def image_digest(name: str, *, ca: Path | None = None) -> str:
    """Return the digest that an image's tag ("python:3.11-slim") names in its registry now, checked by the content.

    For an image of several platforms that is the digest of their index. Raises RegistryRefused.
    """
    repository, tag = parse_image(name)
    manifest = Registry(repository, ca=ca).manifest(tag)
    if manifest is None:
        raise RegistryRefused(f"{repository} has no tag {tag}", hint="check the image's name, and that it is public")
    return manifest.digest


def _pause() -> None:
    time.sleep(random.uniform(0, transport.BACKOFF))


# --- documents attached to an image: each is a manifest with the image as its subject ---------------------------------


def artifact(kind: str, layers: Sequence[Mapping[str, Any]], annotations: Mapping[str, str]) -> dict[str, Any]:
    """Return a manifest that is not an image: of type `kind`, with an empty configuration and these layers."""
    return {
        "schemaVersion": 2,
        "mediaType": IMAGES[0],
        "artifactType": kind,
        "config": EMPTY,
        "layers": list(layers),
        "annotations": dict(annotations),
    }


def attach(registry: Registry, subject: Manifest, kind: str, title: str, created: str, content: bytes) -> str:
    """Attach a document of type `kind` to an image, and return the digest of the manifest that does so.

    `title`: its file name; `created`: RFC 3339, or "".
    """
    registry.upload(EMPTY_CONFIG)
    registry.upload(content)
    annotations = {CREATED: created} if created else {}
    document = artifact(kind, [descriptor(kind, content, annotations={TITLE: title})], annotations)
    document["subject"] = descriptor(subject.media_type, subject.content)
    content = json.dumps(document, indent=2).encode()
    # Some say that they list it, and have no such list (sigstore/sigstore-js PR 1183).
    if not registry.put(digest_of(content), content, IMAGES[0]) or registry.referrers(subject.digest) is None:
        row = descriptor(IMAGES[0], content, artifactType=kind, annotations=annotations)
        _add(registry, fallback_tag(subject.digest), row)
    return digest_of(content)


def fallback_tag(digest: str) -> str:
    """Return the tag that lists what is attached to an image, where a registry cannot: sha256-DIGEST."""
    return digest.replace(":", "-", 1)


def _add(registry: Registry, tag: str, row: dict[str, Any]) -> None:
    """Add `row` to the index under `tag`, and keep the rows of others."""
    for seconds in LATE:
        time.sleep(seconds)
        rows = _rows(registry.manifest(tag))
        if any(known.get("digest") == row["digest"] for known in rows):
            return
        index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [*rows, row]}
        registry.put(tag, json.dumps(index, indent=2).encode(), INDEX)
    raise RegistryRefused(f"{registry.repository}:{tag} keeps changing", hint="push again when other pushes are done")


def attached_types(registry: Registry, digest: str) -> set[str]:
    """Return the types of the documents attached to an image. Raises Malformed if there are too many."""
    rows = registry.referrers(digest)
    if rows is None:
        # Their digests alone: this index still names what a clean-up of untagged manifests deleted.
        rows = [{"digest": row.get("digest")} for row in _rows(registry.manifest(fallback_tag(digest)))]
    if len(rows) > MOST_ROWS:
        raise Malformed(f"{registry.repository} has more than {MOST_ROWS} referrers of {digest}")
    return set(parallel(partial(_type, registry), rows))


def complete(registry: Registry, digest: str) -> bool:
    """Return whether an SBOM and a provenance are attached to an image: no index offers one without both."""
    return {SBOM, PROVENANCE} <= attached_types(registry, digest)


def _type(registry: Registry, row: Mapping[str, Any]) -> str:
    """Return the type in a descriptor, or that of its manifest where a tool or a registry left it out.

    skopeo 1.9 drops it when it copies an index, cosign 3.1 writes that of the configuration (github.com/sigstore/
    cosign/issues/4641), and so does the registry of go-containerregistry 0.20.7 in its list; all three were measured.
    """
    digest, kind = str(row.get("digest", "")), row.get("artifactType")
    if kind in (None, "", EMPTY_TYPE) and DIGEST.fullmatch(digest):
        with suppress(Malformed):
            manifest = registry.manifest(digest)
            kind = manifest.json().get("artifactType") if manifest is not None else kind
    return str(kind or "")


def _rows(index: Manifest | None) -> list[dict[str, Any]]:
    return descriptors(index.json()) if index is not None else []
