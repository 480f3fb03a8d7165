"""TensorFlow's source and the user's changes to it: patches, repositories, system libraries, a Bazel.

The source is the release's tag, an archive with its digest, or a tree on this machine; a tree or an archive is one file
in the build context, source/source.tar, with its digest beside it. All of it is part of the build context, so its
contents are part of the image's key.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import BinaryIO, cast

import msgspec

from tfbuild import facts
from tfbuild.errors import BadInput, Unsupported, UsageError
from tfbuild.facts import releases
from tfbuild.facts.release_table import RangeRow, table
from tfbuild.util.files import DIST, MOST_CONTENT, REPORTS, WORK, Foreign, access_problem, read_regular
from tfbuild.util.progress import Progress

FILE = "source.tar"
# Paths that every TensorFlow tree has.
TREE_FILES = ("configure.py", ".bazelrc", "tensorflow/tools/pip_package")
MANY_FILES = 5000
# Not part of the source: history, and Bazel's links into its output.
SKIPPED = re.compile(r"\.git|bazel-.*|\.tf_configure\.bazelrc|\.bazelrc\.user")
# Debian policy, 5.6.1. apt-get removes a package whose name has a "-" behind it, and no package's name ends in one.
PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]*[a-z0-9+.]")


@dataclass(frozen=True, kw_only=True)
class Source:
    """`kind`: "git" (a `tag`, checked against `commit` if that is known), "archive" or "tree"."""

    kind: str
    tag: str = ""
    commit: str = ""
    path: Path | None = None
    sha256: str = ""


@dataclass(frozen=True, kw_only=True)
class OwnFile:
    """A file of the user's own: a patch, applied as `git apply -p1` does, or an archive of a Python."""

    path: Path
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Override:
    """A folder that replaces an external repository: Bazel's --override_repository. `sha256`: of all its files."""

    name: str
    path: Path
    sha256: str


class SystemLibrary(RangeRow, frozen=True, kw_only=True):
    """A library of TF_SYSTEM_LIBS, and the Debian packages that a build against it needs; () where nobody knows."""

    name: str
    packages: tuple[str, ...] = ()


# --- TensorFlow's source ----------------------------------------------------------------------------------------------


def from_path(path: Path, sha256: str) -> Source:
    """Return the tree or archive at `path`; raises BadInput if there is none, or it is not TensorFlow's."""
    if os.path.isdir(path):
        if missing := [name for name in TREE_FILES if not (path / name).exists()]:
            raise BadInput(
                f"{path} is not TensorFlow's source: it has no {missing[0]}", hint="--source names the tree's root"
            )
        if sha256:
            raise BadInput(f"{path} is a folder, but --source-sha256 is for archives", hint="leave it out")
        return Source(kind="tree", path=path, sha256=_readable_digest(path, "--source"))
    if not os.path.isfile(path):
        why = access_problem(path) or "neither a folder nor a file"
        raise BadInput(f"no source at {path}: {why}", hint="--source names a tree of TensorFlow or an archive of one")
    if not sha256:
        raise BadInput(f"{path.name} is an archive, which needs its digest", hint="--source-sha256 HEX")
    actual = digest(path)
    if actual != sha256.lower():
        raise BadInput(
            f"{path.name} has the sha256 {actual}, not {sha256}", hint="fetch it again, or correct --source-sha256"
        )
    return Source(kind="archive", path=path, sha256=actual)


def digest(path: Path) -> str:
    """Return the sha256 of a file's contents, in hex."""
    import hashlib

    with Foreign(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def pack(tree: Path, target: Path | BinaryIO, *, as_file: str = "") -> None:
    """Pack a tree into the same bytes each time: sorted names, no times, no owners, git's modes.

    It gets one folder on top, as GitHub's archives have. A single file is packed as `as_file`. `target`: a path, or
    what is written to. Raises OSError for a file that cannot be read.
    """
    import tarfile

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.mtime, member.uid, member.gid, member.uname, member.gname = 0, 0, 0, "", ""
        member.mode = 0o755 if member.mode & 0o100 else 0o644
        return member

    name, file = (target, None) if isinstance(target, Path) else (None, target)
    with tarfile.open(name, "w|", file, format=tarfile.GNU_FORMAT) as tar:
        if tree.is_file():
            tar.add(tree.resolve(), Path("source", as_file), filter=plain)
            return
        for path in _packed(tree):
            tar.inodes.clear()  # type: ignore[attr-defined]  # a file's second name is a file, not a link
            tar.add(path, Path("source", path.relative_to(tree)), recursive=False, filter=plain)


def tree_digest(tree: Path) -> str:
    """Return the sha256, in hex, of what `pack` writes of a tree: the same wherever and whenever it was unpacked."""
    seen = [(path, path.lstat()) for path in _packed(tree)]
    return _digest(tree, tuple((path, status.st_mode, status.st_size, status.st_mtime_ns) for path, status in seen))


# A plan may be tried several times, with TensorFlow's 40,000 files and dozens of overrides.
@cache
def _digest(tree: Path, files: tuple[tuple[Path, int, int, int], ...]) -> str:
    import hashlib

    total = hashlib.sha256()
    # The trees of TensorFlow and LLVM can take a minute.
    with Progress(None if len(files) > MANY_FILES else StringIO()).step(f"reading the {len(files):,} files of {tree}"):
        pack(tree, cast(BinaryIO, SimpleNamespace(write=total.update)))
    return total.hexdigest()


def _readable_digest(tree: Path, what: str) -> str:
    """Return the digest of a tree that the user names by `what`; raises BadInput if a part of it cannot be read."""
    try:
        return tree_digest(tree)
    except OSError as error:
        raise BadInput(
            f"{what}: {error.filename or tree} cannot be read: {error.strerror or error}",
            hint="correct its mode, or remove it",
        ) from error


def _refuse(error: OSError) -> None:
    raise error


def _packed(tree: Path) -> Iterator[Path]:
    """Yield the files, links and empty folders of a tree, in the same order on every machine. Raises BadInput."""
    content = 0
    # What tfbuild writes, where it runs in the tree.
    own = {os.path.realpath(name) for name in (WORK, REPORTS, DIST)}
    for folder, names, files in os.walk(tree, onerror=_refuse):
        top = Path(folder) == tree
        names[:] = [name for name in names if os.path.realpath(os.path.join(folder, name)) not in own]
        if not names and not files and not top:
            yield Path(folder)
        names[:] = sorted(name for name in names if not (top and SKIPPED.fullmatch(name)))
        links = [name for name in names if Path(folder, name).is_symlink()]
        for path in (Path(folder, name) for name in sorted([*files, *links]) if not (top and SKIPPED.fullmatch(name))):
            content += 512 + path.lstat().st_size
            if content > MOST_CONTENT:
                raise BadInput(f"{tree} has more than {MOST_CONTENT >> 30} GiB of files", hint="du --apparent-size")
            yield path


# --- the user's changes -----------------------------------------------------------------------------------------------


library_rows = partial(facts.rows, "system_libs", SystemLibrary)


def patch(text: str) -> OwnFile:
    """Return the patch at a path; raises BadInput if there is no file, or it is not a diff."""
    path = Path(text)
    try:
        content = read_regular(path)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        why = access_problem(path) or getattr(error, "strerror", None) or error
        raise BadInput(f"--patch {text}: {why}", hint="--patch names a unified diff") from error
    if not re.search(rb"^--- .*\n\+\+\+ ", content, re.MULTILINE):
        raise BadInput(f"--patch {text} is not a unified diff", hint="make one with: git diff > my.patch")
    return OwnFile(path=path, sha256=digest(path))


def own_bazel(text: str) -> Path | None:
    """Return the PATH in VERSION=PATH, an executable or the folder of an installation that has bin/bazel, else None.

    Raises BadInput if there is no Bazel.
    """
    version, equals, name = text.partition("=")
    if not equals:
        return None
    path = Path(name)
    program = path / "bin" / "bazel" if os.path.isdir(path) else path
    if not os.path.isfile(program) or not os.access(program, os.X_OK):
        raise BadInput(
            f"--bazel {version}: no Bazel at {name}: {access_problem(program) or 'not an executable'}",
            hint="--bazel VERSION=PATH names an executable, or the folder of an installation with bin/bazel",
        )
    return path


def python_archive(text: str, release: str) -> OwnFile:
    """Return the archive of the Python that Bazel builds with; raises BadInput, and Unsupported for older releases."""
    if not any(row.archive for row in releases.rows(table().hermetic_python, release)):
        raise Unsupported(f"TensorFlow {release} takes no archive of a hermetic Python", hint="--release 2.19 or newer")
    path = Path(text)
    if not path.is_file():
        why = access_problem(path) or "not a file"
        raise BadInput(f"--hermetic-python {text}: {why}", hint="--hermetic-python names an archive, as python.tar.gz")
    return OwnFile(path=path, sha256=digest(path))


def override(text: str, release: str) -> Override:
    """Read NAME=FOLDER; raises BadInput if the folder is not a repository, or is another LLVM than the release's."""
    name, _, folder = text.partition("=")
    path, which = Path(folder), f"--override-repository {name}"
    if not os.path.isdir(path):
        why = access_problem(path) or "not a folder"
        raise BadInput(f"{which}: no folder at {folder}: {why}", hint="unpack the repository there")
    if not any((path / marker).exists() for marker in ("WORKSPACE", "WORKSPACE.bazel", "MODULE.bazel", "REPO.bazel")):
        raise BadInput(
            f"{which}: {folder} has no WORKSPACE file, so Bazel does not take it",
            hint=f"add a file WORKSPACE with: workspace(name = {name!r})",
        )
    if not any(file in names for _, _, names in os.walk(path) for file in ("BUILD", "BUILD.bazel")):
        raise BadInput(
            f"{which}: {folder} has no BUILD file, so Bazel finds nothing in it",
            hint="the tree adds one to the archive that it downloads (`build_file`, below third_party): copy it to "
            f"{folder}/BUILD.bazel",
        )
    found = _llvm(path)
    if other := [row.major for row in releases.rows(table().llvm, release) if found not in (0, row.major, *row.also)]:
        raise BadInput(
            f"{which}: {folder} is LLVM {found}, and TensorFlow {release} is built with {other[0]}",
            hint="take the commit that the tree names: LLVM_COMMIT in third_party/llvm/workspace.bzl, or in the file "
            "of that name below third_party/xla",
        )
    return Override(name=name, path=path, sha256=_readable_digest(path, which))


def _llvm(folder: Path) -> int:
    """Return the major version of LLVM's tree in `folder`; 0 for another tree."""
    for name in ("cmake/Modules/LLVMVersion.cmake", "llvm/CMakeLists.txt"):  # since LLVM 19, and before
        if (folder / "llvm").is_dir() and (folder / name).is_file():
            text = (folder / name).read_text(encoding="utf-8", errors="replace")
            if match := re.search(r"^\s*set\(LLVM_VERSION_MAJOR (\d+)\)", text, re.MULTILINE):
                return int(match[1])
    return 0


def system_library(text: str, release: str) -> SystemLibrary:
    """Read NAME, or NAME=PACKAGE,PACKAGE for a library whose packages tfbuild does not know. Raises UsageError.

    The tree of the release must know the library: it refuses others.
    """
    name, equals, packages = text.partition("=")
    valid = {row.name: row for row in library_rows() if row.covers(release)}
    if name not in valid:
        where = next((f"releases before {row.before} can" for row in library_rows() if row.name == name), "")
        raise UsageError(
            f"--system-lib {text!r}: TensorFlow {release} cannot take {name!r} from the system",
            hint=where or f"one of: {', '.join(valid)}",
        )
    names = tuple(packages.split(",")) if equals else valid[name].packages
    if not names or not all(PACKAGE.fullmatch(each) for each in names):
        tried = ", ".join(name for name, row in valid.items() if row.packages)
        raise UsageError(
            f"--system-lib {text!r}: its Debian packages are not known",
            hint=f"one of: {tried}; or name them: --system-lib NAME=PACKAGE,PACKAGE",
        )
    return msgspec.structs.replace(valid[name], packages=names)
