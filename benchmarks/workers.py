"""How long a compile would take on 1 to 1,000 workers, and what ends that: a simulation of its actions.

    bazel aquery --output=jsonproto --noinclude_commandline 'deps(TARGET)' > actions.json
    .venv/bin/python -m benchmarks.workers --actions actions.json --profile profile.json.gz [--disk-cache FOLDER]

`--actions` says which action needs which, `--profile` (of each run that the compile took) and `--disk-cache` (Bazel's)
say how long each took, on that machine and beside whatever else it did. Run this there: the report names the machine.

Each worker runs one action at a time. Whenever one is free, it takes the action that has been ready longest, much as
Bazel does (`ready first`), or the one with the longest path to the end (`longest first`), which shows what a better
order could gain. What Bazel does itself (symbolic links, files, templates) or may not send away happens on the client
as soon as it is ready, and keeps no worker busy. `--overhead` is added to each action that a worker runs, for sending
its inputs and outputs. `--packing` (`stages.packing.seconds` in build/ID/sittings.jsonl) comes after all actions.

`parallelism` is the workers' seconds over those of the critical path: fewer workers cannot reach its length in any
order, more gain little.

`--report` writes benchmarks/results/workers.json.
"""

import argparse
import heapq
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.action_graph import Action, Times, durations, read_cache, read_graph, read_profile
from benchmarks.harness import record
from tfbuild.errors import TfbuildError, UsageError

WORKERS = (1, 2, 4, 10, 100, 1000)
TARGET = "//tensorflow/tools/pip_package:build_pip_package"
LONGEST = 10
# Upper ends in seconds.
BUCKETS = (0.1, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
LINKS = {"CppLink", "CppArchive"}


@dataclass(frozen=True, kw_only=True)
class Work:
    """`seconds`, `client` (no worker runs it) and `needs` of each task. Raises UsageError if one needs itself."""

    seconds: tuple[float, ...]
    client: tuple[bool, ...]
    needs: tuple[tuple[int, ...], ...]

    @cached_property
    def users(self) -> tuple[tuple[int, ...], ...]:
        """The tasks that need each task."""
        users: list[list[int]] = [[] for _ in self.needs]
        for task, needs in enumerate(self.needs):
            for need in needs:
                users[need].append(task)
        return tuple(map(tuple, users))

    @cached_property
    def order(self) -> tuple[int, ...]:
        """All tasks, each after what it needs."""
        waits = [len(needs) for needs in self.needs]
        order = [task for task, number in enumerate(waits) if not number]
        for task in order:
            for user in self.users[task]:
                waits[user] -= 1
                if not waits[user]:
                    order.append(user)
        if len(order) < len(waits):
            raise UsageError("the action graph is damaged: some actions need themselves")
        return tuple(order)

    @property
    def total(self) -> float:
        """The seconds of all that workers run."""
        return sum(seconds for seconds, client in zip(self.seconds, self.client, strict=True) if not client)

    def tails(self, weights: Sequence[float]) -> list[float]:
        """Return the weight of the heaviest path from each task's begin to the end of the compile."""
        tails = list(weights)
        for task in reversed(self.order):
            tails[task] += max((tails[user] for user in self.users[task]), default=0)
        return tails

    def critical_path(self) -> list[int]:
        """Return the tasks of the longest path, in their order."""
        tails = self.tails(self.seconds)
        path, following = [], [task for task, needs in enumerate(self.needs) if not needs]
        while following:
            path.append(max(following, key=tails.__getitem__))
            following = list(self.users[path[-1]])
        return path


def makespan(work: Work, workers: int, tails: Sequence[float] = ()) -> float:
    """Return the seconds until all is done; with `tails`, the task with the longest one comes first."""
    waits = [len(needs) for needs in work.needs]
    ready: list[tuple[float, int, int]] = []
    running: list[tuple[float, int]] = []
    turn, now = count(), 0.0

    def release(task: int) -> None:
        if work.client[task]:
            heapq.heappush(running, (now + work.seconds[task], task))
        else:
            heapq.heappush(ready, (-tails[task] if tails else 0.0, next(turn), task))

    for task in work.order:
        if not waits[task]:
            release(task)
    while running or ready:
        while ready and workers:
            task = heapq.heappop(ready)[-1]
            workers -= 1
            heapq.heappush(running, (now + work.seconds[task], task))
        now = running[0][0]
        while running and running[0][0] <= now:
            task = heapq.heappop(running)[1]
            workers += not work.client[task]
            for user in work.users[task]:
                waits[user] -= 1
                if not waits[user]:
                    release(user)
    return now


def schedules(work: Work) -> dict[str, dict[str, dict[str, float]]]:
    """Return what each number of workers gives, in both orders."""
    orders = {"ready first": [], "longest first": work.tails(work.seconds)}
    return {name: {str(number): schedule(work, number, tails) for number in WORKERS} for name, tails in orders.items()}


def schedule(work: Work, workers: int, tails: Sequence[float]) -> dict[str, float]:
    one, seconds = (makespan(work, number, tails) for number in (1, workers))
    speedup = one / seconds if seconds else 1.0
    return {
        "seconds": round(seconds, 1),
        "speedup": round(speedup, 2),
        "efficiency": round(speedup / workers, 3),
        "busy": round(work.total / seconds / workers, 3) if seconds else 0.0,
    }


def summary(work: Work, actions: Sequence[Action], times: Times, overhead: float, packing: float) -> dict[str, object]:
    """Return the report: counts and sums, and the longest actions of the critical path by name."""
    path = [task for task in work.critical_path() if task < len(actions)]
    critical = sum(work.seconds[task] for task in path)
    longest = sorted(path, key=lambda task: -work.seconds[task])[:LONGEST]
    links = [task for task in path if actions[task].mnemonic in LINKS]
    return {
        "overhead_seconds": overhead,
        "actions": len(actions),
        "times": dict(sorted(times.sources.items())),
        "by_mnemonic": by_mnemonic(actions, times.seconds),
        "histogram": histogram(actions, times.seconds),
        "client": {
            "actions": sum(action.client for action in actions),
            "seconds": round(sum(times.seconds[task] for task, action in enumerate(actions) if action.client), 1),
        },
        "depth": round(max(work.tails([float(task < len(actions)) for task in range(len(work.needs))]))),
        "worker_seconds": round(work.total, 1),
        "critical_path": {
            "seconds": round(critical, 1),
            "actions": len(path),
            "longest": [{"action": actions[task].name, "seconds": round(work.seconds[task], 1)} for task in longest],
        },
        "parallelism": round(work.total / critical, 1) if critical else 0.0,
        "last_link_seconds": round(work.seconds[links[-1]], 1) if links else None,
        "packing_seconds": packing,
        "schedules": schedules(work),
    }


def by_mnemonic(actions: Sequence[Action], seconds: Sequence[float]) -> dict[str, dict[str, float]]:
    """Return count and seconds of each kind of action, the longest first."""
    times: dict[str, list[float]] = defaultdict(list)
    for action, time in zip(actions, seconds, strict=True):
        times[action.mnemonic].append(time)
    rows = sorted(times.items(), key=lambda row: (-sum(row[1]), row[0]))
    return {mnemonic: {"actions": len(each), "seconds": round(sum(each), 1)} for mnemonic, each in rows}


def histogram(actions: Sequence[Action], seconds: Sequence[float]) -> dict[str, int]:
    """Return how many of the workers' actions take less than so many seconds, and no less than the number before."""
    bounds = (*BUCKETS, float("inf"))
    places = [
        next(bound for bound in bounds if time < bound)
        for action, time in zip(actions, seconds, strict=True)
        if not action.client
    ]
    return {f"< {bound:g}": places.count(bound) for bound in bounds}


def show(results: dict[str, Any]) -> None:
    for name, value in results.items():
        if name != "schedules":
            print(f"{name}: {value}")
    print(f"{'order':14}{'workers':>8}{'seconds':>12}{'speed-up':>10}{'efficiency':>12}{'busy':>8}")
    row = "{:14}{:>8}{seconds:>12,.1f}{speedup:>10.2f}{efficiency:>12.3f}{busy:>8.3f}"
    for order, numbers in results["schedules"].items():
        for workers, each in numbers.items():
            print(row.format(order, workers, **each))


def work_of(needs: Sequence[tuple[int, ...]], actions: Sequence[Action], times: Times, overhead: float) -> Work:
    """Return the tasks of a graph: its actions, then its sets of files, which take no time."""
    sets = len(needs) - len(actions)
    more = [0.0 if action.client else overhead for action in actions]
    return Work(
        seconds=tuple(time + each for time, each in zip(times.seconds, more, strict=True)) + (0.0,) * sets,
        client=tuple(action.client for action in actions) + (True,) * sets,
        needs=tuple(needs),
    )


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--actions", type=Path, required=True, help="action graph of Bazel 4 or later, or its gzip")
    parser.add_argument("--profile", type=Path, action="append", default=[], help="of a run; repeatable")
    parser.add_argument("--disk-cache", type=Path, help="of Bazel 6 or later")
    parser.add_argument("--target", default=TARGET, help=f"(default: {TARGET})")
    parser.add_argument("--overhead", type=float, default=0.0, help="seconds per action on a worker (default: 0)")
    parser.add_argument("--packing", type=float, default=0.0, help="seconds of packing the wheel (default: 0)")
    parser.add_argument("--report", action="store_true", help="write benchmarks/results/workers.json")
    options = parser.parse_args(words)
    if not options.profile and not options.disk_cache:
        parser.error("give --profile or --disk-cache: they have the times")
    try:
        cache = read_cache(options.disk_cache) if options.disk_cache else None
        events = [event for path in options.profile for event in read_profile(path)]
        graph = read_graph(options.actions, options.target, cache)
        times = durations(graph.actions, cache.seconds if cache else {}, events)
        work = work_of(graph.needs, graph.actions, times, options.overhead)
        results = summary(work, graph.actions, times, options.overhead, options.packing)
    except TfbuildError as error:
        sys.exit(str(error))
    show(results)
    if options.report:
        print(record("workers", results))


if __name__ == "__main__":
    main()
