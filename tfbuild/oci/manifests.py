"""Manifests of images and indexes, and the digests of their content. Their JSON is untrusted: it may have any shape."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfbuild.errors import RegistryRefused, TfbuildError, Unfinished, VerificationFailed

INDEX = "application/vnd.oci.image.index.v1+json"
EMPTY_INDEX = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": []}).encode()
LISTS = (INDEX, "application/vnd.docker.distribution.manifest.list.v2+json")
IMAGES = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
AMBIGUOUS = "no tool writes that: do not use it, and find out who changed it"
Pairs = list[tuple[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a tag or digest stands for; `content` hashes to `digest`."""

    digest: str
    media_type: str
    content: bytes

    def json(self) -> dict[str, Any]:
        """Return the manifest's JSON. Raises Forged if readers may take it for another one, or it is not an object.

        Go's parsers, such as Docker's, take "Config" for "config" too, and the last of both. And what has the fields of
        an image and of an index may be read as either (image-spec, manifest.md, v1.1.0; CVE-2021-41190).
        """
        name = f"manifest {self.digest}"
        try:
            document = parse_object(self.content, name, _unambiguous)
        except RegistryRefused as error:
            raise Forged(error.reason, hint=error.hint) from error
        keys = {key.casefold() for key in document}
        if "manifests" in keys and keys & {"config", "layers"}:
            raise Forged(f"the {name} may be read as an image or as an index", hint=AMBIGUOUS)
        return document

    @property
    def layers(self) -> list[tuple[str, int]]:
        """The digest of each of an image's layers, and its bytes as it is transferred (compressed)."""
        layers = descriptors(self.json(), "layers")
        return [(str(row.get("digest", "")), size if isinstance(size := row.get("size"), int) else 0) for row in layers]

    @property
    def size(self) -> int:
        """Bytes of an image's layers as they are transferred (compressed)."""
        return sum(size for _, size in self.layers)

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
    """The registry says that it does not have it: a push brings it back."""


class Mangled(Damaged, RegistryRefused):
    """What arrived is not what the registry stores: the registry is broken, or something on the way to it."""


class Forged(Damaged, VerificationFailed):
    """The registry stores it like that, but no tool writes such content."""


def digest_of(content: bytes | Path) -> str:
    """Return the digest of some content, or of a file's, as registries write it."""
    if isinstance(content, bytes):
        return f"sha256:{hashlib.sha256(content).hexdigest()}"
    with content.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def parse_object(content: bytes, name: str, hook: Callable[[Pairs], dict[str, Any]] = dict) -> dict[str, Any]:
    """Return the JSON object in `content`, of which each object is made by `hook`.

    Raises RegistryRefused, which calls it `name`, if it is something else.
    """
    try:
        value = json.loads(content, object_pairs_hook=hook)
    except (ValueError, RecursionError) as error:
        raise RegistryRefused(f"the {name} is not JSON", hint="check that --registry names a registry") from error
    if not isinstance(value, dict):
        raise RegistryRefused(f"the {name} is not a JSON object", hint="check that --registry names a registry")
    return value


def _unambiguous(pairs: Pairs) -> dict[str, Any]:
    seen: set[str] = set()
    for key, _ in pairs:
        if key.casefold() in seen:
            raise Forged(f"a manifest has the key {key!r} twice", hint=AMBIGUOUS)
        seen.add(key.casefold())
    return dict(pairs)


def descriptors(document: dict[str, Any], name: str = "manifests") -> list[dict[str, Any]]:
    """Return the descriptors in a list of an index, or of an image ("layers"); [] if it has none."""
    rows = document.get(name)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
