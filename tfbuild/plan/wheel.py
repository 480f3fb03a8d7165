"""The wheel that goes into an image: the official one, a file, or what a build from source will make.

A file is read, never installed or executed, and must be what the plan says before anything starts: its name, version,
Python, platform and the CPU guard inside it.
"""

import hashlib
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from tfbuild import facts
from tfbuild.binary import guard
from tfbuild.cpu import isa
from tfbuild.cpu.isa import InstructionSet
from tfbuild.errors import BadWheel
from tfbuild.facts import Facts, releases
from tfbuild.facts import guard as guards

ARCHES = ("x86_64", "aarch64")
# A wheel's name goes into Dockerfiles and shell; packaging lets tags be anything.
SAFE = re.compile(r"[A-Za-z0-9_.+-]+")
LINUX = re.compile(r"manylinux|linux_")
CPYTHON = re.compile(r"cp3(\d+)")
# A compiled TensorFlow's framework library has 20 to 70 MB; ten times that is no TensorFlow.
MOST_BYTES = 700 * 1024 * 1024


class WheelName(Facts, frozen=True):
    name: str
    targets: tuple[str, ...]
    threading: str = ""


class WheelNameTable(Facts, frozen=True):
    name: tuple[WheelName, ...]


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """`kind`: "official" | "file" | "source". `requirement`: what pip is asked for, or the file's name."""

    kind: str
    requirement: str
    constraints: tuple[str, ...]
    path: Path | None = None
    sha256: str = ""

    def to_json(self) -> dict[str, object]:
        return {
            "kind": self.kind,
            "requirement": self.requirement or None,
            "constraints": list(self.constraints),
            "sha256": self.sha256 or None,
        }


@dataclass(frozen=True, kw_only=True)
class WheelFile:
    """What a wheel's file name says: the normalised project name, version, Python ("3.11") and architecture."""

    path: Path
    project: str
    version: str
    python: str
    arch: str


def official(requirement: str, constraints: tuple[str, ...]) -> Wheel:
    return Wheel(kind="official", requirement=requirement, constraints=constraints)


def source(constraints: tuple[str, ...]) -> Wheel:
    return Wheel(kind="source", requirement="", constraints=constraints)


def from_file(file: WheelFile, constraints: tuple[str, ...]) -> Wheel:
    """The wheel file with its sha256, which stands for it in the build's key."""
    with file.path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return Wheel(kind="file", requirement=file.path.name, constraints=constraints, path=file.path, sha256=digest)


def read(path: Path, target: str) -> WheelFile:
    """What the file's name says of a TensorFlow wheel for Linux; BadWheel where it is none."""
    if not os.path.isfile(path):  # nor where the name is too long to be looked for
        raise BadWheel(f"no wheel at {path}", hint="--wheel takes `official` or the path of a .whl file")
    try:
        if not SAFE.fullmatch(path.name):
            raise InvalidWheelFilename(path.name)
        project, version, _, tags = parse_wheel_filename(path.name)
    except InvalidWheelFilename as error:
        raise BadWheel(
            f"{path.name} is not a wheel's name", hint="do not rename wheels: their name holds their tags"
        ) from error
    rows = facts.load("wheels", WheelNameTable).name
    known = [row.name for row in rows]
    if project not in known:
        raise BadWheel(f"{path.name} is {project}, not a TensorFlow wheel", hint=f"one of: {', '.join(known)}")
    pythons = {match[1] for tag in tags if (match := CPYTHON.fullmatch(tag.interpreter))}
    targets = next(row.targets for row in rows if row.name == project)
    if target not in targets:
        raise BadWheel(f"{path.name} is {project}, which is not for {target}", hint=f"--target {' or '.join(targets)}")
    arches = {arch for tag in tags for arch in ARCHES if LINUX.match(tag.platform) and tag.platform.endswith(arch)}
    if len(pythons) != 1 or len(arches) != 1:
        raise BadWheel(f"{path.name} is not for CPython on Linux", hint="its tags must be cp3X and manylinux or linux")
    return WheelFile(
        path=path, project=project, version=version.base_version, python=f"3.{pythons.pop()}", arch=arches.pop()
    )


def refuse_misfit(file: WheelFile, *, release: str, python: str, arch: str) -> None:
    """BadWheel where the file's name contradicts the plan."""
    pairs = (("release", file.version, release), ("Python", file.python, python), ("architecture", file.arch, arch))
    for what, has, wanted in pairs:
        if has != wanted:
            raise BadWheel(
                f"{file.path.name} is for {what} {has}, the plan for {wanted}",
                hint=f"leave the option out to take the wheel's own {what}, or give another wheel",
            )


def instruction_set(file: WheelFile, release: str, *, claimed: InstructionSet | None) -> InstructionSet:
    """What the wheel was compiled for, by the CPU guard inside it.

    The guard knows a dozen features (AVX512F, but none of its subsets), so the machine code is asked for the others. A
    claim may say more than the guard, and must agree on those features that it knows; BadWheel otherwise.
    """
    compiled = _guard(file, release)
    if claimed is None:
        return isa.instruction_set(_rounded(compiled | _code(file), file.arch), file.arch)
    known = guards.guard_features(release)
    told = frozenset(claimed.features) & known
    if told != compiled & known:
        raise BadWheel(
            f"{file.path.name} was compiled for {' '.join(sorted(compiled)) or 'no feature'}, "
            f"not for {claimed.name}: {_difference(told, compiled & known)}",
            hint="leave --cpu out to take what the wheel itself says",
        )
    return claimed


def _difference(told: frozenset[str], compiled: frozenset[str]) -> str:
    parts = (("lacks", told - compiled), ("has beyond it", compiled - told))
    return "; ".join(f"it {verb} {' '.join(sorted(names))}" for verb, names in parts if names)


def _guard(file: WheelFile, release: str) -> frozenset[str]:
    from tfbuild.binary import inspector

    with inspector.opened(file.path) as archive, tempfile.TemporaryDirectory() as folder:
        package = releases.package(release)
        library = f"{package.folder}/{package.framework}"
        if library not in archive.namelist():
            raise BadWheel(f"{file.path.name} has no {library} in it", hint="this is not a TensorFlow wheel for Linux")
        if archive.getinfo(library).file_size > MOST_BYTES:
            raise BadWheel(f"{file.path.name}: {library} is too large to be TensorFlow's")
        return guard.compiled_features(Path(archive.extract(library, folder)), release)


def projects() -> tuple[str, ...]:
    """The names under which TensorFlow's wheels go."""
    return tuple(row.name for row in facts.load("wheels", WheelNameTable).name)


def _rounded(held: frozenset[str], arch: str) -> frozenset[str]:
    """The x86-64 level that holds these features, where it goes beyond them by what machine code never shows (cx16)."""
    from tfbuild.binary import scan

    levels = (level.features for level in facts.levels(arch) if arch == "x86_64")
    level = next((features for features in levels if held <= features), held)
    return held if (level - isa.closure(held)) & scan.written() else level


def _code(file: WheelFile) -> frozenset[str]:
    """What the machine code needs; empty where it cannot be read, which verification will say."""
    from tfbuild.binary import inspector
    from tfbuild.binary.scan import CodeUnreadable

    try:
        return inspector.wheel(file.path).compiled
    except CodeUnreadable:
        return frozenset()


def threading(file: WheelFile) -> str:
    """ "openmp" or "threadpool" where the project's name tells it, else ""."""
    return next(row.threading for row in facts.load("wheels", WheelNameTable).name if row.name == file.project)
