"""TensorFlow's source: the release's tag, an archive with its digest, or a tree on this machine.

A tree or an archive travels in the build context as one file, source/source.tar, beside its digest.
"""

import hashlib
import lzma
import os
import re
import shutil
import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from tfbuild.errors import BadSource
from tfbuild.facts import releases

REPOSITORY = "https://github.com/tensorflow/tensorflow"
FILE = "source.tar"
# What makes a tree TensorFlow's; each stands in every release from 1.15 to 2.21.
SIGNS = ("configure.py", ".bazelrc", "tensorflow/tools/pip_package")
# Where a tree says which version it is of: up to 2.19, and later.
SAYS = ("tensorflow/tools/pip_package/setup.py", "tensorflow/tf_version.bzl")
VERSION = re.compile(r"""^(?:_|TF_)VERSION = ['"]([^'"]+)['"]""", re.MULTILINE)
# Beside the source proper: history, and Bazel's links into its output.
SKIPPED = re.compile(r"\.git|bazel-.*|\.tf_configure\.bazelrc|\.bazelrc\.user")
CHUNK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Source:
    """`kind`: "git" (of `tag`, checked against `commit` where that is known), "archive" (of `sha256`) or "tree"."""

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
    """The release's tag on GitHub."""
    row = releases.get(release)
    return Source(kind="git", tag=row.tag, commit=row.commit)


def read(path: Path, sha256: str) -> Source:
    """The tree or archive at `path`; BadSource where there is none, or it is not what it should be."""
    if path.is_dir():
        _refuse_foreign(path)
        if sha256:
            raise BadSource(f"{path} is a folder, and --source-sha256 is for an archive", hint="leave it out")
        return Source(kind="tree", path=path)
    if not path.is_file():
        raise BadSource(f"no source at {path}", hint="--source names a tree of TensorFlow or an archive of one")
    if not sha256:
        raise BadSource(f"{path.name} is an archive, which is taken by its digest", hint="--source-sha256 HEX")
    found = digest(path)
    if found != sha256.lower():
        raise BadSource(
            f"{path.name} has the sha256 {found}, not {sha256}", hint="fetch it again, or correct --source-sha256"
        )
    _refuse_foreign_archive(path)
    return Source(kind="archive", path=path, sha256=found)


def version(source: Source) -> str:
    """The version that a tree says it is of; "" where it does not say so, and for all other sources."""
    places = [source.path / name for name in SAYS] if source.kind == "tree" and source.path else []
    texts = "".join(path.read_text(encoding="utf-8") for path in places if path.is_file())
    found = VERSION.search(texts)
    return found[1] if found else ""


def place(source: Source, folder: Path) -> None:
    """Puts source.tar and SHA256SUMS into `folder`, which is made; an archive is linked, a tree packed."""
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
    """The sha256 of a file's contents, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _refuse_foreign(path: Path) -> None:
    missing = [name for name in SIGNS if not (path / name).exists()]
    if missing:
        raise BadSource(f"{path} is not TensorFlow's source: it has no {missing[0]}", hint="--source names its root")


def _refuse_foreign_archive(path: Path) -> None:
    """BadSource for a file that the builder's tar would not unpack to TensorFlow's tree. Reads it to its end."""
    try:
        with tarfile.open(path) as tar:
            names = {name.partition("/")[2] for name in tar.getnames()}
    except (tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        raise BadSource(
            f"{path.name} is no tar archive, or one that is cut off: {str(error).splitlines()[0]}",
            hint="--source takes what tar, gzip, bzip2 or xz made; fetch it again",
        ) from None
    missing = [name for name in SIGNS if not any(found == name or found.startswith(f"{name}/") for found in names)]
    if missing:
        raise BadSource(
            f"{path.name} is not TensorFlow's source: it has no {missing[0]}",
            hint="an archive has one folder on top, which is TensorFlow's root",
        )


def pack(tree: Path, target: Path) -> None:
    """The same bytes for the same tree: sorted names, no times, no owners, git's modes. One folder on top, as archives
    have it.
    """

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.mtime, member.uid, member.gid, member.uname, member.gname = 0, 0, 0, "", ""
        member.mode = 0o755 if member.mode & 0o100 else 0o644
        return member

    with tarfile.open(target, "w", format=tarfile.GNU_FORMAT) as tar:
        for folder, names, files in os.walk(tree):
            top = Path(folder) == tree
            names[:] = sorted(name for name in names if not (top and SKIPPED.fullmatch(name)))
            links = [name for name in names if Path(folder, name).is_symlink()]
            for name in sorted([*files, *links]):
                if not (top and SKIPPED.fullmatch(name)):
                    path = Path(folder, name)
                    tar.add(path, Path("source", path.relative_to(tree)), recursive=False, filter=plain)
