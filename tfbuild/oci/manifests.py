"""Manifests of images and indexes, and the digests of their content. Their JSON is untrusted: it may have any shape."""

import hashlib
from dataclasses import dataclass
from typing import Any

from tfbuild.errors import RegistryRefused, TfbuildError, Unfinished, VerificationFailed
from tfbuild.util.files import decode

INDEX = "application/vnd.oci.image.index.v1+json"
LISTS = (INDEX, "application/vnd.docker.distribution.manifest.list.v2+json")
IMAGES = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a tag or digest stands for; `content` hashes to `digest`."""

    digest: str
    media_type: str
    content: bytes

    def json(self) -> dict[str, Any]:
        """Return the manifest's JSON. Raises Malformed if it is not an object."""
        return parse_object(self.content, f"manifest {self.digest}")

    @property
    def layers(self) -> list[str]:
        """The digests of an image's layers."""
        return [str(row.get("digest", "")) for row in descriptors(self.json(), "layers")]

    @property
    def config(self) -> str:
        """The digest of an image's configuration; "" for an index."""
        descriptor = self.json().get("config")
        return str(descriptor.get("digest", "")) if isinstance(descriptor, dict) else ""

    @property
    def ids(self) -> tuple[str, ...]:
        """The identifiers an engine may know this image by: its configuration's digest, or its own under containerd.

        Source: docs.docker.com/engine/release-notes/29 (containerd's store is the default of new installations) and
        github.com/docker/buildx/pull/3952. The manifest names the configuration, so each identifies exactly this image.
        """
        return (self.config, self.digest) if self.config else ()


class Damaged(TfbuildError):
    """Part of one image cannot be used; other images may be intact. Raised as one of the following three."""


class Missing(Damaged, Unfinished):
    """The registry answers that it does not have it; a push can restore it."""


class Malformed(Damaged, RegistryRefused):
    """What arrived cannot be read: it is too long, is not JSON, or has another shape."""


class WrongDigest(Damaged, VerificationFailed):
    """What arrived is not what its digest names."""


def digest_of(content: bytes) -> str:
    """Return the digest of some content, as registries write it."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def descriptor(media_type: str, content: bytes, **more: object) -> dict[str, Any]:
    """Return the descriptor of some content, with `more` fields."""
    return {"mediaType": media_type, "digest": digest_of(content), "size": len(content), **more}


def parse_object(content: bytes, name: str) -> dict[str, Any]:
    """Return the JSON object in `content`. Raises Malformed, which calls it `name`, if it is something else."""
    try:
        return decode(content, dict[str, Any])
    except ValueError as error:
        raise Malformed(f"the {name} is not a JSON object", hint="check that --registry names a registry") from error


def descriptors(document: dict[str, Any], name: str = "manifests") -> list[dict[str, Any]]:
    """Return the descriptors in a list of an index, or of an image ("layers"); [] if it has none."""
    rows = document.get(name)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
