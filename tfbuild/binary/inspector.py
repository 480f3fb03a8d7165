"""From a wheel or a library to what its machine code shows, beside what its CPU guard says of itself.

Nothing of it is installed, started or executed.
"""

import os
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from tfbuild import facts
from tfbuild.binary import scan
from tfbuild.binary.guard import Guard, GuardUnreadable, read_guard
from tfbuild.binary.scan import Found
from tfbuild.cpu import isa
from tfbuild.errors import BadWheel, TfbuildError
from tfbuild.facts import guard as guards
from tfbuild.facts import releases
from tfbuild.facts.release_table import Package
from tfbuild.util.progress import Progress

# Where TensorFlow's code is: all but the framework in the first of these that is there.
MAIN = ("libtensorflow_cc.so.2", "python/_pywrap_tensorflow_internal.so")
# Of a wheel that is not TensorFlow's, so many libraries are read, the largest first.
MOST_LIBRARIES = 4
# TensorFlow 2.21's largest library has 788 MB.
MOST_BYTES = 2 * 1024**3


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """`libraries`: by name, the main one first; `guard`: TensorFlow's own word, None where it has none."""

    subject: str
    release: str
    libraries: dict[str, Found]
    guard: Guard | None = None

    @property
    def main(self) -> Found:
        return next(iter(self.libraries.values()))

    @property
    def compiled(self) -> frozenset[str]:
        """The features that any of the libraries was compiled for."""
        return frozenset().union(*(found.compiled for found in self.libraries.values()))

    def disagreements(self) -> tuple[str, ...]:
        """Features of which the code of the main library shows another thing than the guard says, in words."""
        if self.guard is None or not self.release or self.main.arch != "x86_64":
            return ()
        judged = guards.guard_features(self.release)
        said = frozenset(row.name for row in facts.features("x86_64") if row.tensorflow in self.guard.compiled)
        beyond = sorted((self.main.compiled & judged) - isa.closure(said))
        absent = sorted((said & judged & scan.written()) - self.main.compiled)
        return tuple(
            [f"the guard was compiled without {name}, and the code has it" for name in beyond]
            + [f"the guard was compiled for {name}, and the code lacks it" for name in absent]
        )

    def to_json(self) -> dict[str, object]:
        return {
            "subject": self.subject,
            "release": self.release or None,
            "arch": self.main.arch,
            "instruction_set": self.main.name,
            "features": sorted(self.main.compiled),
            "guard": {"compiled": list(self.guard.compiled), "unused": list(self.guard.unused)} if self.guard else None,
            "disagreements": list(self.disagreements()),
            "libraries": [_library(name, found) for name, found in self.libraries.items()],
        }


def _library(name: str, found: Found) -> dict[str, Any]:
    return {
        "name": name,
        "method": found.method,
        "threshold": scan.threshold(found.method),
        "instructions": found.instructions,
        "regions": found.regions,
        "coverage": round(found.coverage, 4),
        "dispatched": found.dispatched,
        "features": {
            row.feature: {"per_1000": round(row.rate, 4), "share": round(row.share, 4), "compiled": row.compiled}
            for row in found.families
        },
    }


def is_image(subject: str) -> bool:
    """True for the name of an image, false for a file; BadWheel where it names a file that is not there."""
    if os.path.isfile(subject):  # False for a name that is too long, too
        return False
    path = Path(subject)
    named = subject.startswith(("/", ".")) or subject.endswith((".whl", ".so")) or ".so." in path.name
    if named or os.path.isdir(path):
        raise BadWheel(f"no wheel or library at {subject}", hint="give a .whl file, a .so file or an image's name")
    return True


def inspect(path: Path, *, full: bool, progress: Progress) -> Inspection:
    """A wheel file or a library file; TfbuildError with what to do where it is none."""
    return wheel(path, full=full, progress=progress) if path.suffix == ".whl" else _file(path, full, progress)


def _file(path: Path, full: bool, progress: Progress) -> Inspection:
    return Inspection(subject=str(path), release="", libraries={path.name: read(path, path.name, full, progress)})


def read(path: Path, name: str, full: bool, progress: Progress | None) -> Found:
    if progress is None:
        return scan.read(path, name=name, full=full)
    with progress.step(f"inspect: {name}") as step:
        return scan.read(path, name=name, full=full, step=step)


# --- wheels --------------------------------------------------------------------------------------------------------


def wheel(path: Path, *, full: bool = False, progress: Progress | None = None) -> Inspection:
    """A wheel file; BadWheel where it is none, or holds no code that can be read."""
    release = _release(path)
    with opened(path) as archive, tempfile.TemporaryDirectory(prefix="tfbuild-") as folder:
        package = releases.package(release)
        names = _members(archive, package)
        if not names:
            raise BadWheel(f"{path.name} has no library in it", hint="give a wheel with compiled code (*.so)")
        found, guard = {}, None
        for name in names:
            library = _extract(archive, name, Path(folder))
            found[name] = read(library, name, full, progress)
            if name.endswith(package.framework) and release:
                guard = guard_of(library, release)
            library.unlink()
    return Inspection(subject=path.name, release=release, libraries=found, guard=guard)


@contextmanager
def opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """The archive; whatever zipfile raises over a broken one comes as BadWheel."""
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except TfbuildError:
        raise
    except OSError as error:
        raise BadWheel(f"{path.name} cannot be read: {error.strerror or error}", hint="is the disk full?") from error
    except Exception as error:  # zlib.error, RuntimeError (encrypted), NotImplementedError, EOFError, BadZipFile ...
        told = f"{type(error).__name__} {error}"
        raise BadWheel(f"{path.name} cannot be read: {told}", hint="download or build it again") from error


def _release(path: Path) -> str:
    """The version that the wheel's name tells; empty where it tells none, or not TensorFlow's."""
    try:
        project, version, _, _ = parse_wheel_filename(path.name)
    except InvalidWheelFilename:
        return ""
    return version.base_version if "tensorflow" in project else ""


def _members(archive: zipfile.ZipFile, package: Package) -> list[str]:
    """The libraries to read: TensorFlow's main one and its framework, or else the largest."""
    sizes = {info.filename: info.file_size for info in archive.infolist() if _is_library(info.filename)}
    main = [name for name in (f"{package.folder}/{library}" for library in MAIN) if name in sizes][:1]
    own = [*main, *(name for name in (f"{package.folder}/{package.framework}",) if name in sizes)]
    return own or sorted(sizes, key=lambda name: (-sizes[name], name))[:MOST_LIBRARIES]


def _is_library(name: str) -> bool:
    return ".so" in Path(name).suffixes


def _extract(archive: zipfile.ZipFile, name: str, folder: Path) -> Path:
    """A member as a file in `folder`, under a name of ours; BadWheel where it is, or turns out, too large."""
    if archive.getinfo(name).file_size > MOST_BYTES:
        raise BadWheel(f"{name} in it is too large to be a library", hint="give a wheel of TensorFlow")
    target, left = folder / "library", MOST_BYTES
    with archive.open(name) as source, target.open("wb") as out:
        while piece := source.read(1024 * 1024):
            left -= len(piece)
            if left < 0:
                raise BadWheel(f"{name} in it is larger than it says", hint="download or build it again")
            out.write(piece)
    return target


def guard_of(library: Path, release: str) -> Guard | None:
    try:
        return read_guard(library, release)
    except GuardUnreadable:
        return None
