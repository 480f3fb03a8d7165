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

from tfbuild.errors import BadMirror, BadSource
from tfbuild.plan import source

SCHEMA = "tfbuild.bundle/1"
LIST = "bundle.json"
# What is not whole yet has this in front of its name; a run that was killed leaves it behind.
PART = ".part-"
IMAGES = "images"


class File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`path`: in the folder, HOST/PATH; `url`: where it came from, "" where a person put it there."""

    path: str
    url: str
    sha256: str
    size: int


class BundledRepository(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tag of a bare git repository at `path`; "": all of it, by its HEAD. Git checks content by the commit."""

    path: str
    tag: str
    commit: str

    @property
    def told(self) -> str:
        return f"the tag {self.tag}" if self.tag else "the clone"


class BundledBase(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A base image, at `path` as `docker save` writes it; `image`: its id. `asked`: what a plan calls it."""

    asked: str
    platform: str
    path: str
    image: str
    reference: str
    name: str
    digest: str


class Listing(msgspec.Struct, forbid_unknown_fields=True):
    """bundle.json. `builds`: the identifiers of the plans that it was made for."""

    schema: str = SCHEMA
    builds: list[str] = []
    bases: list[BundledBase] = []
    repositories: list[BundledRepository] = []
    files: list[File] = []


@dataclass
class Part:
    """A file on its way into the bundle; `path`: where its bytes are until it is kept."""

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
        """What is listed at HOST/PATH."""
        with self._lock:
            return self._files.get(path)

    @contextmanager
    def place(self, path: str, url: str) -> Iterator[Part]:
        """A file to write, which is in the bundle once the block ends well, and else leaves nothing behind."""
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        number, name = tempfile.mkstemp(prefix=PART, dir=target.parent)
        part = Part(path=Path(name), stream=os.fdopen(number, "wb"))
        try:
            with part.stream:
                yield part
            part.path.chmod(0o644)
            part.path.replace(target)
        finally:
            part.path.unlink(missing_ok=True)
        self.add(File(path=path, url=url, sha256=part.sha256.hexdigest(), size=part.size))

    def add(self, row: File) -> None:
        with self._lock:
            self._files[row.path] = row

    def base(self, asked: str, platform: str) -> BundledBase | None:
        """The image that was a plan's base when the bundle was made."""
        return next((row for row in self.listing.bases if (row.asked, row.platform) == (asked, platform)), None)

    def keep_base(self, row: BundledBase) -> None:
        same = self.base(row.asked, row.platform)
        self.listing.bases = [*(other for other in self.listing.bases if other != same), row]

    def write(self, *builds: str) -> None:
        """Writes the list, whole or not at all; `builds` are now in it."""
        with self._lock:
            self.listing.files = sorted(self._files.values(), key=lambda row: row.path)
            self.listing.builds = sorted({*self.listing.builds, *builds})
            text = msgspec.json.format(msgspec.json.encode(self.listing), indent=2)
        fresh = self.folder / f"{PART}{LIST}"
        try:
            fresh.write_bytes(text + b"\n")
            fresh.replace(self.folder / LIST)
        finally:
            fresh.unlink(missing_ok=True)


def read(folder: Path) -> Bundle:
    """The bundle in `folder`, with every file checked by its digest. Raises BadMirror."""
    if not (folder / LIST).is_file():
        raise BadMirror(f"{folder} is no bundle: it has no {LIST}", hint=f"invoke bundle ... --output {folder}")
    return _checked(folder)


def fill(folder: Path) -> Bundle:
    """The bundle to fill in `folder`, which may be new, or hold one, or files laid out HOST/PATH that came another way.

    Those are taken in as they are. Raises BadMirror where the folder is anything else, or was changed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    known = (folder / LIST).is_file()
    bundle = _checked(folder) if known else Bundle(folder, Listing())
    for path in _strangers(bundle):
        if not known and "." not in (top := Path(path).parts[0]) and top != IMAGES:
            raise BadMirror(
                f"{folder} holds {path}, which no host's name begins", hint="--output with a new or an empty folder"
            )
        size, sha256 = _digest(folder / path)
        bundle.add(File(path=path, url="", sha256=sha256, size=size))
    return bundle


def _checked(folder: Path) -> Bundle:
    again = "a file of another bundle, or a damaged one? invoke bundle into a new folder"
    try:
        listing = msgspec.json.decode((folder / LIST).read_bytes(), type=Listing)
    except (msgspec.DecodeError, OSError) as error:
        raise BadMirror(f"{folder / LIST} cannot be read: {error}", hint=again) from error
    if listing.schema != SCHEMA:
        raise BadMirror(f"{folder / LIST} is {listing.schema}, not {SCHEMA}", hint="invoke bundle into a new folder")
    for row in listing.files:
        path = folder / row.path
        if not path.resolve().is_relative_to(folder.resolve()) or not path.is_file():
            raise BadMirror(f"{folder} lacks {row.path}, which its list names", hint=again)
        # A size that differs is known at once, in a gigabyte that is not.
        if path.stat().st_size != row.size or _digest(path) != (row.size, row.sha256):
            raise BadMirror(f"{path} was changed: it is not the file of the bundle's list", hint=again)
    for kept in listing.repositories:
        path = folder / kept.path
        if not is_repository(path) or not _has(path, kept):
            raise BadMirror(f"{path} lacks {kept.told} at {kept.commit}, which its list names", hint=again)
    return Bundle(folder, listing)


def _digest(path: Path) -> tuple[int, str]:
    return path.stat().st_size, source.digest(path)


def _strangers(bundle: Bundle) -> Iterator[str]:
    """Files in the folder that are on no list; halves that a killed run left are removed."""
    for top, names, files in os.walk(bundle.folder):
        if is_repository(Path(top)):
            names.clear()
            continue
        for name in files:
            file = Path(top, name)
            path = file.relative_to(bundle.folder).as_posix()
            if name.startswith(PART):
                file.unlink()
            elif path != LIST and bundle.find(path) is None:
                yield path


# --- git --------------------------------------------------------------------------------------------------------------


def is_repository(folder: Path) -> bool:
    """Whether git's own server can serve it: a bare repository, or a tree with one."""
    return (folder / "HEAD").is_file() or (folder / ".git").is_dir()


def keep_tag(bundle: Bundle, url: str, path: str, tag: str, commit: str, ca: Path | None) -> None:
    """Has one tag of the repository at `url`, without its history, in the bundle at `path`, checked by its commit."""
    folder = bundle.folder / path
    if not is_repository(folder):
        folder.mkdir(parents=True, exist_ok=True)
        _git(folder, ca, "init", "--quiet", "--bare")
    if tag not in _git(folder, ca, "tag", "--list", tag).split():
        _git(folder, ca, "fetch", "--quiet", "--depth", "1", url, f"refs/tags/{tag}:refs/tags/{tag}")
    found = _commit(folder, tag)
    if not found.startswith(commit):
        raise BadSource(f"the tag {tag} of {url} is the commit {found}, and not {commit}", hint="a tag that was moved?")
    _list(bundle, BundledRepository(path=path, tag=tag, commit=found))


def keep_clone(bundle: Bundle, url: str, path: str, ca: Path | None) -> None:
    """Clones the whole repository at `url` into the bundle at `path`: trees clone some by a commit, not by a tag."""
    target = bundle.folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=PART, dir=target.parent) as scratch:
        _git(Path(scratch), ca, "clone", "--quiet", "--bare", url, "clone")
        (Path(scratch) / "clone").rename(target)
    _list(bundle, BundledRepository(path=path, tag="", commit=_commit(target, "")))


def _list(bundle: Bundle, row: BundledRepository) -> None:
    bundle.listing.repositories = [row, *(other for other in bundle.listing.repositories if other != row)]


def _has(folder: Path, row: BundledRepository) -> bool:
    """Whether it is there at its commit; a repository that git cannot read is not."""
    try:
        return _commit(folder, row.tag) == row.commit
    except BadMirror as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise
        return False


def _commit(folder: Path, tag: str) -> str:
    name = f"refs/tags/{tag}" if tag else "HEAD"
    return _git(folder, None, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}").strip()


def _git(folder: Path, ca: Path | None, *words: str) -> str:
    env = {**os.environ, "LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", **({"GIT_SSL_CAINFO": str(ca)} if ca else {})}
    try:
        # The folder may have come from another machine, with another owner.
        done = subprocess.run(
            ["git", "-c", "safe.directory=*", *words], cwd=folder, env=env, capture_output=True, text=True, check=True
        )
    except FileNotFoundError as error:
        raise BadMirror("git is not here, which fetches the source", hint="install git; or --source") from error
    except subprocess.CalledProcessError as error:
        said = error.stderr.strip().splitlines()
        raise BadMirror(
            f"git {words[0]}: {said[-1] if said else error}", hint="the same command goes on from there"
        ) from error
    return done.stdout
