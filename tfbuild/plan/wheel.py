"""The wheel that goes into an image: the official one, a file, or what a build from source will make.

A file is read, never installed or executed. Its name, version, Python, platform and the CPU guard inside it must fit
the plan before anything starts.
"""

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tfbuild import facts
from tfbuild.cpu.isa import InstructionSet
from tfbuild.errors import BadInput, Unsupported
from tfbuild.facts import Facts, releases, targets, toolchains
from tfbuild.facts.release_table import table, version
from tfbuild.plan.build import MACHINES
from tfbuild.util.files import temporary_folder

# A wheel's name goes into Dockerfiles and shell commands, and packaging allows any text in its tags, and any length.
SAFE_NAME = re.compile(r"[A-Za-z0-9_.+-]{1,255}")
LINUX = re.compile(r"manylinux|linux_")
CPYTHON = re.compile(r"cp3(\d+)")


class WheelName(Facts, frozen=True):
    """A project with TensorFlow's wheels, and the targets that such a wheel is for."""

    name: str
    targets: tuple[str, ...]
    threading: str = ""


@dataclass(frozen=True, kw_only=True)
class WheelFile:
    """The parts of a wheel's file name: the normalised project, version, Python ("3.11") and architecture."""

    path: Path
    project: str
    version: str
    python: str
    arch: str


def official_sha256(requirement: str, python: str, arch: str) -> str:
    """Return the digest on PyPI of an official wheel, "" where the facts do not have it yet."""
    return releases.wheel_digests().get(requirement, {}).get(f"{python} {arch}", "")


def official_requirement(release: str, target: str, arch: str) -> str:
    """Return the requirement for pip; raises Unsupported if no official wheel is for that target."""
    row, wanted = releases.official_wheel(release, arch), targets.get(target)
    name = wanted.column(row.cpu, row.gpu)
    if not name:
        raise Unsupported(
            f"no official {arch} wheel of TensorFlow {release} is for {wanted.title}", hint="build it from source"
        )
    if version(release).is_devrelease:
        project, bracket, extras = name.partition("[")
        nightly = next(row.nightly for row in table().nightly if row.name == project and row.covers(release))
        name = f"{nightly}{bracket}{extras}"
    return f"{name}=={release}"


def newest_official(arch: str, python: str = "") -> str:
    """Return the newest release with an official wheel for that architecture and Python (default: the default base's).

    Without one, that is the newest release.
    """
    wanted = python or toolchains.default_base().python
    known = releases.newest_first()
    return next((release for release in known if wanted in releases.official_pythons(release, arch)), known[0])


def from_path(path: Path, target: str = "") -> WheelFile:
    """Read the file name of a TensorFlow wheel for Linux (and for `target`); raises BadInput if it is not one."""
    if not os.path.isfile(path):  # false for a name that is too long, too
        raise BadInput(
            f"no wheel at {path}",
            hint="--wheel takes `official` (--release names which), index:URL or the path of a .whl file",
        )
    return from_name(path, target)


def from_name(path: Path, target: str = "") -> WheelFile:
    """Read the name of a wheel, which need not exist, as `from_path` does."""
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    try:
        if not SAFE_NAME.fullmatch(path.name):
            raise InvalidWheelFilename(path.name)
        project, number, _, tags = parse_wheel_filename(path.name)
    except InvalidWheelFilename as error:
        raise BadInput(
            f"{path.name} is not a wheel's name", hint="do not rename wheels: their name holds their tags"
        ) from error
    if (row := projects().get(project)) is None:
        raise BadInput(f"{path.name} is {project}, not a TensorFlow wheel", hint=f"one of: {', '.join(projects())}")
    if target and target not in row.targets:
        suitable = " or ".join(row.targets)
        raise BadInput(f"{path.name} is {project}, which is not for {target}", hint=f"--target {suitable}")
    pythons = {match[1] for tag in tags if (match := CPYTHON.fullmatch(tag.interpreter))}
    arches = {arch for tag in tags for arch in MACHINES if LINUX.match(tag.platform) and tag.platform.endswith(arch)}
    if len(pythons) != 1 or len(arches) != 1:
        raise BadInput(f"{path.name} is not for CPython on Linux", hint="its tags must be cp3X and manylinux or linux")
    return WheelFile(
        path=path,
        project=project,
        version=releases.release_of_wheel(number),
        python=f"3.{pythons.pop()}",
        arch=arches.pop(),
    )


def instruction_set(file: WheelFile, release: str, *, claimed: Sequence[InstructionSet]) -> InstructionSet:
    """Return what the wheel was compiled for, according to the CPU guard inside it.

    The guard knows a dozen features (AVX512F, but none of its subsets); the machine code shows the others. `claimed`:
    the sets that --cpu may mean, the widest first. The result is the first one that agrees with the guard on
    the features that the guard knows. Raises BadInput if none does.
    """
    from tfbuild.binary import LibraryUnreadable, inspector, scan

    compiled = _guard(file, release)
    if not claimed:
        code: frozenset[str] = frozenset()
        with suppress(LibraryUnreadable):  # verification reports it
            code = inspector.wheel(file.path).compiled
        return scan.instruction_set(compiled | code, file.arch)
    known = releases.guard_features(release)
    agreeing = (row for row in claimed if frozenset(row.features) & known == compiled & known)
    if (fitting := next(agreeing, None)) is not None:
        return fitting
    raise BadInput(
        f"{file.path.name} was compiled for {' '.join(sorted(compiled)) or 'no feature'}, not for {claimed[-1].name}",
        hint="leave --cpu out to take what the wheel itself says",
    )


def _guard(file: WheelFile, release: str) -> frozenset[str]:
    from tfbuild.binary import guard, inspector

    with temporary_folder() as folder, inspector.open_archive(file.path) as archive:
        library = f"{releases.PACKAGE}/{releases.FRAMEWORK}"
        if library not in archive.namelist():
            raise BadInput(f"{file.path.name} has no {library} in it", hint="this is not a TensorFlow wheel for Linux")
        if archive.getinfo(library).file_size > guard.MOST_BYTES:
            raise BadInput(f"{file.path.name}: {library} is too large to be TensorFlow's")
        return guard.read_guard(Path(archive.extract(library, folder)), release).features


def projects() -> dict[str, WheelName]:
    """Return TensorFlow's wheels by their names."""
    return {row.name: row for row in facts.rows("wheels", WheelName)}


def pythons(release: str, arch: str) -> tuple[str, ...]:
    """Return the Pythons that may have an official wheel; for a release newer than the facts, newer Pythons too."""
    known = releases.official_pythons(release, arch)
    if releases.known(version(release).base_version):
        return known
    return known + tuple(name for name in toolchains.base_pythons() if version(name) > version(known[-1]))
