"""The user's changes to TensorFlow's tree: patches, repositories, system libraries, answers to configure.py.

Each is part of the build context, so its contents are part of the image's key.
"""

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tfbuild import facts
from tfbuild.errors import BadInput, UsageError
from tfbuild.facts import Facts, releases, toolchains
from tfbuild.facts.release_table import RangeRow
from tfbuild.plan import source
from tfbuild.util.files import absence

# What Bazel accepts as a repository's name (https://bazel.build/rules/lib/globals/workspace).
REPOSITORY = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
# Debian policy, 5.6.1. apt-get removes a package whose name has a "-" behind it, and no package's name ends in one.
PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]*[a-z0-9+.]")
VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*")
SYSTEM_LIBS = "TF_SYSTEM_LIBS"
# Where LLVM's tree has its version: since LLVM 19, and before.
LLVM_FILES = ("cmake/Modules/LLVMVersion.cmake", "llvm/CMakeLists.txt")
LLVM_NUMBER = re.compile(r"^\s*set\(LLVM_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)\)", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Patch:
    """A unified diff, applied in the tree's root without its first path component (`git apply -p1`)."""

    path: Path
    sha256: str

    def to_json(self) -> dict[str, str]:
        return {"path": str(self.path), "sha256": self.sha256}


@dataclass(frozen=True, kw_only=True)
class OwnBazel:
    """A Bazel of the user's own: an executable, or the folder of an installation that has bin/bazel."""

    version: str
    path: Path

    @property
    def written(self) -> str:
        """The option's value in a Dockerfile's command."""
        return f"{self.version}={self.path.name}"

    def to_json(self) -> dict[str, str]:
        return {"version": self.version, "path": str(self.path)}


@dataclass(frozen=True, kw_only=True)
class Override:
    """A folder that replaces an external repository: Bazel's --override_repository. `sha256`: of all its files."""

    name: str
    path: Path
    sha256: str

    def to_json(self) -> dict[str, str]:
        return {"name": self.name, "path": str(self.path), "sha256": self.sha256}


class SystemLibrary(Facts, frozen=True, kw_only=True):
    """A library of TF_SYSTEM_LIBS, and the Debian packages that a build against it needs."""

    name: str
    packages: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        return {"name": self.name, "packages": list(self.packages)}


class SystemLibraryRow(RangeRow, frozen=True, kw_only=True):
    """A library that releases can take from the system; `packages` where they are known."""

    name: str
    packages: tuple[str, ...] = ()


class SystemLibraryTable(Facts, frozen=True):
    system_lib: tuple[SystemLibraryRow, ...]


@cache
def library_rows() -> tuple[SystemLibraryRow, ...]:
    return facts.load("system_libs", SystemLibraryTable).system_lib


def patch(text: str) -> Patch:
    """Return the patch at a path; raises BadInput if there is no file, or it is not a diff."""
    path = Path(text)
    try:
        content = path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        why = absence(path) or getattr(error, "strerror", None) or error
        raise BadInput(f"--patch {text}: {why}", hint="--patch names a unified diff") from error
    if not re.search(rb"^--- .*\n\+\+\+ ", content, re.MULTILINE):
        raise BadInput(f"--patch {text} is not a unified diff", hint="make one with: git diff > my.patch")
    return Patch(path=path, sha256=source.digest(path))


def own_bazel(text: str) -> OwnBazel | None:
    """Read VERSION=PATH; None for a version alone.

    Raises BadInput if there is no Bazel at PATH, UsageError for a version that nobody can download.
    """
    version, equals, name = text.partition("=")
    newest = toolchains.table().newest_bazel
    if not equals and text and int(version.partition(".")[0]) > newest:
        hint = f"the newest known is {newest}; --bazel VERSION=PATH takes a newer one of yours"
        raise UsageError(f"there is no Bazel {version}", hint=hint)
    if not equals:
        return None
    path = Path(name)
    program = path / "bin" / "bazel" if os.path.isdir(path) else path
    if not os.path.isfile(program) or not os.access(program, os.X_OK):
        raise BadInput(
            f"--bazel {version}: no Bazel at {name}: {absence(program) or 'not an executable'}",
            hint="--bazel VERSION=PATH names an executable, or the folder of an installation with bin/bazel",
        )
    return OwnBazel(version=version, path=path)


def override(text: str) -> Override:
    """Read NAME=FOLDER; raises UsageError for other text, BadInput if the folder is not a repository."""
    name, equals, folder = text.partition("=")
    if not equals or not REPOSITORY.fullmatch(name) or not folder:
        raise UsageError(
            f"override-repository {text!r} is not NAME=FOLDER", hint="--set override-repository=eigen_archive=../eigen"
        )
    path = Path(folder)
    if not os.path.isdir(path):
        why = absence(path) or "not a folder"
        raise BadInput(f"override-repository {name}: no folder at {folder}: {why}", hint="unpack the repository there")
    if not any((path / marker).exists() for marker in ("WORKSPACE", "WORKSPACE.bazel", "MODULE.bazel")):
        raise BadInput(
            f"override-repository {name}: {folder} has no WORKSPACE file, so Bazel does not take it",
            hint=f"add a file WORKSPACE with: workspace(name = {name!r})",
        )
    if not any(file in names for _, _, names in os.walk(path) for file in ("BUILD", "BUILD.bazel")):
        raise BadInput(
            f"override-repository {name}: {folder} has no BUILD file, so Bazel finds nothing in it",
            hint="the tree adds one to the archive that it downloads (`build_file`, below third_party): copy it to "
            f"{folder}/BUILD.bazel",
        )
    try:
        return Override(name=name, path=path, sha256=source.tree_digest(path))
    except OSError as error:
        raise BadInput(
            f"override-repository {name}: {error.filename} cannot be read: {error.strerror}", hint="correct its mode"
        ) from error


def other_llvm(overrides: Iterable[Override], release: str) -> Iterator[str]:
    """Yield notes on folders with another LLVM than the release's.

    Raises BadInput for one that is more than a major version away: MLIR's interfaces change every week.
    """
    wanted = releases.llvm(release)
    for row in overrides:
        found = _llvm_version(row.path)
        if not wanted or not found or wanted.startswith(found):
            continue
        if abs(int(found.split(".")[0]) - int(wanted.split(".")[0])) > 1:
            raise BadInput(
                f"override-repository {row.name}: {row.path} is LLVM {found}, and TensorFlow {release} is built with "
                f"{wanted}",
                hint="take the commit that the tree names: LLVM_COMMIT in third_party/llvm/workspace.bzl, or the file "
                "of that name below third_party/xla",
            )
        yield f"not certain: {row.name} is LLVM {found}, and TensorFlow {release} is built with {wanted}"


def _llvm_version(folder: Path) -> str:
    """Return the version of LLVM's tree in `folder`; "" for another tree."""
    if not (folder / "llvm" / "CMakeLists.txt").is_file():
        return ""
    for name in LLVM_FILES:
        if (folder / name).is_file():
            numbers = LLVM_NUMBER.findall((folder / name).read_text(encoding="utf-8", errors="replace"))
            if len(numbers) == 3:
                return ".".join(numbers)
    return ""


def system_library(text: str, release: str) -> SystemLibrary:
    """Read NAME, or NAME=PACKAGE,PACKAGE for a library whose packages tfbuild does not know. Raises UsageError.

    The tree of the release must know the library: it refuses others.
    """
    name, equals, packages = text.partition("=")
    valid = {row.name: row.packages for row in library_rows() if row.covers(release)}
    if name not in valid:
        raise UsageError(
            f"system-lib {text!r}: TensorFlow {release} cannot take {name!r} from the system",
            hint=_where(name) or f"one of: {', '.join(valid)}",
        )
    names = tuple(packages.split(",")) if equals else valid[name]
    if not names or not all(PACKAGE.fullmatch(each) for each in names):
        tried = ", ".join(name for name, packages in valid.items() if packages)
        raise UsageError(
            f"system-lib {text!r}: its Debian packages are not known",
            hint=f"one of: {tried}; or name them: --set system-lib=NAME=PACKAGE,PACKAGE",
        )
    return SystemLibrary(name=name, packages=names)


def _where(name: str) -> str:
    """Return the releases that can take a library from the system; "" if none can."""
    row = next((row for row in library_rows() if row.name == name), None)
    return f"releases from {row.since}{row.before and f' before {row.before}'} can" if row else ""


def configure_value(text: str) -> tuple[str, str]:
    """Read NAME=VALUE, a variable of configure.py; raises UsageError for other text."""
    name, equals, value = text.partition("=")
    if not equals or not VARIABLE.fullmatch(name):
        raise UsageError(f"--configure {text!r} is not NAME=VALUE", hint="--configure TF_ENABLE_XLA=0")
    return name, value


def refuse_repeated(option: str, names: list[str]) -> None:
    """Raise UsageError if a name is given twice."""
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"{option} names {repeated} twice", hint="once is enough")


def configured(
    own: tuple[tuple[str, str], ...], libraries: tuple[SystemLibrary, ...], given: tuple[tuple[str, str], ...]
) -> tuple[tuple[str, str], ...]:
    """Return the release's answers, replaced by the user's `given` ones; system libraries go into TF_SYSTEM_LIBS."""
    names = ",".join(sorted(row.name for row in libraries))
    return tuple((dict(own) | ({SYSTEM_LIBS: names} if names else {}) | dict(given)).items())
