"""Inspect the machine code of TensorFlow's libraries in an image, without starting it."""

from tfbuild.binary import inspector, scan
from tfbuild.binary.guard import Guard
from tfbuild.binary.scan import ScannedCode
from tfbuild.context.labels import Planned
from tfbuild.engine import Engine
from tfbuild.facts import releases
from tfbuild.util import files
from tfbuild.util.progress import Progress

SITE = "/opt/tensorflow/lib/python{python}/site-packages/{package}/{library}"


def image(engine: Engine, ref: str, *, full: bool, progress: Progress) -> inspector.Inspection:
    """Inspect an image that tfbuild made. Raises UnknownImage for any other."""
    inspected = engine.image(ref)
    planned = Planned.from_labels(ref, inspected.labels, inspected.architecture)
    libraries, guard = read_libraries(
        engine, inspected.id, planned.python, planned.release, full=full, progress=progress
    )
    return inspector.Inspection(subject=ref, release=planned.release, libraries=libraries, guard=guard)


def site(python: str, release: str, library: str) -> str:
    """Return the path of one of TensorFlow's libraries in an image."""
    return SITE.format(python=python, package=releases.package(release).folder, library=library)


def read_libraries(
    engine: Engine,
    ref: str,
    python: str,
    release: str,
    *,
    full: bool = False,
    guarded: bool = True,
    progress: Progress | None = None,
    tell: scan.Tell = scan.tell_nobody,
) -> tuple[dict[str, ScannedCode], Guard | None]:
    """Read TensorFlow's libraries in an image, and with `guarded` its guard, without starting the image.

    Without `progress`, `tell` is told of it. Raises CodeUnreadable with the reason.
    """
    libraries: dict[str, ScannedCode] = {}
    guard = None
    with files.temporary_folder() as folder:
        framework = releases.package(release).framework
        for name in (*inspector.MAIN, framework):
            if name == inspector.MAIN[-1] and libraries:
                continue
            try:
                source = site(python, release, name)
                path = engine.read_file(ref, source, folder / "library", inspector.MOST_BYTES)
            except FileNotFoundError:
                continue
            except OSError as error:
                reason = error.strerror or str(error)
                raise scan.CodeUnreadable(f"{name} cannot be copied out of the image: {reason}") from error
            libraries[name] = inspector.read_file(path, name, full, progress, tell)
            if guarded and name == framework:
                guard = inspector.guard_of(path, release)
            path.unlink()
    if not libraries:
        raise scan.CodeUnreadable("the image has none of TensorFlow's libraries")
    return libraries, guard
