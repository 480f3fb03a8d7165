"""What a build is compared with: the official wheel's, those for other CPUs, and what was measured of such code."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache, lru_cache

from tfbuild import facts
from tfbuild.cpu import Cpu, isa
from tfbuild.errors import TfbuildError, Unsupported
from tfbuild.facts import Facts, releases
from tfbuild.plan import rules
from tfbuild.plan.build import MACHINES, PLATFORMS, Build
from tfbuild.plan.decision import select
from tfbuild.plan.request import Request
from tfbuild.plan.wheel import newest_official

# No other architecture was measured.
ARCH = "x86_64"

# --- other builds -----------------------------------------------------------------------------------------------------


def official_build(build: Build) -> Build:
    """Return the build of the official wheel with which `build` is compared: itself if it is one.

    Raises Unsupported if there is none.
    """
    if build.wheel.kind == "official":
        return build
    release = build.release
    if not releases.known(release):
        raise Unsupported(f"this tfbuild knows no official wheel of TensorFlow {release}", hint="name a release")
    request = Request(
        release=release, target=build.target, python=build.python, platform=build.platform, wheel="official"
    )
    return select(replace(request, base=build.request.base), None)


def alternatives(build: Build) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the images for other CPUs that the entry point suggests, the largest instruction set first.

    Each is an identifier, and the features that it needs, by their names in /proc/cpuinfo.
    """
    images = _images(build.release, build.target, build.python, build.platform)
    return tuple((name, features) for name, features in images if name != build.id)


# Builds of one release for other CPUs suggest the same images.
@lru_cache(maxsize=2**10)
def _images(release: str, target: str, python: str, platform: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    request = Request(release=release, target=target, python=python, platform=platform)
    levels = (level.name for level in facts.levels(PLATFORMS[platform]) if level.features)
    images = {}
    for other in (replace(request, wheel="official"), *(replace(request, cpu=level) for level in levels)):
        try:
            image = select(other, None)
        except TfbuildError:
            continue
        images[image.id] = image.instruction_set.features
    order = sorted(images.items(), key=lambda image: (-len(image[1]), image[0]))
    return tuple((name, facts.cpuinfo_names(features)) for name, features in order)


def usual(arch: str, release: str = "", compiler: str = "") -> tuple[str, str]:
    """Return the release and compiler of a build from source on that architecture. Raises Unsupported.

    `release`, `compiler`: those that the user names.
    """
    if release:
        release = rules.find_release(release)
    else:
        release = select(Request(platform=MACHINES[arch], cpu=facts.levels(arch)[0].name), None).release
    if compiler:
        return release, rules.named_compiler(compiler, release)
    return release, rules.first_base(release, releases.pythons(release)[::-1])[1]


def unused_by_official_wheel(cpu: Cpu) -> tuple[str, ...]:
    """Return the features that TensorFlow reports at start: in the CPU, known to its guard, not used by the wheel.

    In TensorFlow's names and order, for the newest release that has an official wheel for this architecture.
    """
    release = newest_official(cpu.arch)
    compiled = facts.closure(releases.official_wheel(release, cpu.arch).features)
    return releases.guard_spelling(release, set(cpu.features) - compiled)


# --- what was measured ------------------------------------------------------------------------------------------------


class OperationRow(Facts, frozen=True):
    """One operation: its ratio, with the lower and the upper end of its interval."""

    name: str
    ratio: tuple[float, float, float]


class Gain(Facts, frozen=True):
    """What was measured of code for one instruction set; see facts/gains.toml."""

    cpu: str
    wheel: str
    over: str
    machine: str
    report: str = ""
    speed: float = 0.0
    faster: tuple[OperationRow, ...] = ()
    slower: tuple[OperationRow, ...] = ()
    equal: tuple[OperationRow, ...] = ()

    @property
    def title(self) -> str:
        """Say what was compared, and where."""
        return f"{self.wheel}, by CPU time, relative to {self.over}, on {self.machine}"

    @property
    def relative_speed(self) -> float:
        """Return the speed relative to code for AVX, as the official wheels are: above 1 is faster."""
        from statistics import geometric_mean

        operations = (*self.faster, *self.slower, *self.equal)
        return self.speed or round(geometric_mean(row.ratio[0] for row in operations), 2)


class MeasuredGain(Facts, frozen=True, kw_only=True):
    """The answer for one CPU. `compile`: what a compile takes.

    `report` is None if no code was measured that this CPU can run.
    """

    cpu: str
    instruction_set: str
    release: str
    wheel: str
    unused: tuple[str, ...]
    compile: str
    report: Gain | None


def measured_gains() -> tuple[Gain, ...]:
    """Return all that was measured, on ARCH alone."""
    return facts.rows("gains", Gain)


@cache
def _features(cpu: str) -> frozenset[str]:
    return frozenset(isa.resolve(cpu, arch=ARCH).features)


def _within(features: frozenset[str], arch: str) -> Iterator[Gain]:
    """Yield what was measured of code that needs no more than these features."""
    yield from (row for row in measured_gains() if arch == ARCH and _features(row.cpu) <= features)


def measured_operations(compiled: isa.InstructionSet) -> Gain | None:
    """Return the first measurement of single operations for code that this set can run; None if there is none."""
    return next((row for row in _within(frozenset(compiled.features), compiled.arch) if row.report), None)


def relative_speed(features: frozenset[str], arch: str) -> float | None:
    """Estimate the speed of code for these features: that of the fastest measured code that needs no others.

    1.13 means 13 % faster than the official wheels, which are compiled for AVX. None if no such code was measured.
    """
    return max((row.relative_speed for row in _within(features, arch)), default=None)


def gain(cpu: Cpu) -> MeasuredGain:
    """Return what was measured of code that this CPU runs and the newest official wheel does not have."""
    own, release = isa.of_cpu(cpu), newest_official(cpu.arch)
    wheel = isa.instruction_set(releases.official_wheel(release, cpu.arch).features, cpu.arch)
    return MeasuredGain(
        cpu=cpu.model,
        instruction_set=own.name,
        release=release,
        wheel=wheel.name,
        unused=unused_by_official_wheel(cpu),
        compile=releases.compile_cost(release).described,
        report=measured_operations(own),
    )
