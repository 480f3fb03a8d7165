"""Select rows for CI: every combination that can be planned, in a stable order, and the machine that runs each."""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from packaging.version import Version

from tfbuild import facts, plan
from tfbuild.cpu import detect, isa
from tfbuild.errors import TfbuildError, UsageError
from tfbuild.facts import Facts, releases, targets, toolchains
from tfbuild.pipeline.maker import needed_disk
from tfbuild.plan import Build, Request
from tfbuild.util.quantities import counted

WHEELS = ("official", "source")
# A build, and the label of the machine that runs it, "" outside CI.
Row = tuple[Build, str]


class Platform(Facts, frozen=True):
    name: str
    cpus: tuple[str, ...]


class System(Facts, frozen=True):
    """A CI system: the most `jobs` of one matrix, and the most `bytes` of its text."""

    name: str
    jobs: int
    bytes: int
    encoding: str


class Runner(Facts, frozen=True, kw_only=True):
    """A machine that a CI system offers to everybody.

    `cpu`: the level that all of them have. Gigabytes: `disk`, and `removable`, which software takes that the workflow
    removes before a compile.
    """

    system: str
    platform: str
    label: str
    cpu: str
    disk: int
    removable: int = 0

    def holds(self, build: Build) -> bool:
        """Whether it is of the build's platform, can run its image, and has the disk for it."""
        if self.platform != build.platform:
            return False
        own = isa.resolve(self.cpu, arch=plan.PLATFORMS[self.platform]).features
        room = self.disk + (self.removable if build.wheel.kind == "source" else 0)
        return set(build.instruction_set.features) <= set(own) and room * 10**9 >= needed_disk(build)


class MatrixTable(Facts, frozen=True):
    platform: tuple[Platform, ...]
    system: tuple[System, ...]
    runner: tuple[Runner, ...]


matrix_table = partial(facts.load, "matrix", MatrixTable)


@dataclass(frozen=True, kw_only=True)
class MatrixRequest:
    """The values to combine; an empty field means the defaults. `only`: globs, one of which an identifier must match.

    `images`: the platform and instruction set of each of a fleet's images, built from source. They replace the product
    of `wheels`, `platforms` and `cpus`. `builds`: a list in place of all combinations, which must be planned as it is.
    """

    releases: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    cpus: tuple[str, ...] = ()
    pythons: tuple[str, ...] = ()
    platforms: tuple[str, ...] = ()
    wheels: tuple[str, ...] = ()
    images: tuple[tuple[str, str], ...] = ()
    builds: tuple[Request, ...] = ()
    only: tuple[str, ...] = ()


def select_builds(request: MatrixRequest) -> tuple[list[Build], Counter[str]]:
    """Return all combinations that can be planned, and the reasons for which others cannot, with their numbers.

    Builds are sorted by release (oldest first), target, Python, platform and identifier; each identifier is there once.
    Raises UsageError if a value is unknown, or no build is left; what `isa.resolve` raises for an unknown CPU.
    """
    if unknown := next((wheel for wheel in request.wheels if wheel not in WHEELS), None):
        raise UsageError(f"unknown wheel {unknown!r}", hint=f"one of: {', '.join(WHEELS)}")
    for cpu in request.cpus:  # an unknown one would only leave its rows out
        isa.resolve(cpu, arch=plan.PLATFORMS[plan.choose_platform(Request(cpu=cpu))])
    builds: dict[str, Build] = {}
    refused: Counter[str] = Counter()
    for combination in request.builds or _combinations(request):
        try:
            build = plan.select(combination, detect(Path(combination.cpuinfo)) if combination.cpuinfo else None)
        except TfbuildError as error:
            if request.builds:
                error.reason = f"build {request.builds.index(combination) + 1} of the list: {error.reason}"
            if request.builds or isinstance(error, UsageError):
                raise
            refused[error.reason] += 1
        else:
            if _outside(builds.setdefault(build.id, build)) != _outside(build):
                raise UsageError(
                    f"two builds of the list are both called {build.id}: they differ in source, Bazel or base",
                    hint="list one of them in another file",
                )
    globs = request.only or ("*",)
    kept = [build for build in builds.values() if any(fnmatchcase(build.id, glob) for glob in globs)]
    if not kept:
        reason = (
            f"--only {' '.join(request.only)} matches none of {len(builds)} rows" if builds else next(iter(refused))
        )
        raise UsageError(f"the matrix is empty: {reason}", hint="invoke matrix --format json lists all rows")
    kept.sort(key=lambda row: (Version(row.release), row.target, Version(row.python), row.platform, row.id))
    return kept, refused


def _outside(build: Build) -> tuple[object, ...]:
    """Return what an identifier does not tell apart."""
    return build.source and build.source.path, build.own_bazel, build.base_image


def _combinations(request: MatrixRequest) -> Iterator[Request]:
    names, kinds = request.targets or targets.matrix_targets(), _kinds(request)
    for target, release, kind in itertools.product(names, request.releases or ("",), kinds):
        combination = replace(kind, target=target, release=release)
        yield from (replace(combination, python=python) for python in request.pythons or _pythons(combination))


def _kinds(request: MatrixRequest) -> Iterator[Request]:
    """Yield each platform with the official wheel, and with each CPU."""
    if request.images:
        yield from (Request(platform=platform, cpu=cpu) for platform, cpu in request.images)
        return
    platforms = {plan.choose_platform(Request(platform=name)) for name in request.platforms}
    wheels = request.wheels or WHEELS
    if request.cpus and "source" not in wheels:
        raise UsageError("--cpu is for builds from source, and none is requested", hint="--wheel source")
    for platform in matrix_table().platform:
        if platforms and platform.name not in platforms:
            continue
        if "official" in wheels:
            yield Request(platform=platform.name, wheel="official")
        if "source" in wheels:
            yield from (Request(platform=platform.name, cpu=cpu) for cpu in request.cpus or platform.cpus)


def _pythons(request: Request) -> Sequence[str]:
    """Return the Pythons of the release that have a base image; "" (the plan chooses) if there is none."""
    try:
        build = plan.select(request, None)
        arch = plan.PLATFORMS[build.platform]
        official = request.wheel == "official"
        able = releases.official_pythons(build.release, arch) if official else releases.pythons(build.release)
    except TfbuildError:
        return ("",)
    return [python for python in toolchains.base_pythons() if python in able] or ("",)


# --- machines ---------------------------------------------------------------------------------------------------------


def schedule(builds: Sequence[Build], system: str, own: Sequence[str]) -> tuple[list[Row], list[str]]:
    """Return the builds with the machines of a CI system, and notes on those that none can hold.

    Of the hosted machines, a compile gets the largest, since its time is limited, and any other build the smallest.
    `own`: the user's machines, as WHEEL[:PLATFORM]=LABEL. Raises UsageError if no build is left.
    """
    labels = dict(map(_own_label, own))
    if len(labels) < len(own):
        raise UsageError(f"--runner {' '.join(own)}: two labels for the same rows", hint="leave out one of them")
    hosted = [row for row in matrix_table().runner if row.system == system]
    rows: list[Row] = []
    without: Counter[tuple[str, str, int]] = Counter()
    for build in builds:
        kind, platform = build.wheel.kind, build.platform
        able = [row.label for row in hosted if row.holds(build)] or [""]
        machine = able[-1 if kind == "source" else 0]
        if label := labels.get((kind, platform)) or labels.get((kind, "")) or machine:
            rows.append((build, label))
        else:
            without[kind, platform, needed_disk(build)] += 1
    notes = [
        f"{counted(count, 'row')} left out: no {platform} runner hosted by {system} is known to have the "
        f"{need / 10**9:.0f} GB and the CPU that --wheel {kind} needs; name one: --runner {kind}:{platform}=LABEL"
        for (kind, platform, need), count in sorted(without.items())
    ]
    if not rows:
        raise UsageError(f"the matrix is empty: {notes[0]}", hint="docs/ci.md says which runners fit")
    return rows, notes


def _own_label(option: str) -> tuple[tuple[str, str], str]:
    """Return a label by wheel and platform ("" for any). Raises UsageError if an option cannot be parsed."""
    kind, _, label = option.partition("=")
    wheel, _, platform = kind.partition(":")
    # A list in a file may have the file of a wheel, too.
    if wheel not in (*WHEELS, "file") or not label or (platform and platform not in plan.PLATFORMS):
        raise UsageError(
            f"--runner {option!r} is not WHEEL[:PLATFORM]=LABEL",
            hint="--runner source=LABEL, or --runner source:linux/arm64=LABEL",
        )
    return (wheel, platform), label
