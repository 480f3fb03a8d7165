"""The actions of a compile: what each needs, out of `bazel aquery`, and how long it took.

Times come from Bazel's profiles and its disk cache. Since Bazel 6, the cache has the time of every process whose result
it holds, by output, for as many runs as the compile took. A profile has one run's actions. It names their outputs only
with `--experimental_profile_include_primary_output`, and merges short actions unless `--noslim_profile` is given; else
an action is found by the words of its description: its source, an output, or its label.

The graph has a C++ compile's headers only after Bazel's server has run that compile. Otherwise the disk cache has them,
in the .d files: without it, what needs a generated header seems to be ready at once. Bazel itself waits for a few more
generated headers, those that a compile might include.
"""

import gzip
import json
import re
import zlib
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, Literal

from tfbuild.errors import UsageError
from tfbuild.pipeline import bazel

# What Bazel itself does, in its own process on the client.
CLIENT = frozenset({
    "ExecutableSymlink", "FileWrite", "Middleman", "RepoMappingManifest", "RunfilesTree", "SolibSymlink",
    "SourceSymlinkManifest", "Symlink", "SymlinkTree", "TemplateExpand", "TranslateBuildInfo", "UnresolvedSymlink",
})  # fmt: skip
# Requirements of an action that keep it from workers (bazel.build, common definitions, tags).
LOCAL = {"local", "no-remote", "no-remote-exec"}
# The category of an action's process, which leaves out its files and the cache; in a sandbox, its name.
PROCESS = {"Local execution process wall time", "Remote execution process wall time", "subprocess.run"}
TOOL = " [for tool]"
# Fields of the remote execution API's ActionResult, and of its ExecutedActionMetadata.
FILES, FOLDERS, METADATA, STARTED, COMPLETED = 2, 3, 9, 7, 8
GENERATED = re.compile(rb"bazel-out/[^\s\\]+")
DAMAGED = (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError)


@dataclass(frozen=True, kw_only=True)
class Action:
    """`outputs`: paths below the execution root, the primary one first; `words`: what a description may name it by."""

    mnemonic: str
    outputs: tuple[str, ...]
    words: frozenset[str]
    tool: bool
    client: bool

    @property
    def name(self) -> str:
        """The mnemonic and the primary output."""
        return f"{self.mnemonic} {short(self.outputs[0])}"


@dataclass(frozen=True, kw_only=True)
class Graph:
    """`needs`: for each action, then for each set of files that actions share, the numbers of those that it needs."""

    actions: tuple[Action, ...]
    needs: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Event:
    """An action in a profile; `output` is "" where the profile does not name it."""

    mnemonic: str
    name: str
    output: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Times:
    """Seconds by action, and how many actions have theirs from where."""

    seconds: tuple[float, ...]
    sources: Mapping[str, int]


# --- the disk cache ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DiskCache:
    """Bazel's disk cache: by output, the seconds of the newest process that made it; the digests of .d files."""

    folder: Path
    seconds: Mapping[str, float]
    digests: Mapping[str, str]

    def headers(self, output: str) -> list[str]:
        """Return the generated headers that an object file was compiled with; none where the cache has not kept it."""
        digest = self.digests.get(f"{output.rpartition('.')[0]}.d", "")
        try:
            text = (self.folder / "cas" / digest[:2] / digest).read_bytes()
        except OSError:
            return []
        return sorted({path.decode(errors="replace") for path in GENERATED.findall(text)} - {output})


def read_cache(folder: Path) -> DiskCache:
    """Read the results in a disk cache; UsageError without any."""
    newest: dict[str, Result] = {}
    for path in (folder / "ac").glob("??/*"):
        try:
            result = _result(path.read_bytes())
        except (*DAMAGED, OSError):
            continue  # half written, or of an action without a process
        for output in result.outputs:
            newest[output] = max(newest.get(output, result), result, key=lambda one: one.end)
    if not newest:
        raise UsageError(f"{folder} is not a disk cache of Bazel 6 or later: no result with times is in it")
    return DiskCache(
        folder=folder,
        seconds={output: result.end - result.start for output, result in newest.items()},
        digests={output: result.outputs[output] for output, result in newest.items() if output.endswith(".d")},
    )


@dataclass(frozen=True, kw_only=True)
class Result:
    """Digests by output, and when the process ran."""

    outputs: Mapping[str, str]
    start: float
    end: float


def _result(message: bytes) -> Result:
    """Decode an ActionResult."""
    rows = list(_fields(message))
    (metadata,) = [value for number, value in rows if number == METADATA]
    at = {number: dict(_fields(value)) for number, value in _fields(metadata) if number in (STARTED, COMPLETED)}
    start, end = (at[number][1] + at[number].get(2, 0) / 1e9 for number in (STARTED, COMPLETED))
    outputs = {}
    for output in [dict(_fields(value)) for number, value in rows if number in (FILES, FOLDERS)]:
        digest = dict(_fields(output.get(2, b"")))
        outputs[output[1].decode()] = digest.get(1, b"").decode()
    return Result(outputs=outputs, start=start, end=end)


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yield a protobuf message's fields: whole numbers, and bytes."""
    place = 0

    def number() -> int:
        nonlocal place
        value = shift = 0
        while True:
            byte = message[place]
            place, value, shift = place + 1, value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value

    while place < len(message):
        field, kind = divmod(number(), 8)
        value: int | bytes = number()
        if kind == 2:
            end = place + int(value)
            value, place = message[place:end], end
        if kind not in (0, 2) or place > len(message):
            raise ValueError("not such a message")
        yield field, value


# --- the graph --------------------------------------------------------------------------------------------------------


def read_graph(path: Path, target: str, disk: DiskCache | None = None) -> Graph:
    """Read what `bazel aquery --output=jsonproto` wrote: what `target` needs. Raises UsageError if it is not that."""
    try:
        return _Reader(json.loads(read_text(path)), disk).graph(target)
    except DAMAGED as error:
        raise UsageError(
            f"{path} is not an action graph of Bazel 4 or later: {type(error).__name__}: {error}",
            hint="bazel aquery --output=jsonproto --noinclude_commandline 'deps(TARGET)' writes one",
        ) from error


# An action or a set of files that actions share, by its number or identifier.
Node = tuple[Literal["action", "set"], int]


class _Reader:
    def __init__(self, document: Mapping[str, Any], disk: DiskCache | None) -> None:
        self._disk = disk
        self._actions = document["actions"]
        self._sets = {row["id"]: row for row in document.get("depSetOfFiles", [])}
        self._labels = {row["id"]: _plain(row["label"]) for row in document["targets"]}
        self._tools = {row["id"] for row in document["configuration"] if row.get("isTool")}
        self._paths = _paths(document)
        self._makers = {
            self._paths[output]: number
            for number, row in reversed(list(enumerate(self._actions)))
            for output in row["outputIds"]
        }

    def graph(self, target: str) -> Graph:
        """Return the actions and sets that the actions of `target` need, and these."""
        todo: list[Node] = [
            ("action", number)
            for number, row in enumerate(self._actions)
            if self._labels[row["targetId"]] == _plain(target)
        ]
        if not todo:
            raise ValueError(f"it has no action of {target}")
        edges: dict[Node, list[Node]] = {}
        while todo:
            node = todo.pop()
            if node not in edges:
                edges[node] = self._needs(node)
                todo += edges[node]
        nodes = sorted(edges)  # the actions first, in Bazel's order
        places = {node: place for place, node in enumerate(nodes)}
        return Graph(
            actions=tuple(self._action(self._actions[number]) for kind, number in nodes if kind == "action"),
            needs=tuple(tuple(places[need] for need in edges[node]) for node in nodes),
        )

    def _needs(self, node: Node) -> list[Node]:
        kind, number = node
        row = self._actions[number] if kind == "action" else self._sets[number]
        sets = row.get("inputDepSetIds" if kind == "action" else "transitiveDepSetIds", [])
        files = [self._paths[one] for one in row.get("directArtifactIds", [])]
        if kind == "action" and self._disk and row.get("discoversInputs"):
            files = self._disk.headers(self._paths[row["primaryOutputId"]])
        makers = {maker for maker in map(self._maker, files) if maker is not None}
        return [("set", one) for one in sets] + [("action", maker) for maker in sorted(makers)]

    def _maker(self, path: str) -> int | None:
        """Return the action that makes a file or the folder that it is in; None for a source."""
        while path and path not in self._makers:
            path = path.rpartition("/")[0]
        return self._makers.get(path)

    def _action(self, row: Mapping[str, Any]) -> Action:
        outputs = tuple(self._paths[one] for one in dict.fromkeys([row["primaryOutputId"], *row["outputIds"]]))
        sets = [self._sets[one] for one in row.get("inputDepSetIds", [])]
        inputs = [self._paths[one] for files in sets for one in files.get("directArtifactIds", [])]
        sources = [path for path in inputs if _stem(path) == _stem(outputs[0])]
        requirements = {one["key"] for one in row.get("executionInfo", [])}
        return Action(
            mnemonic=row["mnemonic"],
            outputs=outputs,
            words=frozenset({self._labels[row["targetId"]], *_forms(outputs), *_forms(sources)}),
            tool=row["configurationId"] in self._tools,
            client=row["mnemonic"] in CLIENT or not requirements.isdisjoint(LOCAL),
        )


def _paths(document: Mapping[str, Any]) -> dict[int, str]:
    """Return the paths of all artifacts: a path's last part names the one before it."""
    parts = {row["id"]: row for row in document["pathFragments"]}

    @cache
    def path(part: int) -> str:
        row = parts[part]
        return f"{path(row['parentId'])}/{row['label']}" if row.get("parentId") else str(row["label"])

    return {row["id"]: path(row["pathFragmentId"]) for row in document["artifacts"]}


def _plain(label: str) -> str:
    return label.lstrip("@")


def _stem(path: str) -> str:
    return path.rpartition("/")[2].partition(".")[0]


def short(path: str) -> str:
    """Return an output's path without its configuration's folder."""
    parts = path.split("/")
    return "/".join(parts[3:]) if parts[0] == "bazel-out" and len(parts) > 3 else path


def _forms(paths: Iterable[str]) -> Iterator[str]:
    """Yield the forms in which a description may have a path: with its repository, and without."""
    for path in map(short, paths):
        yield path
        if path.startswith("external/"):
            yield path.split("/", 2)[-1]


# --- the times --------------------------------------------------------------------------------------------------------


def read_profile(path: Path) -> list[Event]:
    """Read the actions of a profile; UsageError if there are none."""
    try:
        rows: list[dict[str, Any]] = [row for row in bazel.events(read_text(path)) if "dur" in row and "ts" in row]
        actions = [row for row in rows if row.get("cat") == bazel.ACTION]
        spent = _processes(actions, [row for row in rows if not PROCESS.isdisjoint((row.get("cat"), row.get("name")))])
        results = [
            Event(
                mnemonic=str(row["args"]["mnemonic"]),
                name=str(row["name"]),
                output=str(row.get("out", "")),
                seconds=spent.get(number, row["dur"]) / 1e6,
            )
            for number, row in enumerate(actions)
        ]
    except DAMAGED as error:
        raise UsageError(f"{path} is not a profile of Bazel 4 or later: {type(error).__name__}: {error}") from error
    if not results:
        raise UsageError(f"{path} is not a profile of Bazel: no action is in it")
    return results


def _processes(actions: Sequence[dict[str, Any]], processes: Iterable[dict[str, Any]]) -> dict[int, float]:
    """Return the microseconds of the processes of each action that has some: they ran in its thread, in its time."""
    threads: dict[object, list[tuple[float, int]]] = defaultdict(list)
    for number, row in enumerate(actions):
        threads[row["tid"]].append((row["ts"], number))
    for begun in threads.values():
        begun.sort()
    spent: dict[int, float] = defaultdict(float)
    for row in processes:
        begun = threads[row["tid"]]
        place = bisect_right(begun, (row["ts"], len(actions)))
        if place and row["ts"] <= begun[place - 1][0] + actions[begun[place - 1][1]]["dur"]:
            spent[begun[place - 1][1]] += row["dur"]
    return spent


def durations(actions: Sequence[Action], cached: Mapping[str, float], events: Sequence[Event]) -> Times:
    """Return each action's time. One without any has the median of its mnemonic; on the client, none."""
    named: dict[str, float] = {}
    for event in events:
        named[event.output] = max(event.seconds, named.get(event.output, 0.0))
    described = _described(actions, [event for event in events if not event.output])
    seconds: list[float | None] = []
    sources: Counter[str] = Counter()
    known: dict[str, list[float]] = defaultdict(list)
    for number, action in enumerate(actions):
        by = (
            ("disk cache", next((cached[path] for path in action.outputs if path in cached), None)),
            ("profile, by output", named.get(action.outputs[0])),
            ("profile, by description", described.get(number)),
        )
        source, time = next(((source, time) for source, time in by if time is not None), ("", None))
        seconds.append(time)
        if time is not None:
            sources[source] += 1
            known[action.mnemonic].append(time)
    medians = {mnemonic: median(times) for mnemonic, times in known.items()}
    missing = [action for action, time in zip(actions, seconds, strict=True) if time is None]
    for action in missing:
        sources[_instead(action, medians)] += 1
    return Times(
        seconds=tuple(
            time if time is not None else 0.0 if action.client else medians.get(action.mnemonic, 0.0)
            for action, time in zip(actions, seconds, strict=True)
        ),
        sources=dict(sources),
    )


def _instead(action: Action, medians: Mapping[str, float]) -> str:
    if action.client:
        return "none: 0 s on the client"
    return "none: its mnemonic's median" if action.mnemonic in medians else "none: 0 s, like all of its mnemonic"


def _described(actions: Sequence[Action], events: Iterable[Event]) -> dict[int, float]:
    """Find the actions of events by a word of their descriptions.

    Several actions may share it, such as two compiles of a source; and each may have events in several profiles, from
    a cache but for one. The longest events are theirs, in any order.
    """
    index: dict[tuple[str, bool, str], list[int]] = defaultdict(list)
    for number, action in enumerate(actions):
        for word in action.words:
            index[action.mnemonic, action.tool, word].append(number)
    groups: dict[tuple[str, bool, str], list[float]] = defaultdict(list)
    for event in events:
        words = reversed(event.name.removesuffix(TOOL).split())
        keys = ((event.mnemonic, event.name.endswith(TOOL), _plain(word)) for word in words)
        if key := next((key for key in keys if key in index), None):
            groups[key].append(event.seconds)
    results: dict[int, float] = {}
    for key, times in groups.items():
        free = [number for number in index[key] if number not in results]
        results.update(zip(free, sorted(times, reverse=True), strict=False))
    return results


def read_text(path: Path) -> str:
    """Read a file, compressed or not."""
    try:
        content = path.read_bytes()
        return (gzip.decompress(content) if content.startswith(bazel.GZIP) else content).decode(errors="replace")
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
