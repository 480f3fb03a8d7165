"""Inspect the machine code of TensorFlow's libraries in an image, without starting it."""

import re
from contextlib import suppress

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from tfbuild.binary import inspector, scan
from tfbuild.binary.guard import Guard
from tfbuild.binary.scan import ScannedCode
from tfbuild.context import dockerfile
from tfbuild.context.labels import Planned
from tfbuild.engine import Engine
from tfbuild.errors import BadInput, UnknownImage
from tfbuild.facts import releases
from tfbuild.plan import wheel
from tfbuild.util import files
from tfbuild.util.progress import Progress

# Where pip records what it installed.
METADATA = re.compile(r"(/.+/(?:site|dist)-packages)/([^/]+)-([^/-]+)\.dist-info/METADATA")
METADATA_BYTES = 64 << 20


def image(engine: Engine, ref: str, *, full: bool, progress: Progress) -> inspector.Inspection:
    """Inspect the TensorFlow in an image, whoever made it. Raises UnknownImage, and BadInput if it has none."""
    inspected = engine.image(ref)
    try:
        planned = Planned.from_labels(ref, inspected.labels, inspected.architecture)
    except UnknownImage:
        with progress.step("inspect: look for TensorFlow in the image"):
            folder, release = _installed(engine, inspected.id, ref)
    else:
        folder, release = site_packages(planned.python), planned.release
    libraries, guard = read_libraries(engine, inspected.id, folder, release, full=full, progress=progress)
    return inspector.Inspection(subject=ref, release=release, libraries=libraries, guard=guard)


def _installed(engine: Engine, image: str, ref: str) -> tuple[str, str]:
    """Return the folder and the release of the TensorFlow that pip installed in an image."""
    try:
        paths = engine.read_files(image, lambda path: METADATA.fullmatch(path) is not None, METADATA_BYTES).files
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


def framework_path(planned: Planned) -> str:
    """Return the path of TensorFlow's framework, which has its guard, in an image that tfbuild made."""
    package = releases.package(planned.release)
    return f"{site_packages(planned.python)}/{package.folder}/{package.framework}"


def read_libraries(
    engine: Engine,
    ref: str,
    folder: str,
    release: str,
    *,
    full: bool = False,
    guarded: bool = True,
    progress: Progress | None = None,
    tell: scan.Tell = scan.tell_nobody,
) -> tuple[dict[str, ScannedCode], Guard | None]:
    """Read TensorFlow's libraries in an image's `folder`, and with `guarded` its guard, without starting the image.

    Each library is a step of `progress`; without one, `tell` gets how far the scan is. Raises CodeUnreadable.
    """
    libraries: dict[str, ScannedCode] = {}
    guard = None
    with files.temporary_folder() as scratch:
        package = releases.package(release)
        for name in (*inspector.MAIN, package.framework):
            if name == inspector.MAIN[-1] and libraries:
                continue
            try:
                source = f"{folder}/{package.folder}/{name}"
                path = engine.read_file(ref, source, scratch / "library", inspector.MOST_BYTES)
            except FileNotFoundError:
                continue
            except OSError as error:
                reason = error.strerror or str(error)
                raise scan.CodeUnreadable(f"{name} cannot be copied out of the image: {reason}") from error
            libraries[name] = inspector.read_file(path, name, full, progress, tell)
            if guarded and name == package.framework:
                guard = inspector.guard_of(path, release)
            path.unlink()
    if not libraries:
        raise scan.CodeUnreadable("the image has none of TensorFlow's libraries")
    return libraries, guard
