"""Bazel's cache as an image in a registry, for machines that start with empty disks (`--remote-cache oci://HOST/PATH`).

Each run adds a layer with what it compiled, so that the engine moves only what the other side lacks. A build's
identifier is its image's tag.
"""

import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from tfbuild.engine import Engine
from tfbuild.engine.build import BuildSettings
from tfbuild.errors import TfbuildError, UnknownImage
from tfbuild.oci.client import Registry
from tfbuild.plan.remote_cache import IMAGE, CacheImages
from tfbuild.util.files import temporary_folder

LOCAL = "tfbuild-cache"
# Docker takes 127 layers. An image with this many is replaced by one layer with all that this machine's cache has.
MOST_LAYERS = 30


@dataclass(frozen=True, kw_only=True)
class CacheImage:
    """The image of one build's cache. `context`: the build context, whose stages read and write the cache."""

    engine: Engine
    images: CacheImages
    tag: str
    context: Path
    ca: Path | None

    @property
    def name(self) -> str:
        return f"{self.images.repository}:{self.tag}"

    @property
    def _local(self) -> str:
        return f"{LOCAL}:{self.tag}"

    def restore(self, settings: BuildSettings) -> None:
        """Fill Bazel's cache from the image, if there is one.

        Raises RegistryRefused where the registry does not answer, or would refuse a push; TransferFailed, and what
        Engine.export raises.
        """
        registry = Registry(self.images.repository, ca=self.ca)
        if not self.images.readonly:
            registry.refuse_unless_writable()
        digest = registry.digest(self.tag)
        if not digest:
            settings.progress(f"{IMAGE}{self.name}: no cache yet")
            return
        pulled = f"{self.images.repository}@{digest}"
        self.engine.pull(pulled, settings.progress)
        self.engine.tag(pulled, self._local)
        self.engine.untag(pulled)
        with temporary_folder() as folder:
            self.engine.export(self.context, self._settings(settings), stage="restored", output=folder)

    def save(self, settings: BuildSettings) -> None:
        """Push the image with what the cache has now. A failure is only noted: the compile's own result stands."""
        if self.images.readonly:
            return
        try:
            self.engine.build(self.context, self._settings(settings), tag=self.name, stage="saved")
            self.engine.push(self.name, settings.progress)
        except TfbuildError as error:
            settings.progress(f"note: {IMAGE}{self.name} was not saved: {error.reason}")

    def remove(self) -> None:
        """Remove the image from the engine, whose cache has the same files."""
        for name in (self.name, self._local):
            with suppress(UnknownImage):
                self.engine.untag(name)

    def _settings(self, settings: BuildSettings) -> BuildSettings:
        """Return the settings of a stage that uses the cache. RUN_ID keeps the stage itself from being cached."""
        base = "scratch"
        with suppress(UnknownImage):
            if len(self.engine.history(self._local)) < MOST_LAYERS:
                base = self._local
        args = {**settings.build_args, "RUN_ID": str(time.time_ns()), "CACHED": base}
        return replace(settings, log=settings.log.with_name("cache.log"), build_args=args, watch=None, no_cache=False)
