"""Propose the rows of releases.toml for a new release, from its source tree or from its official wheels.

    python -m tests.facts.propose FOLDER
    python -m tests.facts.propose 2.22.0      downloads a wheel of each architecture from PyPI

Each row is to be read, and pasted behind the one that it ends; the last lines name facts of the newest release that the
tree no longer has. What neither says (failures, other compilers) stays to be looked up.
"""

import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from packaging.requirements import Requirement
from packaging.utils import parse_wheel_filename
from packaging.version import Version

from tests.facts import digests, trees
from tfbuild import facts
from tfbuild.binary import inspector
from tfbuild.errors import BadInput, TfbuildError
from tfbuild.facts import release_table, releases
from tfbuild.plan import MACHINES
from tfbuild.plan import tree as source_tree
from tfbuild.plan.wheel import CPYTHON

CLANG = re.compile(rb"\bclang version (\d+\.\d+\.\d+)")
FILES = "PyPI, files of {}"


def proposed(folder: Path) -> str:
    """Return TOML: a table for each fact that the tree says otherwise than the newest known release."""
    tree = trees.folder_record(folder)
    if not tree.version:
        raise BadInput(f"{folder} does not say which release it is", hint="name the root of TensorFlow's tree")
    rows = tuple(source_tree.differences(tree, tree.version))
    new = (f"# {row.file}\n{_table(row.table, row.row)}" for row in rows if row.row)
    gone = (f"# {row.file} has {row.what}: end the row {row.table} {row.key}".rstrip() for row in rows if not row.row)
    after = f"# {tree.version}, unlike {releases.nearest(tree.version)}"
    return "\n".join((after, *new, *gone)) + "\n"


# --- the wheels on PyPI -----------------------------------------------------------------------------------------------


def of_pypi(release: str) -> Iterator[str]:
    """Yield TOML on the release's wheels: one of them is downloaded for each architecture."""
    seen = set[str]()
    for arch in MACHINES:
        project = Requirement(releases.official_wheel(release, arch).cpu).name
        document = digests.document_of(project)
        places = dict(digests.of_project(document, release))
        pythons = sorted((place.split()[0] for place in places if place.endswith(arch)), key=Version)
        if not pythons:
            yield f"# PyPI has no {project} {release} for {arch}\n"
            continue
        with tempfile.TemporaryDirectory() as folder:
            wheel = _download(document, release, places[f"{pythons[-1]} {arch}"], Path(folder))
            yield f"# {wheel.name}: Python {', '.join(pythons)}\n"
            tables = [text for text in of_wheel(wheel, release, arch, pythons) if text not in seen]
            seen.update(tables)
            yield from tables


def of_wheel(wheel: Path, release: str, arch: str, pythons: list[str]) -> Iterator[str]:
    """Yield a table for each fact that a wheel says otherwise than the newest release before it, and its CUDA."""
    since, source = str(release_table.base(release)), FILES.format(release)
    known = releases.nearest(release)
    if tuple(pythons) != releases.official_pythons(known, arch):
        versions = release_table.Python(since=since, versions=tuple(pythons), sure="index", source=source)
        yield _table("python", versions)
    found = [match[1].decode() for text in _texts(wheel) if (match := CLANG.search(text))]
    clang = f"clang-{found[0]}" if found else "clang-"
    if clang not in ("clang-", releases.wheel_compiler(known)):
        measured = (str(Version(release)),)
        yield _table(
            "compiler",
            release_table.ReleaseCompiler(since=since, wheel=clang, measured=measured, sure="wheel", source=source),
        )
    compiled = inspector.wheel(wheel).compiled if arch == "x86_64" else frozenset[str]()
    official = next(row for row in release_table.table().official_wheel if row.key == arch and row.covers(known))
    if compiled and facts.closure(compiled) != facts.closure(official.features):
        yield _table(
            "official_wheel",
            msgspec.structs.replace(official, since=since, features=tuple(sorted(compiled)), flags=(), source=source),
        )
    yield from _cuda(wheel)


def _texts(wheel: Path) -> list[bytes]:
    """Return TensorFlow's own libraries of a wheel, that with the CPU guard first."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if re.search(r"libtensorflow_\w+\.so|_pywrap_tensorflow_in", name)]
        return [archive.read(name) for name in sorted(names, key=lambda name: releases.FRAMEWORK not in name)]


def _cuda(wheel: Path) -> Iterator[str]:
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA")))
    for library in ("cuda-runtime", "cudnn"):
        if match := re.search(rf"Requires-Dist: (nvidia-{library}-cu\d+\S*)", metadata.decode()):
            yield f"# [and-cuda] requires {match[1].rstrip(';')}: compare [[cuda]]\n"


def _download(document: dict[str, Any], release: str, sha256: str, folder: Path) -> Path:
    name: str
    (name,) = (file["filename"] for file in document["releases"][release] if file["digests"]["sha256"] == sha256)
    project, _, _, tags = parse_wheel_filename(name)
    pythons = {f"3.{match[1]}" for tag in tags if (match := CPYTHON.fullmatch(tag.interpreter))}
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    platforms = [f"--platform={tag.platform}" for tag in tags]
    wanted = [f"--python-version={pythons.pop()}", f"--dest={folder}", f"{project}=={release}"]
    subprocess.run([*command, *platforms, *wanted], check=True)
    return folder / name


# --- TOML -------------------------------------------------------------------------------------------------------------


def _table(name: str, row: msgspec.Struct) -> str:
    return f"[[{name}]]\n{_toml(row)}"


def _toml(row: msgspec.Struct) -> str:
    default = {field.name: field.default for field in msgspec.structs.fields(row)}
    own = {name: value for name, value in msgspec.structs.asdict(row).items() if value != default[name]}
    names = {field.name: field.encode_name for field in msgspec.structs.fields(row)}
    return "".join(f"{names[name]} = {msgspec.json.encode(value).decode()}\n" for name, value in own.items())


def main(arguments: list[str]) -> str | None:
    """Print what is proposed; return the error that ends it, if there is one."""
    if len(arguments) != 1:
        return "usage: python -m tests.facts.propose FOLDER|RELEASE"
    (given,) = arguments
    try:
        for text in [proposed(Path(given))] if os.path.isdir(given) else of_pypi(given):
            print(text, end="", flush=True)
    except TfbuildError as error:
        return str(error)
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
