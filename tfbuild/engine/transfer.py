"""Images into and out of an engine: pushes and pulls as it reports them, and OCI image layouts.

An image layout is how a builder elsewhere reads an image that only this engine has:
https://github.com/opencontainers/image-spec/blob/main/image-layout.md
"""

import hashlib
import json
import shutil
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import docker
import msgspec
import urllib3

from tfbuild.engine.faults import disk_full, reason, translated
from tfbuild.errors import TfbuildError, without_secrets
from tfbuild.oci import transport
from tfbuild.oci.manifests import IMAGES, INDEX
from tfbuild.util.files import decode
from tfbuild.util.progress import Progress, Step

MOVING = ("Pushing", "Downloading")
# The engine itself has tried each layer five times by then.
TRIES = 3
WAIT_SECONDS = 2.0


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A `phrase` in the engine's error text, what to do about it, and whether a retry may help (`passing`).

    `expires`: a retry may help if some data had been moved, because the credentials expired meanwhile.
    """

    phrase: str
    hint: str
    passing: bool = False
    expires: bool = False


# The first match decides.
REFUSALS = (
    Refusal(phrase="toomanyrequests", hint=transport.TOO_MANY, passing=True),
    Refusal(phrase="too many requests", hint=transport.TOO_MANY, passing=True),
    Refusal(phrase="immutable", hint=transport.IMMUTABLE),
    Refusal(phrase="name unknown", hint=transport.UNKNOWN_NAME),
    # After the rate limits, because some of these phrases also appear in quotas of requests.
    *(Refusal(phrase=phrase, hint=transport.FULL) for phrase in transport.SPACE),
    Refusal(phrase="413 request entity too large", hint=transport.FULL),
    Refusal(phrase="no basic auth", hint="docker login"),
    Refusal(phrase="unauthorized", hint="docker login", expires=True),
    Refusal(phrase="denied", hint="docker login as a user with access; does the repository exist?"),
    Refusal(phrase="x509", hint="the engine must trust the registry's CA: /etc/docker/certs.d/HOST/ca.crt"),
    Refusal(
        phrase="http response to https client",
        hint="serve that registry with TLS, or add it to the engine's insecure-registries",
    ),
)
UNKNOWN = Refusal(phrase="", hint="the same command continues where it stopped: complete layers are kept", passing=True)
NOT_BEGUN = Refusal(phrase="", hint="does the engine reach that registry, and does it have the image?")


class TransferFailed(TfbuildError):
    """The engine could not move an image to or from a registry, by `refusal`. `passing`: a retry may succeed."""

    exit_code = 26

    def __init__(self, error: str, *, begun: bool = False, otherwise: Refusal = UNKNOWN) -> None:
        """`begun`: some data had been moved by then; `otherwise`: for an error that no row knows."""
        rows = (row for row in REFUSALS if row.phrase in error.lower())
        self.refusal = next(rows, otherwise)
        self.passing = self.refusal.passing or (self.refusal.expires and begun)
        super().__init__(without_secrets(error.strip(), foreign=True), hint=self.refusal.hint)


def again(transfer: Callable[[], None], progress: Progress) -> None:
    """Run a transfer, and retry it if that can help."""
    for attempt in range(1, TRIES + 1):
        try:
            transfer()
            return
        except TransferFailed as error:
            if attempt == TRIES or not error.passing:
                raise
            progress(f"{error.reason}; trying again")
            time.sleep(WAIT_SECONDS * attempt)


@contextmanager
def beginning() -> Iterator[None]:
    """Turn the refusal of an engine to begin a pull into TransferFailed. A full disk stays an error of the SDK's."""
    try:
        yield
    except docker.errors.APIError as error:
        if disk_full(error.explanation):
            raise
        raise TransferFailed(error.explanation or str(error), otherwise=NOT_BEGUN) from error


def follow(events: Iterable[dict[str, Any]], step: Step, *, pushing: bool) -> None:
    """Show the events of a transfer in `step` until it ends. Raises TransferFailed with the engine's reason.

    That includes an engine that breaks off, where the SDK passes on what the layers below it raise. Raises DiskFull if
    a pull fills the engine's disk; the engine then removes what it has of the image.
    """
    layers: dict[str, tuple[int, int]] = {}
    # Read to the end, so that the connection to the engine is released.
    failures: list[TfbuildError] = []
    try:
        for event in events:
            if "error" in event:
                error = str(event["error"])
                full = None if pushing else disk_full(error)
                failures.append(full or TransferFailed(error, begun=bool(layers)))
            detail = event.get("progressDetail") or {}
            if event.get("status") in MOVING and detail.get("total"):
                layers[str(event["id"])] = (int(detail.get("current", 0)), int(detail["total"]))
                done, total = (sum(part) for part in zip(*layers.values(), strict=True))
                step.share = min(1.0, done / total)
                step.detail = f"{done / 1e6:,.0f} of {total / 1e6:,.0f} MB, as far as is known"
    except urllib3.exceptions.ReadTimeoutError:
        failures.append(TransferFailed("the transfer stalled: the engine reports no progress"))
    except (urllib3.exceptions.HTTPError, docker.errors.StreamParseError, OSError) as broken:
        failures.append(TransferFailed(f"the engine aborted the transfer: {reason(broken)}"))
    if failures:
        raise failures[0]


# --- OCI image layouts ------------------------------------------------------------------------------------------------

CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
# Engines that keep images in containerd save layers as they were pulled; the suffix of LAYER by a layer's first bytes.
COMPRESSED = ((b"\x1f\x8b", "+gzip"), (b"\x28\xb5\x2f\xfd", "+zstd"))
MAGIC = max(len(magic) for magic, _ in COMPRESSED)


class SavedImage(msgspec.Struct):
    """What the manifest of `docker save` says of an image."""

    Config: str
    Layers: list[str]


def write_layout(client: Any, ref: str, folder: Path) -> str:
    """Write an image of the SDK's `client` into the folder, which is made anew; return its manifest's digest."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "blobs" / "sha256").mkdir(parents=True)
    with tempfile.TemporaryFile(dir=folder) as saved:
        with translated(ref):
            for chunk in client.images.get(ref).save():
                saved.write(chunk)
        saved.seek(0)
        try:
            manifest = _unpack(saved, folder)
        except (ValueError, LookupError, tarfile.TarError) as error:
            raise TransferFailed(f"the engine saved {ref} in an unknown form: {error}") from error
    content = json.dumps(manifest).encode()
    descriptor = {"mediaType": IMAGES[0], **_keep(folder, content)}
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": [descriptor]}))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return str(descriptor["digest"])


def _unpack(saved: IO[bytes], folder: Path) -> dict[str, Any]:
    """Unpack the blobs of what `docker save` wrote into the folder, and return the manifest of its one image.

    Raises ValueError, LookupError or TarError for something else.
    """
    with tarfile.open(fileobj=saved) as archive:
        (image,) = decode(_member(archive, "manifest.json").read(), tuple[SavedImage])
        config = _member(archive, image.Config).read()
        layers = [_layer(_member(archive, name), folder) for name in image.Layers]
    return {
        "schemaVersion": 2,
        "mediaType": IMAGES[0],
        "config": {"mediaType": CONFIG, **_keep(folder, config)},
        "layers": layers,
    }


def _member(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    if (source := archive.extractfile(name)) is None:
        raise LookupError(f"{name} is not a file")
    return source


def _layer(source: IO[bytes], folder: Path) -> dict[str, Any]:
    """Copy a layer's blob into the folder and return its descriptor.

    The digest is that of the blob as it is stored, not of what it unpacks to.
    """
    part = folder / "layer"
    with part.open("w+b") as out:
        shutil.copyfileobj(source, out)
        out.seek(0)
        start = out.read(MAGIC)
        suffix = next((suffix for magic, suffix in COMPRESSED if start.startswith(magic)), "")
        out.seek(0)
        digest = hashlib.file_digest(out, "sha256").hexdigest()
    size = part.stat().st_size
    part.replace(folder / "blobs" / "sha256" / digest)
    return {"mediaType": f"{LAYER}{suffix}", "digest": f"sha256:{digest}", "size": size}


def _keep(folder: Path, content: bytes) -> dict[str, Any]:
    digest = hashlib.sha256(content).hexdigest()
    (folder / "blobs" / "sha256" / digest).write_bytes(content)
    return {"digest": f"sha256:{digest}", "size": len(content)}
