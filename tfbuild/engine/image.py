"""An image as the engine describes it, the parts of its name, and its files.

Files are copied out of a container that was created but never started.
"""

import errno
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO, cast

import docker

from tfbuild.engine.faults import disk_full
from tfbuild.errors import DiskFull, TfbuildError
from tfbuild.util.files import FULL, members
from tfbuild.util.terminal import as_text


@dataclass(frozen=True, kw_only=True)
class Image:
    """An image on the engine: `size` in bytes, `architecture` as the engine spells it ("amd64").

    `created`: RFC 3339.
    """

    id: str
    labels: Mapping[str, str]
    size: int
    env: tuple[str, ...]
    architecture: str
    repo_digests: tuple[str, ...]
    tags: tuple[str, ...] = ()
    created: str = ""
    # All of its configuration, by the engine's names: User, Cmd, Volumes and so on.
    config: Mapping[str, Any] = field(default_factory=dict)
    # The digests of its layers without compression, the lowest first.
    layers: tuple[str, ...] = ()

    @property
    def digests(self) -> frozenset[str]:
        """The digests by which the engine and registries know it."""
        return frozenset({self.id, *(name.rpartition("@")[2] for name in self.repo_digests)})


def parse_image(attrs: Mapping[str, Any]) -> Image:
    """Read what the engine's API returns for an image."""
    config = attrs.get("Config") or {}
    return Image(
        id=attrs["Id"],
        labels=as_text(config.get("Labels")),
        size=attrs["Size"],
        env=tuple(config.get("Env") or ()),
        architecture=attrs["Architecture"],
        repo_digests=tuple(attrs.get("RepoDigests") or ()),
        tags=tuple(attrs.get("RepoTags") or ()),
        created=attrs.get("Created", ""),
        config=config,
        layers=tuple(attrs.get("RootFS", {}).get("Layers") or ()),
    )


# --- its files --------------------------------------------------------------------------------------------------------

STREAM_BYTES = 1 << 20
# The mode bit of Go's os.FileMode for a symbolic link, as in the engine's X-Docker-Container-Path-Stat header.
GO_SYMLINK = 1 << 27


def read_file(container: Any, path: str, destination: Path, limit: int) -> None:
    """Copy one regular file to `destination`, which is removed where that fails; see Engine.read_file."""
    stream = _opened(container, path)
    with closing(stream), _archive(stream) as archive:
        _copy(archive, archive.next(), path, destination, limit)


def copy_files(
    container: Any, folder: str, wanted: Callable[[str], bool], destination: Path, limit: int
) -> Iterator[tuple[str, Path]]:
    """Copy regular files of a folder, one after the other; see Engine.copy_files."""
    stream = _opened(container, folder)
    with closing(stream), _archive(stream) as archive:
        for member in members(archive, "the image"):
            name = member.name.partition("/")[2]
            if member.isreg() and wanted(name):
                _copy(archive, member, f"{folder}/{name}", destination, limit)
                yield name, destination
                destination.unlink()


def _archive(stream: Iterator[bytes]) -> tarfile.TarFile:
    # Of a stream, tarfile takes chunks of any length, up to an empty one.
    file = cast(BinaryIO, SimpleNamespace(read=lambda _: next(stream, b"")))
    return tarfile.open(fileobj=file, mode="r|", bufsize=STREAM_BYTES)


def _copy(archive: tarfile.TarFile, member: tarfile.TarInfo | None, path: str, destination: Path, limit: int) -> None:
    source = archive.extractfile(member) if member and member.isreg() else None
    if member is None or source is None:
        raise IsADirectoryError(errno.EISDIR, "not a regular file", path)
    if member.size > limit:
        raise OSError(errno.EFBIG, f"larger than {limit} bytes ({member.size})", path)
    try:
        with destination.open("wb") as out:
            shutil.copyfileobj(source, out, STREAM_BYTES)
    except OSError as error:
        destination.unlink(missing_ok=True)
        failed = DiskFull if error.errno in (*FULL, errno.EFBIG) else TfbuildError
        raise failed(
            f"{destination.parent} cannot hold a copy of the image's {path}: {error.strerror or error}",
            hint="free some space there, or name a folder on another disk in TMPDIR; then run the same command again",
        ) from error


def read_files(container: Any, wanted: Callable[[str], bool], limit: int) -> dict[str, bytes]:
    """Read the regular files whose paths `wanted` picks; see Engine.read_files."""
    files: dict[str, bytes] = {}
    linked: list[str] = []

    def read(archive: tarfile.TarFile, member: tarfile.TarInfo | None, path: str) -> None:
        source = archive.extractfile(member) if member and member.isreg() else None
        left = limit - sum(map(len, files.values()))
        if member and source and member.size > left:
            raise OSError(errno.EFBIG, f"larger than what is left of the limit ({left} bytes)", path)
        if source:
            files[path] = source.read()

    with _archive(container.export(STREAM_BYTES)) as archive:
        for member in members(archive, "the image"):
            path = f"/{member.name.removeprefix('./').strip('/')}"
            if wanted(path):
                read(archive, member, path)
                linked += [path] * member.islnk()
    # Of a file with several names, such as one of uv's cache, an export has the content under the first.
    for path in linked:
        stream = _opened(container, path)
        with closing(stream), _archive(stream) as archive:
            read(archive, archive.next(), path)
    return files


def _opened(container: Any, path: str) -> Any:
    """Return the engine's tar stream of the file or folder at `path`; links are followed inside the image."""
    try:
        stream, status = container.get_archive(path)
        if status["mode"] & GO_SYMLINK:
            stream.close()
            # Where all links end: the engine follows them.
            stream, _ = container.get_archive(status["linkTarget"])
        return stream
    except docker.errors.APIError as error:
        if disk_full(error.explanation):
            raise
        # A missing file, a file in place of a folder, a circle of links: the wording differs by engine version.
        raise FileNotFoundError(errno.ENOENT, error.explanation or os.strerror(errno.ENOENT), path) from None
