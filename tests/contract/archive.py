"""TensorFlow's real source tree, as Debian's archive has it: downloaded once by apt, checked, and read in place.

The tree is upstream's tag without four test images whose licence is not free (Files-Excluded in debian/copyright of the
package), so everything that a build reads is upstream's own.
"""

import hashlib
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests import debian
from tests.debian import Unavailable

RELEASE = "2.14.1"
# Only sid has it. The digest stands in the package's .dsc and in sid's signed index of sources.
SUITE = "sid"
FILE = "tensorflow_2.14.1+dfsg.orig.tar.xz"
SHA256 = "9dfff0627def4e999f66a80d0fb57fd0651d12d525dcd67d6c24f1e9bca72b93"
# Whatever a test asks for beyond these is not there: 350 MB need not stay in memory.
READ = (
    ".bazelrc", ".bazelversion", "WORKSPACE", "configure.py", "requirements_lock_",
    "tensorflow/core/platform/cpu_feature_guard.cc", "tensorflow/core/public/version.h", "tensorflow/core/util/port.cc",
    "tensorflow/tools/pip_package/BUILD", "tensorflow/tools/pip_package/build_pip_package.sh",
    "tensorflow/tools/pip_package/setup.py", "tensorflow/tools/toolchains/python/", "tensorflow/tsl/mkl/build_defs.bzl",
    "tensorflow/tsl/platform/cpu_info.h", "third_party/gpus/find_cuda_config.py",
    "third_party/systemlibs/syslibs_configure.bzl", "tools/",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Tree:
    """`names`: every file in the tree; `contents`: of those that tests read. Paths are relative to its root."""

    names: frozenset[str]
    contents: Mapping[str, bytes]

    def text(self, path: str) -> str:
        """A file's text; KeyError where the tree, or READ, has it not."""
        return self.contents[path].decode()


def fetch(folder: Path) -> Path:
    """The archive in `folder`, downloaded where it is not there or not whole. Raises Unavailable."""
    path = folder / FILE
    if not (path.is_file() and _sha256(path) == SHA256):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="tensorflow-", dir=folder) as work:
            archive = _download(Path(work))
            if _sha256(archive) != SHA256:
                raise Unavailable(f"{FILE} has another sha256 than {SHA256}")
            archive.replace(path)
    return path


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _download(work: Path) -> Path:
    command = debian.apt(work, SUITE, kind="deb-src")
    # The packaging is not needed: only upstream's archive is.
    debian.run([*command, "source", "--only-source", "--download-only", "--tar-only", "tensorflow"], work)
    archive = work / FILE
    if not archive.is_file():
        raise Unavailable(f"Debian {SUITE} has another TensorFlow now: {[p.name for p in work.glob('tensorflow_*')]}")
    return archive


def read(path: Path) -> Tree:
    """The tree in the archive, in one pass."""
    names, contents = set[str](), dict[str, bytes]()
    with tarfile.open(path) as archive:
        for member in archive:
            name = member.name.partition("/")[2]
            names.add(name)
            if member.isfile() and name.startswith(READ):
                file = archive.extractfile(member)
                assert file is not None
                contents[name] = file.read()
    return Tree(names=frozenset(names), contents=contents)
