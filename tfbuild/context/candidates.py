"""The images that an entry point suggests to a machine that cannot run its own."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from tfbuild import facts
from tfbuild.context.planned import Planned
from tfbuild.errors import TfbuildError
from tfbuild.plan import PLATFORMS, Build, Request, select


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """An image for a CPU with these features (in the kernel's names), to suggest instead."""

    id: str
    features: tuple[str, ...]


def kernel_names(features: Iterable[str]) -> tuple[str, ...]:
    """Return the names in /proc/cpuinfo, sorted; a feature that no kernel prints cannot be checked."""
    return tuple(sorted(name for name in (facts.feature(feature).cpuinfo for feature in features) if name))


def candidates(build: Planned | Build) -> tuple[Candidate, ...]:
    """Return images of the same release, target and Python for other instruction sets, the largest first."""
    request = Request(release=build.release, target=build.target, python=build.python, platform=build.platform)
    return tuple(image for image in _images(request) if image.id != build.id)


# Builds of one release for other CPUs suggest the same images.
@lru_cache(maxsize=2**10)
def _images(request: Request) -> tuple[Candidate, ...]:
    levels = (level.name for level in facts.levels(PLATFORMS[request.platform]) if level.features)
    requests = [replace(request, wheel="official"), *(replace(request, cpu=level) for level in levels)]
    builds = {build.id: build for each in requests if (build := _possible(each))}
    order = sorted(builds.values(), key=lambda build: (-len(build.instruction_set.features), build.id))
    return tuple(Candidate(id=build.id, features=kernel_names(build.instruction_set.features)) for build in order)


def _possible(request: Request) -> Build | None:
    try:
        return select(request, None)
    except TfbuildError:
        return None
