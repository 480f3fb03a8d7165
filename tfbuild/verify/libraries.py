"""Inspect the machine code of TensorFlow's libraries, in an image or in an environment, without starting it."""

import re
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import cast

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from tfbuild.binary import LibraryUnreadable, inspector
from tfbuild.context import dockerfile
from tfbuild.context.labels import labels_of
from tfbuild.cpu import isa
from tfbuild.engine import Engine, Image
from tfbuild.errors import BadInput, UnknownImage, UsageError
from tfbuild.facts import releases
from tfbuild.in_container.smoke import judge
from tfbuild.measure import probe
from tfbuild.plan import MACHINES, Request, select, wheel
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
            folder, _, version = _installed(engine, inspected.id, ref)
            release = releases.release_of_wheel(version)
    else:
        folder, release = site_packages(planned.python), planned.release
    with files.temporary_folder() as scratch:
        found = copied(engine, inspected.id, folder, scratch)
        return inspector.of_libraries(ref, release, found, full=full, progress=progress)


def _installed(engine: Engine, image: str, ref: str) -> tuple[str, str, Version]:
    """Return the folder, the project and the version of the TensorFlow that pip installed in an image."""
    try:
        paths = engine.read_files(image, lambda path: METADATA.fullmatch(path) is not None, METADATA_BYTES)
    except OSError as error:
        raise BadInput(f"the files of {ref} cannot be read: {error.strerror or error}") from error
    for match in filter(None, map(METADATA.fullmatch, sorted(paths))):
        folder, project, version = match.groups()
        with suppress(InvalidVersion):
            if (name := canonicalize_name(project)) in wheel.projects():
                return folder, name, Version(version)
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
    place = f"{folder}/{releases.PACKAGE}"
    wanted = lambda name: ".so" in Path(name).suffixes and name not in main  # noqa: E731
    return engine.copy_files(ref, place, wanted, scratch / "library", inspector.MOST_BYTES)


# --- an environment in place of an image ------------------------------------------------------------------------------

SITE = "/site-packages/"
# The folder is that of `pip install --user` too. The probes need Python 3.10.
ASK = """
import sys; sys.path[:] = filter(None, sys.path)
import importlib.util, os, platform, sysconfig
found = importlib.util.find_spec("tensorflow")
own = found and found.origin
folder = os.path.dirname(os.path.dirname(own)) if own else sysconfig.get_path("platlib")
sys.version_info < (3, 10) or print(platform.python_version(), platform.machine(), folder)
"""


class InstalledWheel(probe.Installation):
    """The TensorFlow of an environment, as the image of its official wheel that it should equal.

    One with a local version ("2.21.0+v3"), of conda, or from a file, as `install` hands it to pip, may be somebody's
    own: its guard and all of its code should agree.
    """

    def image(self, ref: str) -> Image:
        """Describe the environment. Raises UsageError if it has no Python, BadInput if it has no TensorFlow."""
        image = super().image(ref)
        said = self.run(image.id, ["python", "-c", ASK], timeout=judge.SECONDS).stdout.strip().split(" ", 2)
        if len(said) < 3 or said[1] not in MACHINES:
            wanted = f"Python 3.10 or newer for {' or '.join(MACHINES)}"
            raise UsageError(f"{ref} is not {wanted}", hint="name a virtual environment")
        python, machine, self._folder = said
        folder, project, version = _installed(cast(Engine, self), image.id, ref)
        platform, minor = MACHINES[machine], python.rpartition(".")[0]
        # `tensorflow` on x86-64 is compiled for GPUs too, `tensorflow-cpu` is not.
        about = Path(folder, releases.PACKAGE, "python/platform/build_info.py")
        target = "cuda" if about.is_file() and "'is_cuda_build', True" in about.read_text() else "mkl"
        release = releases.release_of_wheel(version)
        # There are no images for all of its Pythons, nor with CUDA for arm64.
        build = select(Request(release=release, platform=platform, target="mkl", wheel="official"), None)
        own_wheel = replace(build.wheel, requirement=f"{project}=={version}", sha256="")
        build = replace(build, python=minor, target=target, wheel=own_wheel)
        beside = {file.name: file for file in Path(folder).glob(f"{project.replace('-', '_')}-*.dist-info/*")}
        conda = "INSTALLER" in beside and beside["INSTALLER"].read_text().strip() == "conda"
        if version.local or conda or "direct_url.json" in beside:
            with files.temporary_folder() as scratch:
                found = copied(cast(Engine, self), image.id, site_packages(minor), scratch)
                own = inspector.of_libraries(ref, release, found, full=False, progress=Progress())
            # The guard knows what compilers hardly write by themselves, such as AVX_VNNI.
            held = own.compiled | (own.guard.features if own.guard else frozenset[str]())
            build = replace(build, instruction_set=isa.instruction_set(held, machine), compiler="", threading="")
        # By default, oneDNN is on only where the CPU has instructions for neural networks.
        self._defaults = build.environment
        return replace(image, labels=labels_of(build), architecture=platform.rpartition("/")[2])

    def sandbox(self, *_: object) -> AbstractContextManager[None]:
        """Confine nothing: an environment is its user's own."""
        return nullcontext()

    def read_files(self, _: str, wanted: Callable[[str], bool], _limit: int) -> dict[str, bytes]:
        """Name the files of packages that are wanted."""
        return {str(path): b"" for path in Path(self._folder).glob("*/*") if wanted(str(path))}

    def read_file(self, _: str, path: str, destination: Path, _limit: int) -> Path:
        """Link to a file of a package. Raises FileNotFoundError."""
        destination.symlink_to(Path(self._folder, path.partition(SITE)[2]).resolve(strict=True))
        return destination

    def copy_files(
        self, _: str, folder: str, wanted: Callable[[str], bool], destination: Path, _limit: int
    ) -> Iterator[tuple[str, Path]]:
        """Link to the files below a package's folder that are wanted, one after the other."""
        place = Path(self._folder, folder.partition(SITE)[2])
        for name in sorted(str(file.relative_to(place)) for file in place.rglob("*.so*") if file.is_file()):
            if wanted(name):
                destination.symlink_to(place / name)
                yield name, destination
                destination.unlink()
