"""TensorFlow's libraries in an image, which is not started for it, and what their machine code shows."""

import tempfile
from pathlib import Path

from tfbuild.binary import inspector, scan
from tfbuild.binary.guard import Guard
from tfbuild.binary.scan import Found
from tfbuild.context.planned import Planned
from tfbuild.engine import Engine
from tfbuild.facts import releases
from tfbuild.util.progress import Progress

SITE = "/opt/tensorflow/lib/python{python}/site-packages/{package}/{library}"


def image(engine: Engine, ref: str, *, full: bool, progress: Progress) -> inspector.Inspection:
    """An image that tfbuild made; UnknownImage where it is none."""
    found = engine.image(ref)
    planned = Planned.of(ref, found.labels, found.architecture)
    libraries, guard = taken_out(engine, found.id, planned.python, planned.release, full=full, progress=progress)
    return inspector.Inspection(subject=ref, release=planned.release, libraries=libraries, guard=guard)


def site(python: str, release: str, library: str) -> str:
    """Where an image has one of TensorFlow's libraries."""
    return SITE.format(python=python, package=releases.package(release).folder, library=library)


def taken_out(
    engine: Engine, ref: str, python: str, release: str, *, full: bool = False, progress: Progress | None = None
) -> tuple[dict[str, Found], Guard | None]:
    """TensorFlow's libraries in an image, which is not started for it, and its guard.

    CodeUnreadable with the reason where they cannot be had.
    """
    libraries: dict[str, Found] = {}
    guard = None
    with tempfile.TemporaryDirectory(prefix="tfbuild-") as folder:
        framework = releases.package(release).framework
        for name in (*inspector.MAIN, framework):
            if name == inspector.MAIN[-1] and libraries:
                continue
            try:
                inside = site(python, release, name)
                path = engine.read_file(ref, inside, Path(folder) / "library", inspector.MOST_BYTES)
            except FileNotFoundError:
                continue
            except OSError as error:
                told = error.strerror or str(error)
                raise scan.CodeUnreadable(f"{name} cannot be taken out of the image: {told}") from error
            libraries[name] = inspector.read(path, name, full, progress)
            if name == framework:
                guard = inspector.guard_of(path, release)
            path.unlink()
    if not libraries:
        raise scan.CodeUnreadable("the image has none of TensorFlow's libraries in it")
    return libraries, guard
