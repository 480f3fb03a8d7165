"""Bazel's cache of a compile without a container, in a registry (`--remote-cache oci://HOST/PATH`).

What cache_images.py does with an engine, for machines that have none. Each run adds layers with what it compiled. The
tag is the build's identifier and "-no-container": an engine's builder and this machine have no action in common.
"""

import json
import os
import re
import shutil
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfbuild.engine.build import BuildSettings
from tfbuild.errors import TfbuildError
from tfbuild.oci.client import Registry
from tfbuild.oci.manifests import IMAGES, Forged
from tfbuild.oci.referrers import EMPTY, EMPTY_TYPE
from tfbuild.plan.remote_cache import IMAGE, CacheImages
from tfbuild.util import files
from tfbuild.util.quantities import counted

ARTIFACT = "application/vnd.tfbuild.cache.v1"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
BUILDER = "io.tfbuild.builder"
# Before compression. GHCR takes layers of 10 GB, and a connection that breaks costs one of them.
LAYER_BYTES = 1 << 30
DISK, SITTINGS = "disk", "sittings"
NAME = re.compile(rf"({DISK}|{SITTINGS})(/[\w-][\w.-]*)+", re.ASCII)
# gzip's default level makes 0.84 of these bytes in three times the time: 116 MB of object files of 2.14.1, measured.
COMPRESSION = 1


@dataclass(kw_only=True)
class CacheLayers:
    """The cache of one build below `root` (see host.py), and its copy in a registry."""

    images: CacheImages
    build_id: str
    root: Path
    ca: Path | None
    _builder: str = ""
    _layers: list[dict[str, Any]] = field(default_factory=list)
    _names: set[str] = field(default_factory=set)

    @property
    def tag(self) -> str:
        return f"{self.build_id}-no-container"

    @property
    def name(self) -> str:
        return f"{IMAGE}{self.images.repository}:{self.tag}"

    def restore(self, settings: BuildSettings) -> None:
        """Fill Bazel's cache from the registry, if it has one.

        Raises RegistryRefused where the registry does not answer, or would refuse a push; Damaged where it sends
        anything else than what was pushed; DiskFull.
        """
        registry = Registry(self.images.repository, ca=self.ca)
        if not self.images.readonly:
            registry.refuse_unless_writable()
        manifest = registry.manifest(self.tag)
        if manifest is None:
            settings.progress(f"{self.name}: no cache yet")
            return
        document = manifest.json()
        annotations = document.get("annotations")
        self._builder = str(annotations.get(BUILDER, "")) if isinstance(annotations, dict) else ""
        if not re.fullmatch("[0-9a-f]{64}", self._builder):
            raise Forged(f"{self.name} is not a cache of tfbuild", hint="name another repository")
        with settings.progress.step(f"restore {self.name}") as step:
            # The newest first: a record of sittings is longer in each layer.
            for number, (digest, size) in enumerate(reversed(manifest.layers), 1):
                step.detail = f"layer {number} of {len(manifest.layers)}, {size / 1e6:.0f} MB"
                with files.writing(self.root), files.temporary_folder(parent=self.root) as folder:
                    registry.download(digest, size, folder / "layer")
                    self._extract(folder, digest)
            step.outcome = counted(len(self._names), "file")
        self._layers = document["layers"]

    def _extract(self, folder: Path, digest: str) -> None:
        """Write what the cache lacks of a layer's files. Other members are not tfbuild's, and left out."""
        cache = self.root / "cache" / self._builder
        try:
            with tarfile.open(folder / "layer", "r:gz") as archive:
                for member in archive:
                    if not member.isreg() or not NAME.fullmatch(member.name) or member.name in self._names:
                        continue
                    self._names.add(member.name)
                    path = cache / member.name
                    if path.exists():
                        continue
                    path.parent.mkdir(parents=True, exist_ok=True)
                    content = archive.extractfile(member)
                    assert content is not None
                    with (folder / "file").open("wb") as file:
                        shutil.copyfileobj(content, file)
                    # Bazel would believe half of an action's result.
                    os.replace(folder / "file", path)
        except (tarfile.TarError, EOFError, zlib.error) as error:
            raise Forged(
                f"{digest} of {self.name} is not a layer of a cache: {error}", hint="delete the tag"
            ) from error

    def save(self, settings: BuildSettings) -> None:
        """Push what the cache has now. A failure is only noted: the compile's own result stands."""
        if self.images.readonly:
            return
        try:
            self._push(settings)
        except (TfbuildError, OSError) as error:
            why = error.reason if isinstance(error, TfbuildError) else error
            settings.progress(f"note: {self.name} was not saved: {why}")

    def _push(self, settings: BuildSettings) -> None:
        builder = (self.root / "opt/tfbuild/builder").read_text(encoding="ascii").strip()
        if self._builder not in ("", builder):
            settings.progress("note: the cache in the registry was made by another builder and could not be used")
        layers, known = (list(self._layers), self._names) if builder == self._builder else ([], set())
        registry = Registry(self.images.repository, ca=self.ca)
        cache = self.root / "cache" / builder
        with settings.progress.step(f"save {self.name}") as step:
            for names in _batches(cache, known):
                step.detail = counted(len(names), "file")
                layers.append(_upload(registry, cache, names))
            empty = {"mediaType": EMPTY_TYPE, "digest": registry.upload(EMPTY), "size": len(EMPTY)}
            manifest = {
                "schemaVersion": 2,
                "mediaType": IMAGES[0],
                "artifactType": ARTIFACT,
                "config": empty,
                "layers": layers,
                "annotations": {BUILDER: builder},
            }
            registry.put(self.tag, json.dumps(manifest).encode(), IMAGES[0])
            step.outcome = counted(len(layers), "layer")

    def remove(self) -> None:
        """Nothing: no engine holds a copy."""


def _batches(cache: Path, known: set[str]) -> Iterator[list[str]]:
    """Yield the names of the files to push, a layer at a time. A record of sittings has a line more after each run."""
    paths = sorted(path for folder in (DISK, SITTINGS) for path in (cache / folder).rglob("*") if path.is_file())
    batch, size = [], 0
    for path in paths:
        name = path.relative_to(cache).as_posix()
        if not NAME.fullmatch(name) or (name in known and name.startswith(DISK)):
            continue
        batch.append(name)
        size += path.stat().st_size
        if size > LAYER_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _upload(registry: Registry, cache: Path, names: list[str]) -> dict[str, Any]:
    """Push files of the cache as a layer, and return its descriptor."""
    with files.temporary_folder() as folder:
        layer = folder / "layer"
        with tarfile.open(layer, "w:gz", compresslevel=COMPRESSION) as archive:
            for name in names:
                archive.add(cache / name, name)
        return {"mediaType": LAYER, "digest": registry.upload(layer), "size": layer.stat().st_size}
