"""How many builds are planned and rendered in a second of CPU time, and how much memory that leaves behind.

    .venv/bin/python -m benchmarks.planning

Plans and renders every release for every target and the levels of each platform, three times in one process. The first
pass also plans the images that entry points suggest, which the process keeps for the next builds. The target is 1,000
builds a second, and as much memory after the third pass as after the first.

CPU time depends on what else the cores do: on a machine that is busy, the same work takes more of it.
"""

import resource
import time
from itertools import product

from benchmarks.harness import record
from tfbuild.ci import matrix
from tfbuild.context import dockerfile
from tfbuild.errors import TfbuildError
from tfbuild.facts import releases, targets
from tfbuild.plan import Request, select

PASSES = 3


def requests() -> list[Request]:
    """Return every release for every target and the levels that a matrix has of each platform."""
    machines = [(platform.name, cpu) for platform in matrix.table().platform for cpu in platform.cpus]
    rows = product(releases.releases(), targets.names(), machines)
    return [
        Request(release=release.version, target=target, platform=platform, cpu=cpu)
        for release, target, (platform, cpu) in rows
    ]


def render(asked: list[Request]) -> int:
    """Plan and render each of them; return how many are not refused."""
    count = 0
    for request in asked:
        try:
            build = select(request, None)
        except TfbuildError:
            continue
        dockerfile.files(build)
        count += 1
    return count


def peak() -> float:
    """Return the most memory that this process has had, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    asked = requests()
    passes: list[dict[str, float]] = []
    for number in range(1, PASSES + 1):
        start = time.process_time()
        count = render(asked)
        seconds = time.process_time() - start
        passes.append({"builds": count, "seconds": seconds, "a_second": count / seconds, "peak_mib": peak()})
        print(f"pass {number}: {count} builds, {count / seconds:.0f} a second of CPU time, {peak():.1f} MiB")
    first, *again = (one["a_second"] for one in passes)
    growth = passes[-1]["peak_mib"] - passes[0]["peak_mib"]
    summary = {"first": first, "slowest_again": min(again), "fastest_again": max(again), "growth_mib": growth}
    record("planning", {"passes": passes, **summary})


if __name__ == "__main__":
    main()
