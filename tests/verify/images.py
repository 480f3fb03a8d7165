"""An image whose files the tests choose; nothing in it is started."""

import errno
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tfbuild.engine import Image
from tfbuild.engine.image import Files


@dataclass
class LibraryEngine:
    """What a copy out of the image gives or raises is in `files`, by path.

    `asked`: the paths; `beside`: what of it was still on the disk each time.
    """

    files: Mapping[str, bytes | OSError]
    labels: Mapping[str, str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    beside: list[list[str]] = field(default_factory=list)

    def image(self, ref: str) -> Image:
        return Image(
            id="sha256:0a", labels=dict(self.labels), size=1, env=(), architecture="amd64",
            repo_digests=(),
        )  # fmt: skip

    def read_files(self, ref: str, wanted: Callable[[str], bool], limit: int) -> Files:
        found = {path: content for path, content in self.files.items() if wanted(path) and isinstance(content, bytes)}
        return Files(files=found, links={})

    def read_file(self, ref: str, path: str, destination: Path, limit: int) -> Path:
        self.asked.append(path)
        self.beside.append([file.name for file in destination.parent.iterdir() if not file.name.startswith(".")])
        content = self.files.get(path, FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path))
        if isinstance(content, OSError):
            raise content
        if len(content) > limit:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
        destination.write_bytes(content)
        return destination
