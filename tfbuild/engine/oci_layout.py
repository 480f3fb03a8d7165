"""Write an image that only the engine has into an OCI image layout, which a builder elsewhere can read.

https://github.com/opencontainers/image-spec/blob/main/image-layout.md
"""

import hashlib
import json
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import IO, Any

from tfbuild.engine.client import Engine
from tfbuild.engine.sdk_errors import translated

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
# Engines that keep images in containerd save layers as they were pulled; the suffix of LAYER by a layer's first bytes.
COMPRESSED = ((b"\x1f\x8b", "+gzip"), (b"\x28\xb5\x2f\xfd", "+zstd"))
MAGIC = max(len(magic) for magic, _ in COMPRESSED)
INDEX = "application/vnd.oci.image.index.v1+json"


def write(engine: Engine, ref: str, folder: Path) -> str:
    """Write the image into the folder, which is recreated, and return its manifest's digest."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "blobs" / "sha256").mkdir(parents=True)
    with tempfile.TemporaryFile(dir=folder) as saved:
        with translated(ref):
            for chunk in engine.client.images.get(ref).save():
                saved.write(chunk)
        saved.seek(0)
        manifest = _unpack(saved, folder)
    content = json.dumps(manifest).encode()
    descriptor = {"mediaType": MANIFEST, **_keep(folder, content)}
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": [descriptor]}))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return str(descriptor["digest"])


def _unpack(saved: IO[bytes], folder: Path) -> dict[str, Any]:
    """Unpack the blobs of what `docker save` wrote into the folder, and return the manifest of its one image."""
    with tarfile.open(fileobj=saved) as archive:
        (row,) = json.loads(_read(archive, "manifest.json"))
        config = _read(archive, row["Config"])
        layers = [_layer(archive, name, folder) for name in row["Layers"]]
    return {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": {"mediaType": CONFIG, **_keep(folder, config)},
        "layers": layers,
    }


def _layer(archive: tarfile.TarFile, name: str, folder: Path) -> dict[str, Any]:
    """Copy a layer's blob into the folder and return its descriptor.

    The digest is that of the blob as it is stored, not of what it unpacks to.
    """
    source = archive.extractfile(name)
    assert source is not None
    part = folder / "layer"
    with part.open("w+b") as out:
        shutil.copyfileobj(source, out)
        out.seek(0)
        start = out.read(MAGIC)
        suffix = next((suffix for magic, suffix in COMPRESSED if start.startswith(magic)), "")
        out.seek(0)
        digest = f"sha256:{hashlib.file_digest(out, 'sha256').hexdigest()}"
    size = part.stat().st_size
    part.replace(_blob(folder, digest))
    return {"mediaType": f"{LAYER}{suffix}", "digest": digest, "size": size}


def _read(archive: tarfile.TarFile, name: str) -> bytes:
    source = archive.extractfile(name)
    assert source is not None
    return source.read()


def _keep(folder: Path, content: bytes) -> dict[str, Any]:
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    _blob(folder, digest).write_bytes(content)
    return {"digest": digest, "size": len(content)}


def _blob(folder: Path, digest: str) -> Path:
    return folder / "blobs" / "sha256" / digest.removeprefix("sha256:")
