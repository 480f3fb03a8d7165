"""benchmarks.workers: schedules computed by hand, Graham's bounds, and what Bazel 7.7.1 wrote of the test double.

tests/data/bazel/workers has its action graph, the actions of two profiles (the second names their outputs), and the
results and .d files of its disk cache. Its kernels were compiled without Eigen.
"""

import gzip
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from benchmarks import workers
from benchmarks.action_graph import CLIENT, Graph, Times, durations, read_cache, read_graph, read_profile
from benchmarks.workers import Work, makespan
from tfbuild.errors import UsageError

RECORDED = Path(__file__).parents[1] / "data" / "bazel" / "workers"
ACTIONS, PROFILE, NAMED = (RECORDED / f"{name}.json.gz" for name in ("actions", "profile", "profile-outputs"))
FEATURES, MACROS, TOOL, LIBRARY = (
    f"{kind} tensorflow/double/{name}"
    for kind, name in (
        ("CppCompile", "_objs/libtensorflow_double.so/features.pic.o"), ("Genrule", "host_macros.h"),
        ("CppLink", "host_tool"), ("CppLink", "libtensorflow_double.so"),
    )
)  # fmt: skip


def work(*rows: tuple[int, str], client: str = "") -> Work:
    """Tasks a, b, c ... by seconds and the letters of what they need; `client`: those that no worker runs."""
    letters = "abcdefghijkl"
    return Work(
        seconds=tuple(float(seconds) for seconds, _ in rows),
        client=tuple(letters[task] in client for task in range(len(rows))),
        needs=tuple(tuple(map(letters.index, needs)) for _, needs in rows),
    )


# --- schedules --------------------------------------------------------------------------------------------------------


def test_a_diamond_takes_its_longer_side() -> None:
    diamond = work((1, ""), (5, "a"), (3, "a"), (2, "bc"))
    assert [makespan(diamond, number) for number in (1, 2, 10)] == [11, 8, 8]
    assert diamond.critical_path() == [0, 1, 3]
    assert diamond.tails(diamond.seconds) == [8, 7, 5, 2]


def test_the_order_of_what_is_ready_decides() -> None:
    """Two short ones first, then the long one alone; or the long one beside both."""
    late = work((2, ""), (2, ""), (4, ""))
    assert makespan(late, 2) == 6
    assert makespan(late, 2, late.tails(late.seconds)) == 4


def test_what_becomes_ready_at_the_same_moment_is_ordered_too() -> None:
    """At 1, b of 1 second is ready and c through a set of files that takes no time: c is longer."""
    both = work((1, ""), (1, "a"), (0, "a"), (3, "c"), client="c")
    assert makespan(both, 1) == 5
    tails = both.tails(both.seconds)
    assert [makespan(both, number, tails) for number in (1, 2)] == [5, 4]


def test_the_client_keeps_no_worker_busy() -> None:
    links = work((4, ""), (3, ""), (1, "b"), client="b")
    assert makespan(links, 1) == 5
    assert links.total == 5


def test_a_task_that_needs_itself_is_damage() -> None:
    with pytest.raises(UsageError, match="need themselves"):
        makespan(work((1, ""), (1, "c"), (1, "b")), 1)


@some.composite
def works(draw: some.DrawFn) -> Work:
    count = draw(some.integers(1, 12))
    return Work(
        seconds=tuple(float(draw(some.integers(0, 9))) for _ in range(count)),
        client=tuple(draw(some.booleans()) for _ in range(count)),
        needs=tuple(tuple(draw(some.sets(some.integers(0, task - 1)))) if task else () for task in range(count)),
    )


@given(works(), some.integers(1, 5), some.booleans())
def test_each_schedule_is_within_grahams_bounds(some_work: Work, number: int, longest_first: bool) -> None:
    tails = some_work.tails(some_work.seconds)
    longest = max(tails)
    result = makespan(some_work, number, tails if longest_first else ())
    assert max(some_work.total / number, longest) <= result <= some_work.total / number + longest
    assert sum(some_work.seconds[task] for task in some_work.critical_path()) == longest


# --- what Bazel wrote -------------------------------------------------------------------------------------------------


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    with tarfile.open(RECORDED / "disk.tar.gz") as archive:
        archive.extractall(tmp_path / "disk", filter="data")
    return tmp_path / "disk"


def ancestors(graph: Graph, name: str) -> set[str]:
    """The names of all actions that one needs."""
    todo, seen = [[action.name for action in graph.actions].index(name)], set[int]()
    while todo:
        needs = set(graph.needs[todo.pop()]) - seen
        seen |= needs
        todo += needs
    return {graph.actions[place].name for place in seen if place < len(graph.actions)}


def timed(graph: Graph, *profiles: Path) -> Times:
    return durations(graph.actions, {}, [event for path in profiles for event in read_profile(path)])


def test_the_graph_has_what_the_target_needs_through_sets_and_middlemen() -> None:
    graph = read_graph(ACTIONS, workers.TARGET)
    names = {action.name for action in graph.actions}
    assert len(names) == 12
    runfiles = next(name for name in names if name.startswith("Middleman"))
    assert LIBRARY in ancestors(graph, runfiles)
    kernels = {f"CppCompile tensorflow/double/_objs/kernel_{number}/kernel.pic.o" for number in range(4)}
    params = "FileWrite tensorflow/double/libtensorflow_double.so-2.params"
    assert ancestors(graph, LIBRARY) == {*kernels, FEATURES, params}
    assert {action.mnemonic for action in graph.actions if not action.client} == {"CppCompile", "CppLink"}


def test_a_generated_header_is_known_from_the_disk_cache_alone(disk: Path) -> None:
    graph = read_graph(ACTIONS, workers.TARGET, read_cache(disk))
    assert len(graph.actions) == 20
    assert {MACROS, TOOL} <= ancestors(graph, FEATURES)
    assert [action.tool for action in graph.actions if action.name in (TOOL, MACROS)] == [False, True]


def test_each_process_has_its_time_from_the_disk_cache(disk: Path) -> None:
    cache = read_cache(disk)
    graph = read_graph(ACTIONS, workers.TARGET, cache)
    times = durations(graph.actions, cache.seconds, [])
    assert times.sources == {"disk cache": 9, "none: 0 s on the client": 11}
    rows = {action.name: seconds for action, seconds in zip(graph.actions, times.seconds, strict=True)}
    assert rows[FEATURES] == pytest.approx(1.642, abs=1e-3)
    assert rows[MACROS] == pytest.approx(0.056, abs=1e-3)


def test_a_profile_has_its_actions_by_output_or_by_description() -> None:
    graph = read_graph(ACTIONS, workers.TARGET)
    assert timed(graph, NAMED).sources == {"profile, by output": 11, "none: 0 s on the client": 1}
    assert timed(graph, PROFILE).sources == {"profile, by description": 10, "none: 0 s on the client": 2}


def test_a_process_takes_less_than_its_action() -> None:
    """In the profile, compiling features.cc took 1.690 seconds, 1.642 of them in the compiler: as the cache has it."""
    graph = read_graph(ACTIONS, workers.TARGET)
    place = [action.name for action in graph.actions].index(FEATURES)
    assert timed(graph, PROFILE).seconds[place] == pytest.approx(1.642, abs=2e-3)


def test_of_one_action_in_several_profiles_the_longest_time_holds() -> None:
    """Four kernels have the same source: of eight times, those of the slower run are theirs."""
    graph = read_graph(ACTIONS, workers.TARGET)
    kernels = [place for place, action in enumerate(graph.actions) if "/kernel_" in action.name]
    one, two = timed(graph, PROFILE), timed(graph, PROFILE, PROFILE)
    assert sorted(one.seconds[place] for place in kernels) < sorted(two.seconds[place] for place in kernels)
    assert len({two.seconds[place] for place in kernels}) == 2
    named = [timed(graph, *paths) for paths in ((NAMED,), (NAMED, NAMED))]
    assert named[0] == named[1]


def test_what_has_no_time_gets_the_median_of_its_mnemonic() -> None:
    graph = read_graph(ACTIONS, workers.TARGET)
    kernels = [event for event in read_profile(NAMED) if "/kernel_" in event.output]
    times = durations(graph.actions, {}, kernels)
    place = [action.name for action in graph.actions].index(FEATURES)
    middle = sorted(event.seconds for event in kernels)[1:3]
    assert times.seconds[place] == pytest.approx(sum(middle) / 2)
    assert times.sources == {
        "profile, by output": 4,
        "none: its mnemonic's median": 1,
        "none: 0 s, like all of its mnemonic": 1,
        "none: 0 s on the client": 6,
    }


def changed(folder: Path, **rows: Any) -> Path:
    """The action graph with other rows."""
    path = folder / "actions.json"
    path.write_text(json.dumps(json.loads(gzip.decompress(ACTIONS.read_bytes())) | rows))
    return path


def test_a_file_in_a_folder_that_an_action_makes_needs_that_action(tmp_path: Path) -> None:
    action = {"targetId": 1, "configurationId": 1, "primaryOutputId": 1, "outputIds": [1], "mnemonic": "Genrule"}
    path = changed(
        tmp_path,
        pathFragments=[{"id": 1, "label": "out"}, {"id": 2, "label": "tree", "parentId": 1},
                       {"id": 3, "label": "file", "parentId": 2}, {"id": 4, "label": "program"}],
        artifacts=[{"id": 1, "pathFragmentId": 2}, {"id": 2, "pathFragmentId": 3}, {"id": 3, "pathFragmentId": 4}],
        depSetOfFiles=[{"id": 1, "directArtifactIds": [2]}],
        targets=[{"id": 1, "label": "@@//:made"}, {"id": 2, "label": "//:wanted"}],
        actions=[action, action | {"targetId": 2, "outputIds": [3], "primaryOutputId": 3, "inputDepSetIds": [1],
                                   "executionInfo": [{"key": "no-remote-exec"}]}],
    )  # fmt: skip
    graph = read_graph(path, "//:wanted")
    assert [(one.name, one.client) for one in graph.actions] == [("Genrule out/tree", False), ("Genrule program", True)]
    assert graph.needs == ((), (2,), (0,))


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_report_has_counts_and_sums(disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--actions", str(ACTIONS), "--disk-cache", str(disk), "--profile", str(PROFILE), "--overhead", "0.5"]
    workers.main([*words, "--packing", "7"])
    printed = capsys.readouterr().out
    assert "'disk cache': 9" in printed
    assert "packing_seconds: 7.0" in printed
    assert printed.count("ready first") == printed.count("longest first") == len(workers.WORKERS)


def test_overhead_is_added_to_what_workers_run_and_to_nothing_else(disk: Path) -> None:
    graph = read_graph(ACTIONS, workers.TARGET, read_cache(disk))
    times = Times(seconds=(1.0,) * len(graph.actions), sources={})
    with_overhead = workers.work_of(graph.needs, graph.actions, times, 0.5)
    report: dict[str, Any] = workers.summary(with_overhead, graph.actions, times, 0.5, 0.0)
    assert report["worker_seconds"] == 9 * 1.5
    assert report["client"] == {"actions": 11, "seconds": 11}
    assert report["histogram"]["< 3"] == 9
    assert report["by_mnemonic"]["CppCompile"] == {"actions": 6, "seconds": 6}
    # The tool's compile, link and runfiles, the header, its user, the library, and the wheel's runfiles.
    assert report["depth"] == 7
    assert report["last_link_seconds"] == 1.5
    one = report["schedules"]["longest first"]["1"]
    assert one["speedup"] == one["efficiency"] == 1
    assert {action.mnemonic for action in graph.actions if action.client} <= CLIENT


@pytest.mark.parametrize("name", ["actions", "profile", "disk-cache"])
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\x1f\x8b\x08\x00half", b'{"cat": [], "ts": 1, "dur": 1}'])
def test_damage_is_one_sentence(name: str, content: bytes, disk: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    damaged.write_bytes(content)
    paths = {"actions": ACTIONS, "profile": PROFILE, "disk-cache": disk} | {name: damaged}
    with pytest.raises(SystemExit) as error:
        workers.main([word for option, path in paths.items() for word in (f"--{option}", str(path))])
    message, *hints = str(error.value.code).split("\n")
    assert message.startswith(f"error: {damaged} ")
    assert len(hints) <= 1


def test_half_of_a_profile_is_what_a_killed_bazel_leaves(tmp_path: Path) -> None:
    text = gzip.decompress(NAMED.read_bytes())
    (tmp_path / "profile.json").write_bytes(text[: len(text) // 2])
    assert 0 < len(read_profile(tmp_path / "profile.json")) < len(read_profile(NAMED))


def test_a_damaged_result_in_the_disk_cache_has_no_time(disk: Path) -> None:
    before = read_cache(disk).seconds
    path = next(path for path in (disk / "ac").glob("??/*") if b"features.pic.o" in path.read_bytes())
    path.write_bytes(path.read_bytes()[:-9])
    assert {output.rpartition("/")[2] for output in before.keys() - read_cache(disk).seconds.keys()} == {
        "features.pic.o",
        "features.pic.d",
    }


def test_another_target_is_one_sentence() -> None:
    with pytest.raises(UsageError, match="it has no action of //:other"):
        read_graph(ACTIONS, "//:other")
