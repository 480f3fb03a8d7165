"""The wheel that goes into an image: the official one, a file, or what a build from source will make.

A file is read, never installed or executed. Its name, version, Python, platform and the CPU guard inside it must fit
the plan before anything starts.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from tfbuild import facts
from tfbuild.cpu import Cpu, isa
from tfbuild.cpu.isa import InstructionSet
from tfbuild.errors import BadInput, Unsupported, UsageError
from tfbuild.facts import Facts, releases, targets, toolchains
from tfbuild.facts import guard as guards
from tfbuild.plan import base_choice
from tfbuild.plan.build import PLATFORMS, Decision, Wheel
from tfbuild.plan.cuda import capabilities, cuda_of, gpu_fields
from tfbuild.plan.request import BASES, Request
from tfbuild.plan.rules import asked_set, choose_python, find_release, image_fields, variant_of_wheel
from tfbuild.util.options import given_to_compile

# The values of --wheel that are not a file.
KINDS = ("official", "source")
ARCHES = ("x86_64", "aarch64")
# A wheel's name goes into Dockerfiles and shell commands, and packaging allows any text in its tags.
SAFE = re.compile(r"[A-Za-z0-9_.+-]+")
LINUX = re.compile(r"manylinux|linux_")
CPYTHON = re.compile(r"cp3(\d+)")
# What people name in place of a file: a requirement of pip's, and an address, of which a path keeps one slash.
REQUIREMENT = re.compile(r"(?:tensorflow|tf)(?:[-_]cpu)?==([\d.]+)")
ADDRESS = re.compile(r"(https?:)/(.+)")
# TensorFlow's framework library has 20 to 70 MB; ten times that is not TensorFlow's.
MOST_BYTES = 700 * 1024 * 1024


class WheelName(Facts, frozen=True):
    name: str
    targets: tuple[str, ...]
    threading: str = ""


class WheelNameTable(Facts, frozen=True):
    name: tuple[WheelName, ...]


@dataclass(frozen=True, kw_only=True)
class WheelFile:
    """The parts of a wheel's file name: the normalised project, version, Python ("3.11") and architecture."""

    path: Path
    project: str
    version: str
    python: str
    arch: str


def official_wheel(requirement: str, constraints: tuple[str, ...], *, python: str, arch: str) -> Wheel:
    """Return the wheel on PyPI with its sha256 there, "" where the facts do not have it yet."""
    sha256 = releases.wheel_digests().get(requirement, {}).get(f"{python} {arch}", "")
    return Wheel(kind="official", requirement=requirement, constraints=constraints, sha256=sha256)


def source_wheel(constraints: tuple[str, ...]) -> Wheel:
    return Wheel(kind="source", requirement="", constraints=constraints)


def file_wheel(file: WheelFile, constraints: tuple[str, ...]) -> Wheel:
    """Return the wheel file with its sha256, which represents it in the build's key."""
    import hashlib

    with file.path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return Wheel(kind="file", requirement=file.path.name, constraints=constraints, path=file.path, sha256=digest)


def read_name(path: Path, target: str = "") -> WheelFile:
    """Read the file name of a TensorFlow wheel for Linux (and for `target`); raises BadInput if it is not one."""
    if not os.path.isfile(path):  # false for a name that is too long, too
        from difflib import get_close_matches

        near = get_close_matches(str(path).lower(), KINDS, n=1)
        hint = f"--wheel {near[0]}" if near else "--wheel takes `official` or the path of a .whl file"
        if match := REQUIREMENT.fullmatch(str(path).lower()):
            hint = f"--wheel official --release {match[1]}"
        if match := ADDRESS.match(str(path)):
            raise BadInput(f"--wheel takes no address: {match[1]}//{match[2]}", hint="download it, and name the file")
        raise BadInput(f"no wheel at {path}", hint=hint)
    return named(path, target)


def named(path: Path, target: str = "") -> WheelFile:
    """Read the name of a wheel, which need not exist, as `read_name` does."""
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    try:
        if not SAFE.fullmatch(path.name):
            raise InvalidWheelFilename(path.name)
        project, version, _, tags = parse_wheel_filename(path.name)
    except InvalidWheelFilename as error:
        raise BadInput(
            f"{path.name} is not a wheel's name", hint="do not rename wheels: their name holds their tags"
        ) from error
    rows = facts.load("wheels", WheelNameTable).name
    known = [row.name for row in rows]
    if project not in known:
        raise BadInput(f"{path.name} is {project}, not a TensorFlow wheel", hint=f"one of: {', '.join(known)}")
    pythons = {match[1] for tag in tags if (match := CPYTHON.fullmatch(tag.interpreter))}
    targets = next(row.targets for row in rows if row.name == project)
    if target and target not in targets:
        raise BadInput(f"{path.name} is {project}, which is not for {target}", hint=f"--target {' or '.join(targets)}")
    arches = {arch for tag in tags for arch in ARCHES if LINUX.match(tag.platform) and tag.platform.endswith(arch)}
    if len(pythons) != 1 or len(arches) != 1:
        raise BadInput(f"{path.name} is not for CPython on Linux", hint="its tags must be cp3X and manylinux or linux")
    return WheelFile(
        path=path,
        project=project,
        version=releases.release_of_wheel(version),
        python=f"3.{pythons.pop()}",
        arch=arches.pop(),
    )


def refuse_misfit(file: WheelFile, *, release: str, python: str, arch: str) -> None:
    """Raise BadInput if the file's name contradicts the plan."""
    parts = (("release", file.version, release), ("Python", file.python, python), ("architecture", file.arch, arch))
    for part, own, planned in parts:
        if own != planned:
            raise BadInput(
                f"{file.path.name} is for {part} {own}, the plan for {planned}",
                hint=f"leave the option out to take the wheel's own {part}, or give another wheel",
            )


def instruction_set(file: WheelFile, release: str, *, claimed: Sequence[InstructionSet]) -> InstructionSet:
    """Return what the wheel was compiled for, according to the CPU guard inside it.

    The guard knows a dozen features (AVX512F, but none of its subsets); the machine code tells the others. `claimed`:
    what --cpu stands for, the widest set first. They may have more features than the guard knows; the first that
    agrees with it on those that it knows is returned. Raises BadInput if none does.
    """
    compiled = _guard(file, release)
    if not claimed:
        return isa.instruction_set(_rounded(compiled | _code(file), file.arch), file.arch)
    known = guards.guard_features(release)
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
    from tfbuild.util import files

    with inspector.opened(file.path) as archive, files.temporary_folder() as folder:
        package = releases.package(release)
        library = f"{package.folder}/{package.framework}"
        if library not in archive.namelist():
            raise BadInput(f"{file.path.name} has no {library} in it", hint="this is not a TensorFlow wheel for Linux")
        if archive.getinfo(library).file_size > MOST_BYTES:
            raise BadInput(f"{file.path.name}: {library} is too large to be TensorFlow's")
        return guard.compiled_features(Path(archive.extract(library, folder)), release)


def projects() -> tuple[str, ...]:
    """Return the names of TensorFlow's wheels."""
    return tuple(row.name for row in facts.load("wheels", WheelNameTable).name)


def _rounded(held: frozenset[str], arch: str) -> frozenset[str]:
    """Return the x86-64 level with these features if its others never show in machine code (cx16), else `held`."""
    from tfbuild.binary import scan

    levels = (level.features for level in facts.levels(arch) if arch == "x86_64")
    level = next((features for features in levels if held <= features), held)
    return held if (level - isa.closure(held)) & scan.written() else level


def _code(file: WheelFile) -> frozenset[str]:
    """Return the features that the machine code needs; empty if it is unreadable, which verification reports."""
    from tfbuild.binary import inspector
    from tfbuild.binary.scan import CodeUnreadable

    try:
        return inspector.wheel(file.path).compiled
    except CodeUnreadable:
        return frozenset()


def threading(file: WheelFile) -> str:
    """Return "openmp" or "threadpool" if the project's name determines it, else ""."""
    return next(row.threading for row in facts.load("wheels", WheelNameTable).name if row.name == file.project)


# --- a build with an existing wheel -----------------------------------------------------------------------------------


def decide_official(request: Request, target: str, platform: str, host: Cpu | None) -> Decision:
    """Plan an image with the wheel from PyPI. Its instruction set is the wheel's, never the host's."""
    arch = PLATFORMS[platform]
    refuse_compile_options(request)
    release = _official_release(request, arch)
    row = releases.official_wheel(release, arch)
    python = choose_python(request, release, _pythons(release, row.pythons))
    if targets.get(target).onednn and not row.onednn:
        raise Unsupported(
            f"the official {arch} wheel of {release} has no oneDNN in it",
            hint="take a newer release, or build this one from source: leave out --wheel official",
        )
    compiled = isa.instruction_set(row.features, arch)
    requested = asked_set(request, arch, host)
    refuse_unfit(compiled, asked_set(request, arch, host, exact=True), request)
    return Decision(
        release=release,
        python=python,
        target=target,
        platform=platform,
        instruction_set=compiled,
        compiler=row.compiler,
        copts=tuple(f"--copt={flag}" for flag in row.flags),
        threading="threadpool",
        **gpu_fields(capabilities(request, target, release), cuda_of(request, target, release)),
        wheel=official_wheel(row.requirement(release, target), releases.constraints(release), python=python, arch=arch),
        variant=variant_of_wheel(request),
        notes=(
            *_unknown_wheel(release, "" if python in row.pythons else python),
            *_about_the_wheel(compiled, requested, release, request.cpu),
            *_about_python(request, release, python),
        ),
        **image_fields(request, _base_of_wheel(request, python)),
    )


def _official_release(request: Request, arch: str) -> str:
    if request.release:
        return find_release(request.release, newer=True)
    return releases.newest_official(arch, request.python or toolchains.default_base().python)


def _base_of_wheel(request: Request, python: str) -> toolchains.BaseImage | None:
    """Return the base for an existing wheel, or None if the user named one."""
    return base_choice.for_wheel(python) if request.base in BASES else None


def _pythons(release: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """Return the Pythons that the wheel may be there for: of a newer release, also those that came since `known`."""
    if releases.known(Version(release).base_version):
        return known
    return known + tuple(name for name in toolchains.base_pythons() if Version(name) > Version(known[-1]))


def _unknown_wheel(release: str, python: str) -> tuple[str, ...]:
    """Return a note if the facts do not have the release; `python`: one that the release before it has no wheel for."""
    if releases.known(release):
        return ()
    older = releases.nearest(release)
    more = f"; {older} has none for Python {python}, so that there may be no such wheel" if python else ""
    return (
        f"{base_choice.NOT_CERTAIN}this tfbuild does not know the wheel of {release}, expects it to be compiled like "
        f"that of {older}, and takes what the index has, without a digest{more}",
    )


def _about_the_wheel(
    compiled: InstructionSet, wanted: InstructionSet | None, release: str, cpu: str
) -> tuple[str, ...]:
    """Return a note on what --cpu does not change, and on what a build from source would add for that CPU."""
    if wanted is None:
        return ()
    unused = releases.guard_spelling(release, set(wanted.features) - set(compiled.features))
    add = f"; a build from source would add {' '.join(unused)}" if unused else ""
    which = f"--cpu {cpu}" if cpu else "--cpuinfo"
    return (f"{which} does not apply: the official wheel is compiled for {compiled.name}, whatever the CPU{add}",)


def _about_python(request: Request, release: str, python: str) -> tuple[str, ...]:
    """Return a note if the Python is a default that builds from source do not share."""
    if not releases.known(release):
        return ()
    source = base_choice.first_base(release, releases.pythons(release)[::-1]).python
    if request.python or python == source:
        return ()
    debian = base_choice.for_wheel(python).distribution
    return (f"Python {python} is {debian}'s own; builds from source default to Python {source}",)


def refuse_compile_options(request: Request) -> None:
    """Raise UsageError for options of builds from source: they are refused, never ignored."""
    if used := given_to_compile(request):
        raise UsageError(
            f"{', '.join(used)}: only for builds from source; --wheel {request.wheel} compiles nothing",
            hint="leave it out, or leave out --wheel",
        )


def refuse_unfit(compiled: InstructionSet, requested: InstructionSet | None, request: Request) -> None:
    """Raise Unsupported if the requested CPU cannot run the official wheel."""
    lacking = sorted(set(compiled.features) - set(requested.features)) if requested is not None else []
    if lacking:
        raise Unsupported(
            f"the official wheel is compiled for {compiled.name}; {request.cpu} has no {' '.join(lacking)}",
            hint=f"build it from source for that CPU: leave out --wheel official, keep --cpu {request.cpu}",
        )


def decide_file(request: Request, target: str, platform: str, host: Cpu | None) -> Decision:
    """Plan an image with a wheel file, which must fit by name, tags and contents. Its guard tells the features."""
    refuse_compile_options(request)
    file = read_name(Path(request.wheel), target)
    release = find_release(request.release or file.version, newer=True)
    python = request.python or file.python
    refuse_misfit(file, release=release, python=python, arch=PLATFORMS[platform])
    wheel = file_wheel(file, releases.constraints(release))
    sets = (asked_set(request, PLATFORMS[platform], host, exact=exact) for exact in (True, False))
    claimed = tuple(dict.fromkeys(asked for asked in sets if asked is not None))
    compiled = instruction_set(file, release, claimed=claimed)
    return Decision(
        release=release,
        python=python,
        target=target,
        platform=platform,
        instruction_set=compiled,
        threading=threading(file),
        wheel=wheel,
        variant=(wheel.sha256[:8], *variant_of_wheel(request)),
        **image_fields(request, _base_of_wheel(request, python)),
    )
