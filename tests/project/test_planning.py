"""The benchmark of planning: what it walks over, and that planning and rendering keep nothing of a build."""

import gc
import tracemalloc
from dataclasses import replace

import pytest

from benchmarks import planning
from tfbuild.facts import releases, targets


def test_the_benchmark_plans_every_release_for_every_target_and_renders_most() -> None:
    asked = planning.requests()
    assert {(row.release, row.target) for row in asked} == {
        (release.version, target) for release in releases.releases() for target in targets.names()
    }
    assert {row.platform for row in asked} == {"linux/amd64", "linux/arm64"}
    some = asked[::50]
    assert len(some) * 3 / 4 < planning.render(some) <= len(some)


@pytest.mark.nightly
def test_memory_does_not_grow_with_the_number_of_builds() -> None:
    """Each pass renders builds that no pass had: whatever is kept for one of them would add up."""
    some = planning.requests()[::50]

    def rendered(number: int) -> int:
        assert planning.render([replace(row, bazel_flag=(f"--copt=-DPASS={number}",)) for row in some])
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    planning.render(some)
    tracemalloc.start()
    try:
        rendered(1)  # what is kept of the releases themselves
        before = rendered(2)
        growth = rendered(3) - before
    finally:
        tracemalloc.stop()
    assert growth < 1000 * len(some), "a plan and its files have tens of kilobytes"
