"""TensorFlow's source: the release's tag, an archive with its digest, or a tree on this machine.

A tree or an archive is one file in the build context, source/source.tar, with its digest beside it.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tfbuild.errors import BadInput
from tfbuild.facts import releases
from tfbuild.util.files import absence

REPOSITORY = "https://github.com/tensorflow/tensorflow"
FILE = "source.tar"
# Paths that every TensorFlow tree has, from 1.15 to 2.21.
SIGNS = ("configure.py", ".bazelrc", "tensorflow/tools/pip_package")
# Not part of the source: history, and Bazel's links into its output.
SKIPPED = re.compile(r"\.git|bazel-.*|\.tf_configure\.bazelrc|\.bazelrc\.user")
CHUNK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Source:
    """`kind`: "git" (a `tag`, checked against `commit` if that is known), "archive" (with `sha256`) or "tree"."""

    kind: str
    tag: str = ""
    commit: str = ""
    path: Path | None = None
    sha256: str = ""

    def to_json(self) -> dict[str, object]:
        return {
            "kind": self.kind,
            "tag": self.tag or None,
            "commit": self.commit or None,
            "path": str(self.path) if self.path else None,
            "sha256": self.sha256 or None,
        }


def tag(release: str) -> Source:
    """Return the release's tag on GitHub."""
    row = releases.get(release)
    return Source(kind="git", tag=row.tag, commit=row.commit)


def read(path: Path, sha256: str) -> Source:
    """Return the tree or archive at `path`; raises BadInput if there is none, or it is not TensorFlow's."""
    if os.path.isdir(path):
        _refuse_foreign(path)
        if sha256:
            raise BadInput(f"{path} is a folder, and source-sha256 is for an archive", hint="leave it out")
        return Source(kind="tree", path=path)
    if not os.path.isfile(path):
        why = absence(path) or "neither a folder nor a file"
        raise BadInput(f"no source at {path}: {why}", hint="--source names a tree of TensorFlow or an archive of one")
    if not sha256:
        raise BadInput(f"{path.name} is an archive, which is taken by its digest", hint="--set source-sha256=HEX")
    actual = digest(path)
    if actual != sha256.lower():
        raise BadInput(
            f"{path.name} has the sha256 {actual}, not {sha256}", hint="fetch it again, or correct source-sha256"
        )
    _refuse_foreign_archive(path)
    return Source(kind="archive", path=path, sha256=actual)


def place(source: Source, folder: Path) -> None:
    """Make `folder` with source.tar and SHA256SUMS; an archive is linked, a tree is packed."""
    import shutil

    assert source.path is not None
    folder.mkdir()
    target = folder / FILE
    if source.kind == "tree":
        pack(source.path, target)
    else:
        try:
            os.link(source.path.resolve(), target)
        except OSError:
            shutil.copyfile(source.path, target)
    (folder / "SHA256SUMS").write_text(f"{source.sha256 or digest(target)}  /mnt/source/{FILE}\n", encoding="utf-8")


def digest(path: Path) -> str:
    """Return the sha256 of a file's contents, in hex."""
    import hashlib

    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _refuse_foreign(path: Path) -> None:
    missing = [name for name in SIGNS if not (path / name).exists()]
    if missing:
        raise BadInput(f"{path} is not TensorFlow's source: it has no {missing[0]}", hint="--source names its root")


def _refuse_foreign_archive(path: Path) -> None:
    """Raise BadInput if the builder's tar could not unpack the file to TensorFlow's tree. Reads all of it."""
    import lzma
    import tarfile
    import zlib

    try:
        with tarfile.open(path) as tar:
            names = {name.partition("/")[2] for name in tar.getnames()}
    except (tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        raise BadInput(
            f"{path.name} is not a complete tar archive: {str(error).splitlines()[0]}",
            hint="--source takes what tar, gzip, bzip2 or xz made; fetch it again",
        ) from None
    missing = [name for name in SIGNS if not any(member == name or member.startswith(f"{name}/") for member in names)]
    if missing:
        raise BadInput(
            f"{path.name} is not TensorFlow's source: it has no {missing[0]}",
            hint="an archive has one folder on top, which is TensorFlow's root",
        )


def pack(tree: Path, target: Path, *, as_file: str = "") -> None:
    """Pack a tree into the same bytes each time: sorted names, no times, no owners, git's modes.

    It gets one folder on top, as GitHub's archives have. A single file is packed as `as_file`.
    """

    import tarfile

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.mtime, member.uid, member.gid, member.uname, member.gname = 0, 0, 0, "", ""
        member.mode = 0o755 if member.mode & 0o100 else 0o644
        return member

    with tarfile.open(target, "w", format=tarfile.GNU_FORMAT) as tar:
        if tree.is_file():
            tar.add(tree.resolve(), Path("source", as_file), filter=plain)
        for path in _packed(tree):
            tar.add(path, Path("source", path.relative_to(tree)), recursive=False, filter=plain)


def tree_digest(tree: Path) -> str:
    """Return a sha256, in hex, over what `pack` packs: names, contents, what links name, and what may be executed.

    Raises OSError for a file that cannot be read.
    """
    import hashlib

    total = hashlib.sha256()
    for path in _packed(tree):
        kind, content = "link", ""
        if path.is_symlink():
            content = os.readlink(path)
        else:
            kind, content = f"{path.stat().st_mode & 0o100:o}", digest(path)
        total.update(f"{kind}\0{content}\0{path.relative_to(tree).as_posix()}\0".encode(errors="surrogateescape"))
    return total.hexdigest()


def _packed(tree: Path) -> Iterator[Path]:
    """Yield the files and links of a tree, in the same order on every machine."""
    for folder, names, files in os.walk(tree):
        top = Path(folder) == tree
        names[:] = sorted(name for name in names if not (top and SKIPPED.fullmatch(name)))
        links = [name for name in names if Path(folder, name).is_symlink()]
        yield from (Path(folder, name) for name in sorted([*files, *links]) if not (top and SKIPPED.fullmatch(name)))
