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
    levels = (level.name for level in facts.levels(PLATFORMS[build.platform]) if level.features)
    requests = [replace(request, wheel="official"), *(replace(request, cpu=level) for level in levels)]
    others = {other.id: other for request in requests if (other := _possible(request)) and other.id != build.id}
    order = sorted(others.values(), key=lambda other: (-len(other.instruction_set.features), other.id))
    return tuple(Candidate(id=other.id, features=kernel_names(other.instruction_set.features)) for other in order)


# Builds of one release for other CPUs suggest the same images.
@lru_cache(maxsize=256)
def _possible(request: Request) -> Build | None:
    try:
        return select(request, None)
    except TfbuildError:
        return None
