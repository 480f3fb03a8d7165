"""The wheel that goes into an image: the official one, a file, or what a build from source will make.

A file is read, never installed or executed. Its name, version, Python, platform and the CPU guard inside it must fit
the plan before anything starts.
"""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tfbuild import facts
from tfbuild.cpu import Cpu, isa
from tfbuild.cpu.isa import InstructionSet
from tfbuild.errors import BadInput, Unsupported, UsageError
from tfbuild.facts import Facts, releases, targets, toolchains
from tfbuild.facts.release_table import table, version
from tfbuild.plan import base_choice
from tfbuild.plan.build import MACHINES, PLATFORMS, Decision, Wheel
from tfbuild.plan.cuda import capabilities, cuda_of, gpu_fields
from tfbuild.plan.request import BASES, Request, fingerprint
from tfbuild.plan.rules import choose_python, find_release, headers_word, image_fields, requested_set
from tfbuild.plan.source import digest
from tfbuild.util.files import decode, read_regular, temporary_folder
from tfbuild.util.options import given_to_compile

# The values of --wheel that are not a file.
KINDS = ("official", "source")
# A wheel's name goes into Dockerfiles and shell commands, and packaging allows any text in its tags.
SAFE = re.compile(r"[A-Za-z0-9_.+-]+")
LINUX = re.compile(r"manylinux|linux_")
CPYTHON = re.compile(r"cp3(\d+)")
# What people name in place of a file: a requirement of pip's, and an address, of which a path keeps one slash.
REQUIREMENT = re.compile(r"(?:tensorflow|tf)(?:[-_]cpu)?==([\d.]+)")
ADDRESS = re.compile(r"(https?:)/(.+)")
MOST_SIDECAR = 1 << 20


class WheelName(Facts, frozen=True):
    """A project with TensorFlow's wheels, and the targets that such a wheel is for."""

    name: str
    targets: tuple[str, ...]
    threading: str = ""


class CompilingHost(msgspec.Struct):
    """The machine that compiled a wheel without a container, in the wheel's sidecar."""

    system: str


class CompileRecord(msgspec.Struct):
    """What the file beside a wheel of `invoke wheel` says of its compile; `host`: None for a container."""

    sha256: str
    compiler: str
    host: CompilingHost | None = None


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

    Raises Unsupported if there is none.
    """
    python = python or toolchains.default_base().python
    known: set[str] = set()
    for release in releases.newest_first():
        pythons = releases.official_pythons(release, arch)
        if python in pythons:
            return release
        known.update(pythons)
    raise Unsupported(
        f"no official {arch} wheel supports Python {python!r}",
        hint=f"the newest is --python {max(known, key=version)}" if known else "build it from source",
    )


def from_path(path: Path, target: str = "") -> WheelFile:
    """Read the file name of a TensorFlow wheel for Linux (and for `target`); raises BadInput if it is not one."""
    if not os.path.isfile(path):  # false for a name that is too long, too
        from difflib import get_close_matches

        near = get_close_matches(str(path).lower(), KINDS, n=1)
        hint = f"--wheel {near[0]}" if near else "--wheel takes `official` or the path of a .whl file"
        if match := REQUIREMENT.fullmatch(str(path).lower()):
            hint = f"--wheel official --release {match[1]}"
        if match := ADDRESS.match(str(path)):
            raise BadInput(
                f"--wheel does not take a URL: {match[1]}//{match[2]}", hint="download it, and name the file"
            )
        raise BadInput(f"no wheel at {path}", hint=hint)
    return from_name(path, target)


def from_name(path: Path, target: str = "") -> WheelFile:
    """Read the name of a wheel, which need not exist, as `from_path` does."""
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    try:
        if not SAFE.fullmatch(path.name):
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
    what --cpu stands for, the widest set first. They may have more features than the guard knows; the first that
    agrees with it on those that it knows is returned. Raises BadInput if none does.
    """
    from tfbuild.binary import scan

    compiled = _guard(file, release)
    if not claimed:
        return isa.instruction_set(scan.rounded(compiled | _code(file), file.arch), file.arch)
    known = releases.guard_features(release)
    agreeing = (row for row in claimed if frozenset(row.features) & known == compiled & known)
    if (fitting := next(agreeing, None)) is not None:
        return fitting
    nearest = claimed[-1]
    raise BadInput(
        f"{file.path.name} was compiled for {' '.join(sorted(compiled)) or 'no feature'}, "
        f"not for {nearest.name}: {_difference(frozenset(nearest.features) & known, compiled & known)}",
        hint="leave --cpu out to take what the wheel itself says",
    )


def _difference(expected: frozenset[str], compiled: frozenset[str]) -> str:
    parts = (("lacks", expected - compiled), ("has beyond it", compiled - expected))
    return "; ".join(f"it {verb} {' '.join(sorted(names))}" for verb, names in parts if names)


def _guard(file: WheelFile, release: str) -> frozenset[str]:
    from tfbuild.binary import guard, inspector

    with inspector.open_archive(file.path) as archive, temporary_folder() as folder:
        library = f"{releases.PACKAGE}/{releases.FRAMEWORK}"
        if library not in archive.namelist():
            raise BadInput(f"{file.path.name} has no {library} in it", hint="this is not a TensorFlow wheel for Linux")
        if archive.getinfo(library).file_size > guard.MOST_BYTES:
            raise BadInput(f"{file.path.name}: {library} is too large to be TensorFlow's")
        return guard.read_guard(Path(archive.extract(library, folder)), release).features


def projects() -> dict[str, WheelName]:
    """Return TensorFlow's wheels by their names."""
    return {row.name: row for row in facts.rows("wheels", WheelName)}


def _code(file: WheelFile) -> frozenset[str]:
    """Return the features that the machine code needs; empty if it is unreadable, which verification reports."""
    from tfbuild.binary import inspector
    from tfbuild.binary.scan import CodeUnreadable

    try:
        return inspector.wheel(file.path).compiled
    except CodeUnreadable:
        return frozenset()


# --- a build with an existing wheel -----------------------------------------------------------------------------------


def decide_official(request: Request, target: str, platform: str, host: Cpu | None) -> Decision:
    """Plan an image with the wheel from PyPI. Its instruction set is the wheel's, never the host's."""
    arch = PLATFORMS[platform]
    _refuse_compile_options(request)
    named = request.release
    release = find_release(named, newer=True) if named else newest_official(arch, request.python)
    row, known = releases.official_wheel(release, arch), releases.official_pythons(release, arch)
    python = choose_python(request, release, _pythons(release, known))
    if targets.get(target).onednn and not row.onednn:
        wheels = table().official_wheel
        able = (name for name in releases.others(release) for row in releases.rows(wheels, name, arch) if row.onednn)
        raise Unsupported(
            f"the official {arch} wheel of {release} has no oneDNN in it",
            hint=f"--release {next(able)}, or build this one from source: leave out --wheel official",
        )
    compiled = isa.instruction_set(row.features, arch)
    requested = requested_set(request, arch, host)
    _refuse_unfit(compiled, requested_set(request, arch, host, exact=True), request)
    requirement = official_requirement(release, target, arch)
    return Decision(
        release=release,
        python=python,
        target=target,
        platform=platform,
        instruction_set=compiled,
        compiler=releases.wheel_compiler(release).partition(".")[0] if arch == "x86_64" else "",
        copts=tuple(f"--copt={flag}" for flag in row.flags),
        threading="threadpool",
        **gpu_fields(capabilities(request, target, release), cuda_of(request, target, release)),
        wheel=Wheel(
            kind="official",
            requirement=requirement,
            constraints=releases.constraints(release),
            sha256=official_sha256(requirement, python, arch),
        ),
        variant=(*fingerprint(request), *headers_word(request)),
        notes=tuple(_notes(request, release, python, compiled, requested)),
        **image_fields(request, _base_of_wheel(request, python)),
    )


def _base_of_wheel(request: Request, python: str) -> toolchains.BaseImage | None:
    """Return the base for an existing wheel, or None if the user named one."""
    return base_choice.base_for_wheel(python) if request.base in BASES else None


def _pythons(release: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """Return the Pythons that the wheel may be there for: of a newer release, also those that came since `known`."""
    if releases.known(version(release).base_version):
        return known
    return known + tuple(name for name in toolchains.base_pythons() if version(name) > version(known[-1]))


def _notes(
    request: Request, release: str, python: str, compiled: InstructionSet, requested: InstructionSet | None
) -> Iterator[str]:
    """Yield notes on an unknown wheel, a CPU that it is not compiled for, and a default that others do not share."""
    if not releases.known(release):
        older = releases.nearest(release)
        missing = python not in releases.official_pythons(release, compiled.arch)
        more = f"; {older} has none for Python {python}, so that there may be no such wheel" if missing else ""
        yield (
            f"{base_choice.NOT_CERTAIN}this tfbuild does not know the wheel of {release}, expects it to be compiled "
            f"like that of {older}, and takes what the index has, without a digest{more}"
        )
    if requested is not None:
        unused = releases.guard_spelling(release, set(requested.features) - set(compiled.features))
        add = f"; a build from source would add {' '.join(unused)}" if unused else ""
        which = f"--cpu {request.cpu}" if request.cpu else "--cpuinfo"
        yield f"{which} does not apply: the official wheel is compiled for {compiled.name}, whatever the CPU{add}"
    if releases.known(release) and not request.python:
        source = base_choice.first_base(release, releases.pythons(release)[::-1]).python
        if python != source:
            debian = base_choice.base_for_wheel(python).distribution
            yield f"Python {python} is {debian}'s own; builds from source default to Python {source}"


def _refuse_compile_options(request: Request) -> None:
    """Raise UsageError for options of builds from source: they are refused, never ignored."""
    if used := given_to_compile(request):
        raise UsageError(
            f"{', '.join(used)}: only for builds from source; --wheel {request.wheel} compiles nothing",
            hint="leave it out, or leave out --wheel",
        )


def _refuse_unfit(compiled: InstructionSet, requested: InstructionSet | None, request: Request) -> None:
    """Raise Unsupported if the requested CPU cannot run the official wheel."""
    lacking = sorted(set(compiled.features) - set(requested.features)) if requested is not None else []
    if lacking:
        raise Unsupported(
            f"the official wheel is compiled for {compiled.name}; {request.cpu} has no {' '.join(lacking)}",
            hint=f"build it from source for that CPU: leave out --wheel official, keep --cpu {request.cpu}",
        )


def decide_file(request: Request, target: str, platform: str, host: Cpu | None) -> Decision:
    """Plan an image with a wheel file, which must fit by name, tags and contents. Its guard shows the features."""
    _refuse_compile_options(request)
    file, arch = from_path(Path(request.wheel), target), PLATFORMS[platform]
    release = find_release(request.release or file.version, newer=True)
    python = request.python or file.python
    parts = (("release", file.version, release), ("Python", file.python, python), ("architecture", file.arch, arch))
    for part, own, planned in parts:
        if own != planned:
            raise BadInput(
                f"{file.path.name} is for {part} {own}, the plan for {planned}",
                hint=f"leave the option out to take the wheel's own {part}, or give another wheel",
            )
    sha256 = digest(file.path)
    sets = (requested_set(request, arch, host, exact=exact) for exact in (True, False))
    claimed = tuple(dict.fromkeys(claim for claim in sets if claim is not None))
    return Decision(
        release=release,
        python=python,
        target=target,
        platform=platform,
        instruction_set=instruction_set(file, release, claimed=claimed),
        threading=projects()[file.project].threading,
        wheel=Wheel(
            kind="file",
            requirement=file.path.name,
            constraints=releases.constraints(release),
            path=file.path,
            sha256=sha256,
        ),
        variant=(sha256[:8], *fingerprint(request), *headers_word(request)),
        notes=_without_container(file.path, sha256),
        **image_fields(request, _base_of_wheel(request, python)),
    )


def _without_container(path: Path, sha256: str) -> tuple[str, ...]:
    """Return a note on a wheel whose sidecar says that a machine compiled it without a container."""
    try:
        record = decode(read_regular(path.with_name(f"{path.name}.json"), MOST_SIDECAR), CompileRecord)
    except (OSError, ValueError):
        return ()
    if record.sha256 != sha256 or record.host is None:
        return ()
    host = record.host.system
    return (f"{path.name} was compiled on {host} itself, with {record.compiler}: no container pinned its environment",)
