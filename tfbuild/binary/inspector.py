"""Inspect a wheel, an installed package or a library: what its machine code shows, and what its CPU guard says.

Nothing is installed, started or executed.
"""

import io
import os
import shutil
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

from tfbuild import facts
from tfbuild.binary import LibraryUnreadable, scan
from tfbuild.binary.guard import Guard, read_guard
from tfbuild.binary.scan import ScannedCode
from tfbuild.errors import BadInput, TfbuildError
from tfbuild.facts import releases
from tfbuild.facts.release_table import is_version
from tfbuild.util import files
from tfbuild.util.progress import Progress
from tfbuild.util.terminal import printable

# The library with all of TensorFlow's code but the framework: the first of these that exists.
MAIN_LIBRARIES = ("libtensorflow_cc.so.2", "python/_pywrap_tensorflow_internal.so")
# In a wheel that is not TensorFlow's, so many libraries are read, the largest first.
MOST_LIBRARIES = 4
# TensorFlow 2.21's largest library has 788 MB.
MOST_BYTES = 2 * 1024**3
# Bytes of all files in a wheel, of the list of them (zipfile keeps nine times as many), and of a text in its
# .dist-info: TensorFlow's RECORD has 2 MB.
MOST_UNPACKED = 4 * 1024**3
MOST_LISTED = 16 << 20
MOST_TEXT = 8 << 20
# How wheels are compressed. zipfile decompresses a few KB by bzip2 or LZMA to gigabytes at once.
ZIP_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
FETCH_AGAIN = "download or build it again"


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """What a `subject` (a file or an image) was compiled for. `release`: "" if it is not TensorFlow's.

    `libraries`: by name, the main one first. `guard`: TensorFlow's CPU guard, None if it cannot be read.
    """

    subject: str
    release: str
    libraries: dict[str, ScannedCode]
    guard: Guard | None = None

    @property
    def main(self) -> ScannedCode:
        """The library with most of TensorFlow's code."""
        return next(iter(self.libraries.values()))

    @property
    def compiled(self) -> frozenset[str]:
        """The features that any of the libraries for the main one's architecture was compiled for."""
        return frozenset().union(*(row.compiled for row in self.libraries.values() if row.arch == self.main.arch))

    @property
    def name(self) -> str:
        """The smallest instruction set that can run all of them."""
        return scan.instruction_set(self.compiled, self.main.arch).name

    def disagreements(self) -> tuple[str, ...]:
        """Describe the features on which the main library's code and the guard disagree."""
        if self.guard is None or not self.release or self.main.arch != "x86_64":
            return ()
        judged = releases.guard_features(self.release)
        beyond = sorted((self.main.compiled & judged) - facts.closure(self.guard.features))
        absent = sorted((self.guard.features & judged & scan.written()) - self.main.compiled)
        return tuple(
            [f"the guard was compiled without {name}, but the code has it" for name in beyond]
            + [f"the guard was compiled for {name}, but the code lacks it" for name in absent]
        )

    def to_json(self) -> dict[str, object]:
        """Return what `invoke inspect --json` prints."""
        return {
            "subject": self.subject,
            "release": self.release or None,
            "arch": self.main.arch,
            "instruction_set": self.name,
            "features": sorted(self.compiled),
            "guard": {"compiled": list(self.guard.compiled), "unused": list(self.guard.unused)} if self.guard else None,
            "disagreements": list(self.disagreements()),
            "libraries": [{"name": name, **code.to_json()} for name, code in self.libraries.items()],
        }


def is_image(subject: str) -> bool:
    """Whether `subject` is an image's name, not a file; raises BadInput if it names a file that does not exist."""
    if os.path.isfile(subject) or os.path.isdir(subject):  # false for a name that is too long, too
        return False
    if subject.startswith(("/", ".")) or subject.endswith((".whl", ".so")) or ".so." in Path(subject).name:
        raise BadInput(
            f"no wheel or library at {subject}",
            hint="give a .whl file, a .so file, the folder of an installed package, or an image's name",
        )
    return True


def inspect(path: Path, *, full: bool, progress: Progress) -> Inspection:
    """Inspect a wheel file, an installed package's folder or a library file; raises TfbuildError if it is neither."""
    if path.is_dir():
        return installed(path, full=full, progress=progress)
    if path.suffix == ".whl":
        return wheel(path, full=full, progress=progress)
    return of_libraries(str(path), "", [(path.name, path)], full=full, progress=progress)


def of_libraries(
    subject: str, release: str, found: Iterable[tuple[str, Path]], *, full: bool, progress: Progress | None
) -> Inspection:
    """Inspect libraries, and read the guard of the one that is TensorFlow's framework.

    `found`: names and files, the main one first; each is read before the next one is taken. Raises LibraryUnreadable
    if none can be read, or one of TensorFlow's cannot.
    """
    progress = progress or Progress(io.StringIO())  # tells nobody
    libraries: dict[str, ScannedCode] = {}
    unreadable: dict[str, LibraryUnreadable] = {}
    guard: Guard | None = None
    for member, path in found:
        name = printable(member)
        try:
            with progress.step(f"inspect: {name}") as step:
                libraries[name] = scan.read_code(path, name=name, full=full, tell=partial(setattr, step, "detail"))
        except LibraryUnreadable as error:
            unreadable[name] = error
            if release:
                raise
        if release and name.endswith(releases.FRAMEWORK):
            try:
                guard = read_guard(path, release)
            except LibraryUnreadable as error:
                progress(f"its CPU guard cannot be read: {error.reason}")
    for name, problem in unreadable.items():
        if not libraries:
            raise problem
        progress(f"{name} is left out: {problem.reason}")
    return Inspection(subject=printable(subject), release=release, libraries=libraries, guard=guard)


# --- installed packages -----------------------------------------------------------------------------------------------


def installed(path: Path, *, full: bool, progress: Progress) -> Inspection:
    """Inspect TensorFlow as pip installed it, by its folder `site-packages/tensorflow`; raises BadInput for others."""
    folder = path.resolve()
    framework = os.fsencode(f"{folder.name}/{releases.FRAMEWORK},")
    names = _own_libraries(lambda name: (folder / name).is_file())
    # The package that has it in its RECORD tells the release.
    for record in sorted(folder.parent.glob("*.dist-info/RECORD")):
        version = record.parent.stem.partition("-")[2]
        with suppress(OSError):
            if names and is_version(version) and framework in files.read_regular(record):
                found = [(f"{folder.name}/{name}", folder / name) for name in names]
                release = releases.release_of_wheel(Version(version))
                return of_libraries(str(path), release, found, full=full, progress=progress)
    raise BadInput(
        f"{path} is not an installed TensorFlow",
        hint="give the folder that `pip show --files` names: site-packages/tensorflow",
    )


# --- wheels --------------------------------------------------------------------------------------------------------


def wheel(path: Path, *, full: bool = False, progress: Progress | None = None) -> Inspection:
    """Inspect a wheel file; raises BadInput if it is not one, or has no readable code."""
    release = ""
    with files.temporary_folder() as folder, open_archive(path) as archive:
        names = _members(archive)
        # Else it is not TensorFlow's, but of tensorflow-text or another one that is named like it.
        if f"{releases.PACKAGE}/{releases.FRAMEWORK}" in names:
            with suppress(InvalidWheelFilename):
                release = releases.release_of_wheel(parse_wheel_filename(path.name)[1])
        if not names:
            raise BadInput(f"{path.name} has no library in it", hint="give a wheel with compiled code (*.so)")
        found = ((name, _extract(archive, name, folder)) for name in names)
        return of_libraries(path.name, release, found, full=full, progress=progress)


@contextmanager
def open_archive(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open a wheel; raises BadInput for one beyond the limits, and for whatever zipfile raises for a broken one."""
    try:
        with files.Foreign(path, MOST_LISTED) as file, zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            if any(member.compress_type not in ZIP_METHODS for member in members):
                raise BadInput(f"{path.name} is not compressed by deflate, as wheels are", hint=FETCH_AGAIN)
            if (size := sum(member.file_size for member in members)) > MOST_UNPACKED:
                raise BadInput(f"{path.name} would be unpacked to {size >> 20:,} MiB", hint=FETCH_AGAIN)
            yield archive
    except TfbuildError:
        raise
    except OSError as error:
        if error.errno in files.FULL:  # what is unpacked or written meanwhile
            raise
        raise BadInput(
            f"{path.name} cannot be read: {error.strerror}", hint=f"check its permissions, or {FETCH_AGAIN}"
        ) from error
    except Exception as error:  # zlib.error, RuntimeError (encrypted), NotImplementedError, EOFError, BadZipFile ...
        raise BadInput(f"{path.name} cannot be read: {type(error).__name__} {error}", hint=FETCH_AGAIN) from error


def text_in(archive: zipfile.ZipFile, name: str) -> bytes:
    """Return a text of a wheel; raises BadInput if it is too long."""
    size = archive.getinfo(name).file_size
    if size > MOST_TEXT:
        raise BadInput(f"{Path(str(archive.filename)).name} has a {name} of {size >> 20} MiB", hint=FETCH_AGAIN)
    with archive.open(name) as file:
        return file.read(size + 1)  # without a number, zipfile decompresses all at once


def _members(archive: zipfile.ZipFile) -> list[str]:
    """Return the libraries to read: TensorFlow's main one and its framework, or else the largest."""
    sizes = {info.filename: info.file_size for info in archive.infolist() if ".so" in Path(info.filename).suffixes}
    own = [f"{releases.PACKAGE}/{name}" for name in _own_libraries(lambda name: f"{releases.PACKAGE}/{name}" in sizes)]
    return own or sorted(sizes, key=lambda name: (-sizes[name], name))[:MOST_LIBRARIES]


def _own_libraries(exists: Callable[[str], bool]) -> list[str]:
    """Return TensorFlow's main library and its framework, as far as they exist in a package's folder."""
    return [*[*filter(exists, MAIN_LIBRARIES)][:1], *filter(exists, [releases.FRAMEWORK])]


def _extract(archive: zipfile.ZipFile, name: str, folder: Path) -> Path:
    """Extract a member to the one file in `folder`, in place of the last one; raises BadInput if it is too large."""
    if archive.getinfo(name).file_size > MOST_BYTES:
        raise BadInput(f"{name} in it is too large to be a library", hint="give a wheel of TensorFlow")
    target = folder / "library"
    # zipfile gives no more bytes than the size that it was asked for above.
    with archive.open(name) as source, target.open("wb") as out:
        shutil.copyfileobj(source, out)
    return target
