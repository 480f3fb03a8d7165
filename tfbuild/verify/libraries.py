"""Inspect the machine code of TensorFlow's libraries in an image, without starting it."""

import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from tfbuild.binary import LibraryUnreadable, inspector
from tfbuild.context import dockerfile
from tfbuild.engine import Engine
from tfbuild.errors import BadInput, UnknownImage
from tfbuild.facts import releases
from tfbuild.plan import wheel
from tfbuild.util import files
from tfbuild.util.progress import Progress
from tfbuild.verify import labelled_build

# Where pip records what it installed.
METADATA = re.compile(r"(/.+/(?:site|dist)-packages)/([^/]+)-([^/-]+)\.dist-info/METADATA")
METADATA_BYTES = 64 << 20


def inspect_image(engine: Engine, ref: str, *, full: bool, progress: Progress) -> inspector.Inspection:
    """Inspect the TensorFlow in an image, whoever made it. Raises UnknownImage, and BadInput if it has none."""
    inspected = engine.image(ref)
    try:
        planned = labelled_build(ref, inspected.labels, inspected.architecture)
    except UnknownImage:
        with progress.step("inspect: look for TensorFlow in the image"):
            folder, release = _installed(engine, inspected.id, ref)
    else:
        folder, release = site_packages(planned.python), planned.release
    with files.temporary_folder() as scratch:
        found = copied(engine, inspected.id, folder, scratch)
        return inspector.of_libraries(ref, release, found, full=full, progress=progress)


def _installed(engine: Engine, image: str, ref: str) -> tuple[str, str]:
    """Return the folder and the release of the TensorFlow that pip installed in an image."""
    try:
        paths = engine.read_files(image, lambda path: METADATA.fullmatch(path) is not None, METADATA_BYTES)
    except OSError as error:
        raise BadInput(f"the files of {ref} cannot be read: {error.strerror or error}") from error
    for match in filter(None, map(METADATA.fullmatch, sorted(paths))):
        folder, project, version = match.groups()
        with suppress(InvalidVersion):
            if canonicalize_name(project) in wheel.projects():
                return folder, releases.release_of_wheel(Version(version))
    raise BadInput(f"{ref} has no TensorFlow that pip installed", hint="invoke inspect FILE.so reads a single library")


def site_packages(python: str) -> str:
    """Return the folder of an image's packages."""
    return f"{dockerfile.VENV}/lib/python{python}/site-packages"


def copied(engine: Engine, ref: str, folder: str, scratch: Path) -> Iterator[tuple[str, Path]]:
    """Copy TensorFlow's libraries out of an image's `folder`, without starting it: the main one, then the framework.

    Each is removed before the next one is copied. Raises LibraryUnreadable.
    """
    path: Path | None = None
    for name in (*inspector.MAIN_LIBRARIES, releases.FRAMEWORK):
        if name == inspector.MAIN_LIBRARIES[-1] and path:
            continue
        try:
            source = f"{folder}/{releases.PACKAGE}/{name}"
            path = engine.read_file(ref, source, scratch / "library", inspector.MOST_BYTES)
        except FileNotFoundError:
            continue
        except OSError as error:
            reason = error.strerror or str(error)
            raise LibraryUnreadable(f"{name} cannot be copied out of the image: {reason}") from error
        yield name, path
        path.unlink()
    if not path:
        raise LibraryUnreadable("the image has none of TensorFlow's libraries")


def beside(engine: Engine, ref: str, folder: str, main: Collection[str], scratch: Path) -> Iterator[tuple[str, Path]]:
    """Copy TensorFlow's other libraries, but for the `main` ones, in the same way. Raises OSError."""

    def wanted(name: str) -> bool:
        return ".so" in Path(name).suffixes and name not in main

    place = f"{folder}/{releases.PACKAGE}"
    return engine.copy_files(ref, place, wanted, scratch / "library", inspector.MOST_BYTES)
