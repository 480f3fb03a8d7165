"""A bundle: everything that a build downloads, in one folder laid out HOST/PATH, beside a list of it, bundle.json.

`invoke bundle` fills one by the build's own download steps (mirror.py records them); `--mirror FOLDER` builds from it.
"""

import hashlib
import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec

from tfbuild.errors import BadInput, BadMirror
from tfbuild.plan import source
from tfbuild.util.files import LOCK, decode, flush, read_regular, replace_file, temporary_folder
from tfbuild.util.terminal import cause

SCHEMA = "tfbuild.bundle/1"
LIST = "bundle.json"
# The prefix of files that are not complete yet; a killed run leaves them behind.
PART = ".part-"
IMAGES = "images"
# git waits without end for a server that sends nothing; one that packs a repository sends nothing for minutes.
GIT_SECONDS = 300


class File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`path`: in the folder, HOST/PATH; `url`: where it came from, "" if the user put it there."""

    path: str
    url: str
    sha256: str
    size: int


class BundledRepository(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tag of a bare git repository at `path`, or with the tag "" all of it, by its HEAD.

    Git checks the content by the commit.
    """

    path: str
    tag: str
    commit: str

    @property
    def description(self) -> str:
        return f"the tag {self.tag}" if self.tag else "the clone"


class BundledBase(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A base image, at `path` as `docker save` writes it; `image`: its id; `asked`: its name in a plan."""

    asked: str
    platform: str
    path: str
    image: str
    reference: str
    name: str
    digest: str


class Listing(msgspec.Struct, forbid_unknown_fields=True):
    """The content of bundle.json. `builds`: the identifiers of the plans that it was made for."""

    schema: str = SCHEMA
    builds: list[str] = []
    bases: list[BundledBase] = []
    repositories: list[BundledRepository] = []
    files: list[File] = []


@dataclass
class PartialFile:
    """A file that is being written into the bundle; `path`: where it is until it is complete."""

    path: Path
    stream: IO[bytes]
    size: int = 0

    def __post_init__(self) -> None:
        self.sha256 = hashlib.sha256()

    def write(self, chunk: bytes) -> None:
        self.stream.write(chunk)
        self.sha256.update(chunk)
        self.size += len(chunk)


class Bundle:
    """The folder and its list; threads may share it."""

    def __init__(self, folder: Path, listing: Listing) -> None:
        self.folder = folder
        self.listing = listing
        self._files = {row.path: row for row in listing.files}
        self._lock = threading.Lock()

    @property
    def files(self) -> int:
        return len(self._files)

    @property
    def size(self) -> int:
        """Bytes of all listed files."""
        return sum(row.size for row in self._files.values())

    def find(self, path: str) -> File | None:
        """Return what is listed at HOST/PATH."""
        with self._lock:
            return self._files.get(path)

    @contextmanager
    def new_file(self, path: str, url: str) -> Iterator[PartialFile]:
        """Yield a file to write; it is added to the bundle when the block succeeds, and removed when it fails."""
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=PART, dir=target.parent)
        part = PartialFile(path=Path(name), stream=os.fdopen(descriptor, "wb"))
        try:
            with part.stream:
                yield part
            flush(part.path)
            part.path.chmod(0o644)
            part.path.replace(target)
        finally:
            part.path.unlink(missing_ok=True)
        self.add(File(path=path, url=url, sha256=part.sha256.hexdigest(), size=part.size))

    def add(self, row: File) -> None:
        with self._lock:
            self._files[row.path] = row

    def base(self, key: str, platform: str) -> BundledBase | None:
        """Return the image that was the base of a plan when the bundle was made."""
        return next((row for row in self.listing.bases if (row.asked, row.platform) == (key, platform)), None)

    def keep_base(self, row: BundledBase) -> None:
        same = self.base(row.asked, row.platform)
        self.listing.bases = [*(other for other in self.listing.bases if other != same), row]

    def write(self, *builds: str) -> None:
        """Add `builds` to the list, and write it whole or not at all."""
        with self._lock:
            self.listing.files = sorted(self._files.values(), key=lambda row: row.path)
            self.listing.builds = sorted({*self.listing.builds, *builds})
            text = msgspec.json.format(msgspec.json.encode(self.listing), indent=2)
        replace_file(self.folder / LIST, text + b"\n")


def open_bundle(folder: Path) -> Bundle:
    """Read the bundle in `folder`, and check every file by its digest. Raises BadMirror."""
    if not (folder / LIST).is_file():
        raise BadMirror(f"{folder} is not a bundle: it has no {LIST}", hint=f"invoke bundle ... --output {folder}")
    return _checked(folder)


def fill(folder: Path) -> Bundle:
    """Return the bundle to fill in `folder`: a new one, the one that is there, or one of files laid out HOST/PATH.

    Such files are added as they are. Raises BadMirror for a folder of anything else, and for a bundle that was changed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    listed = (folder / LIST).is_file()
    if not listed and (folder / LIST).exists():
        raise BadMirror(f"{folder / LIST} is not a file", hint="--output with a new or an empty folder")
    bundle = _checked(folder) if listed else Bundle(folder, Listing())
    for path in _unlisted(bundle):
        if not listed and "." not in (top := Path(path).parts[0]) and top != IMAGES:
            raise BadMirror(
                f"{folder} holds {path}, which does not begin with a host's name",
                hint="--output with a new or an empty folder",
            )
        if not _own(folder, folder / path):
            raise BadMirror(
                f"{folder / path} is a link out of the folder", hint="copy the file there, or remove the link"
            )
        size, sha256 = _digest(folder / path)
        bundle.add(File(path=path, url="", sha256=sha256, size=size))
    return bundle


def _checked(folder: Path) -> Bundle:
    hint = "a file of another bundle, or a damaged one? invoke bundle into a new folder"
    try:
        listing = decode(read_regular(folder / LIST), Listing)
    except (ValueError, OSError) as error:
        raise BadMirror(f"{folder / LIST} cannot be read: {cause(error)}", hint=hint) from error
    if listing.schema != SCHEMA:
        raise BadMirror(f"{folder / LIST} is {listing.schema}, not {SCHEMA}", hint="invoke bundle into a new folder")
    for file in listing.files:
        try:
            _check(folder, file, hint)
        except OSError as error:
            raise BadMirror(f"{folder / file.path} cannot be read: {cause(error)}", hint=hint) from error
    for row in listing.repositories:
        path = folder / row.path
        if not is_repository(path) or not _has(path, row):
            raise BadMirror(f"{path} lacks {row.description} at {row.commit}, which its list names", hint=hint)
    return Bundle(folder, listing)


def _check(folder: Path, file: File, hint: str) -> None:
    """Raise BadMirror unless the file is in the folder as it is listed; OSError if it cannot be read."""
    path = folder / file.path
    if not path.exists():
        raise BadMirror(f"{folder} lacks {file.path}, which its list names", hint=hint)
    # The size is compared first, because hashing a gigabyte takes time.
    if not _own(folder, path) or path.stat().st_size != file.size or _digest(path) != (file.size, file.sha256):
        raise BadMirror(f"{path} was changed: it is not the file of the bundle's list", hint=hint)


def _own(folder: Path, path: Path) -> bool:
    """Return whether `path` is a file of the folder, and no link to one elsewhere."""
    return path.is_file() and path.resolve().is_relative_to(folder.resolve())


def _digest(path: Path) -> tuple[int, str]:
    return path.stat().st_size, source.digest(path)


def _unlisted(bundle: Bundle) -> Iterator[str]:
    """Yield the files in the folder that are not listed; remove the incomplete files of a killed run."""
    for top, names, files in os.walk(bundle.folder):
        if is_repository(Path(top)):
            names.clear()
            continue
        for name in files:
            file = Path(top, name)
            path = file.relative_to(bundle.folder).as_posix()
            if name.startswith((PART, f".{LIST}.")):
                file.unlink()
            elif path not in (LIST, LOCK) and bundle.find(path) is None:
                yield path


# --- git --------------------------------------------------------------------------------------------------------------


def is_repository(folder: Path) -> bool:
    """Return whether git's own server can serve the folder: a bare repository, or a tree with one."""
    return (folder / "HEAD").is_file() or (folder / ".git").is_dir()


def keep_tag(bundle: Bundle, url: str, path: str, tag: str, commit: str, ca: Path | None) -> None:
    """Fetch one tag of the repository at `url` into the bundle at `path`, without history; check it by its commit."""
    folder = bundle.folder / path
    if not is_repository(folder):
        folder.mkdir(parents=True, exist_ok=True)
        _git(folder, ca, "init", "--quiet", "--bare")
    if tag not in _git(folder, ca, "tag", "--list", tag).split():
        _git(folder, ca, "fetch", "--quiet", "--depth", "1", url, f"refs/tags/{tag}:refs/tags/{tag}")
    tagged = _commit(folder, tag)
    if not tagged.startswith(commit):
        raise BadInput(f"the tag {tag} of {url} is the commit {tagged}, not {commit}", hint="was the tag moved?")
    _list(bundle, BundledRepository(path=path, tag=tag, commit=tagged))


def keep_clone(bundle: Bundle, url: str, path: str, ca: Path | None) -> None:
    """Clone the whole repository at `url` into the bundle at `path`: source trees clone some by commit, not by tag."""
    target = bundle.folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    with temporary_folder(PART, target.parent) as place:
        _git(place, ca, "clone", "--quiet", "--bare", url, "clone")
        (place / "clone").rename(target)
    _list(bundle, BundledRepository(path=path, tag="", commit=_commit(target, "")))


def _list(bundle: Bundle, row: BundledRepository) -> None:
    bundle.listing.repositories = [row, *(other for other in bundle.listing.repositories if other != row)]


def _has(folder: Path, row: BundledRepository) -> bool:
    """Return whether the repository is at its commit; one that git cannot read is not."""
    try:
        return _commit(folder, row.tag) == row.commit
    except BadMirror as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise
        return False


def _commit(folder: Path, tag: str) -> str:
    name = f"refs/tags/{tag}" if tag else "HEAD"
    return _git(folder, None, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}").strip()


def _git(folder: Path, ca: Path | None, *arguments: str) -> str:
    env = {
        **os.environ,
        "LC_ALL": "C",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_HTTP_LOW_SPEED_LIMIT": "1",
        "GIT_HTTP_LOW_SPEED_TIME": str(GIT_SECONDS),
        **({"GIT_SSL_CAINFO": str(ca)} if ca else {}),
    }
    try:
        # The folder may have come from another machine, with another owner.
        completed = subprocess.run(
            ["git", "-c", "safe.directory=*", *arguments],
            cwd=folder,
            env=env,
            capture_output=True,
            text=True,
            check=True,
        )
    except FileNotFoundError as error:
        raise BadMirror(
            "git, which fetches the source, is not installed", hint="install git, or use --source"
        ) from error
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines()
        raise BadMirror(
            f"git {arguments[0]}: {lines[-1] if lines else error}", hint="the same command continues from there"
        ) from error
    return completed.stdout
