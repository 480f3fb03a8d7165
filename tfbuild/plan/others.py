"""What a build is compared with: the official wheel's, and those for other CPUs."""

from dataclasses import replace
from functools import lru_cache

from tfbuild import facts
from tfbuild.cpu import Cpu
from tfbuild.errors import TfbuildError, Unsupported
from tfbuild.facts import releases
from tfbuild.plan import rules
from tfbuild.plan.build import MACHINES, PLATFORMS, Build
from tfbuild.plan.decision import select
from tfbuild.plan.request import Request
from tfbuild.plan.wheel import newest_official


def official_build(build: Build, *, nearest: bool = False) -> Build:
    """Return the build of the official wheel of its release, or of the `nearest`: itself if it is one.

    Raises Unsupported if there is none.
    """
    if build.wheel.kind == "official":
        return build
    release = releases.nearest_wheel(build.release) if nearest else build.release
    if not (release if nearest else releases.known(release)):
        raise Unsupported(f"this tfbuild knows no official wheel of TensorFlow {build.release}", hint="name a release")
    has_wheel = build.python in releases.official_pythons(release, PLATFORMS[build.platform])
    python = build.python if has_wheel or not nearest else ""
    request = Request(release=release, target=build.target, python=python, platform=build.platform, wheel="official")
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
    # PyPI may not have the wheel of a release that is not known.
    official = [replace(request, wheel="official")] if releases.known(release) else []
    images = {}
    for other in (*official, *(replace(request, cpu=level) for level in levels)):
        try:
            image = select(other, None)
        except TfbuildError:
            continue
        images[image.id] = image.instruction_set.features
    order = sorted(images.items(), key=lambda image: (-len(image[1]), image[0]))
    return tuple((name, facts.cpuinfo_names(features)) for name, features in order)


def usual(arch: str, release: str = "", compiler: str = "") -> tuple[str, str]:
    """Return the release and compiler of a build from source, by default or as named. Raises Unsupported."""
    newest = Request(platform=MACHINES[arch], cpu=facts.levels(arch)[0].name)
    release = rules.find_release(release) if release else select(newest, None).release
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
