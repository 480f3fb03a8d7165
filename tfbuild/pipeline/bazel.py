"""What Bazel says of a compile: its output as it runs, and its profile, which says what took how long.

The profile's format is Chrome's: one event per line, times in microseconds. A Bazel that was killed leaves it
unfinished. Recorded samples: tests/data/bazel.
"""

import gzip
import json
import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

from tfbuild.util.progress import duration

# "[1,234 / 20,345] 8 actions running"; some versions add "[Prepa]" or "(12:34:56)".
COUNT = re.compile(r"\[(?P<done>\d[\d,]{,20}) / (?P<total>\d[\d,]{,20})\]\s*(?P<rest>.*)")
KILLED = re.compile(
    r"Killed signal terminated program|internal compiler error: Killed|unable to execute command: Killed"
    r"|clang frontend command failed due to signal|Server terminated abruptly|java\.lang\.OutOfMemoryError"
    r"|collect2: fatal error: ld terminated with signal 9|failed:? \((Killed|Exit 137)\)"
)
TIME_LIMIT = "tfbuild: the time limit is reached"
# What compile.sh and Bazel print where a remote cache or executor cannot be reached.
NO_REMOTE = re.compile(
    r"tfbuild: the remote (cache|executor) .* does not answer|Failed to query remote execution capabilities"
    r"|StatusRuntimeException: (UNAUTHENTICATED|PERMISSION_DENIED)"
)
# What compile.sh prints of an executor that answers and yet compiles nothing, and why.
NO_USE = "tfbuild: the remote executor is of no use: "
ALONE = "tfbuild: going on without it"
# The first lines of any build, after the start of Bazel's server.
BEGINS = ("Loading:", "Computing main repo mapping", "Analyzing:", "INFO: Analyzed")
PROCESSES = re.compile(r"INFO: (?P<summary>\d[\d,]* process(?:es)?: .*)")
NOT_HERE = ("internal", "remote", "remote cache hit", "disk cache hit", "action cache hit")
KIND = re.compile(r"(\d[\d,]*) ([a-z][a-z -]*[a-z])")
# How many actions end in a minute differs a hundredfold: many come from a cache, and oneDNN's kernels are slow. The
# median of the last twenty minutes is nearest. Two runs of 2.14.1's compile went on from their cache, hours from its
# end: after 16 minutes the mean gave them 24 and 2 minutes, the median 3.7 hours and 35 minutes.
MINUTE = 60.0
WINDOW_MINUTES = 20
# A build begins with its short actions: 2.14.1's compile, of many hours, had "57 minutes left" after ten.
LEAST_MINUTES = 15


class BazelWatch:
    """Takes a compile's output line by line, and returns for each what to show ("": nothing new).

    `share`: the part of the compile that is done, 0 to 1, among the actions that Bazel knows so far.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.began = False
        self.killed = False
        self.out_of_time = False
        self.no_remote = False
        self.no_use = ""
        self.alone = False
        self.summary = ""
        self.share: float | None = None
        self._clock = clock
        self._counts: deque[tuple[float, int]] = deque(maxlen=WINDOW_MINUTES + 1)

    def __call__(self, line: str) -> str:
        self.killed = self.killed or KILLED.search(line) is not None
        self.out_of_time = self.out_of_time or line.startswith(TIME_LIMIT)
        self.began = self.began or line.startswith(BEGINS)
        self.no_remote = self.no_remote or NO_REMOTE.search(line) is not None
        if line.startswith(NO_USE):
            self.no_use = line.removeprefix(NO_USE)
        if line.startswith(ALONE):
            self.no_remote, self.alone = False, True
        if processes := PROCESSES.match(line):
            self.summary = processes["summary"]
        count = COUNT.search(line)
        if count is None:
            return ""
        return self._progress(number(count["done"]), number(count["total"]), count["rest"])

    def _progress(self, done: int, total: int, rest: str) -> str:
        now = self._clock()
        if not self._counts or now - self._counts[-1][0] >= MINUTE:
            self._counts.append((now, done))
        self.share = min(1.0, done / total) if total else None
        text = f"{done:,} / {total:,} actions" + (f", {100 * done // total} %" if total else "")
        if left := self._left(done, total):
            text += f", about {duration(left)} left"
        return f"{text}: {rest}" if rest else text

    def _left(self, done: int, total: int) -> float:
        """Return the seconds left at the usual rate, 0 where it is not known yet. The total still grows early on."""
        rates = [(last - first) / (end - begin) for (begin, first), (end, last) in pairwise(self._counts)]
        usual = median(rates) if len(rates) >= LEAST_MINUTES else 0.0
        return (total - done) / usual if usual else 0.0


def remote_share(summary: str) -> tuple[int, int]:
    """Return how many actions an executor ran or a remote cache had, and how many ran here, by Bazel's summary."""
    _, _, kinds = summary.partition(":")
    counts = {kind: number(count) for count, kind in KIND.findall(kinds)}
    remote = counts.get("remote", 0) + counts.get("remote cache hit", 0)
    return remote, sum(count for kind, count in counts.items() if kind not in NOT_HERE)


def number(text: str) -> int:
    return int(text.replace(",", ""))


# --- the profile ------------------------------------------------------------------------------------------------------

ACTION = "action processing"
GZIP = b"\x1f\x8b"
# The end of the list of events.
END = ("\n  ]\n}", "\n  ]}")
LISTED = 50


@dataclass(frozen=True, kw_only=True)
class Action:
    """`seconds`: from start to end, including waits for processors and memory."""

    name: str
    mnemonic: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The actions that ran, or whose results came from a cache, the slowest first.

    `complete`: False where Bazel was killed before it wrote the end.
    """

    actions: tuple[Action, ...]
    complete: bool

    @property
    def seconds(self) -> float:
        """The sum of all actions' times: with N actions at once, about N times the elapsed time."""
        return sum(action.seconds for action in self.actions)

    def by_mnemonic(self) -> list[tuple[str, int, float]]:
        """Return each kind of action with its count and its seconds, the slowest first."""
        kinds: dict[str, list[float]] = {}
        for action in self.actions:
            kinds.setdefault(action.mnemonic, []).append(action.seconds)
        return sorted(((name, len(times), sum(times)) for name, times in kinds.items()), key=lambda kind: -kind[2])


# Microseconds of three centuries: no action takes longer, and a float can hold it.
MOST = 1e16


def read_profile(path: Path) -> Profile:
    """Read the profile at `path`, compressed or not."""
    content = path.read_bytes()
    text = (gzip.decompress(content) if content.startswith(GZIP) else content).decode(errors="replace")
    actions = [_action(event) for event in events(text) if event.get("cat") == ACTION and "dur" in event]
    return Profile(
        actions=tuple(sorted(actions, key=lambda action: (-action.seconds, action.name))),
        complete=text.rstrip().endswith(END),
    )


def events(text: str) -> Iterator[dict[str, object]]:
    """Yield the events, one per line; a last line that was cut off is skipped."""
    for line in text.splitlines():
        try:
            event = json.loads(line.strip().rstrip(","))
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict):
            yield event


def _action(event: dict[str, object]) -> Action:
    name, args, microseconds = str(event.get("name", "")), event.get("args"), event["dur"]
    mnemonic = args.get("mnemonic") if isinstance(args, dict) else None
    return Action(
        name="".join(letter for letter in name if letter.isprintable()),
        mnemonic=str(mnemonic or "other"),
        seconds=min(microseconds, MOST) / 1e6 if isinstance(microseconds, int | float) else 0.0,
    )


def slowest(profile: Profile, count: int) -> list[str]:
    """Return the slowest `count` actions, one line each."""
    slowest = profile.actions[:count]
    width = max((len(action.mnemonic) for action in slowest), default=0)
    return [f"{duration(action.seconds):>12}  {action.mnemonic:{width}}  {action.name}" for action in slowest]


def profile_table(profile: Profile) -> str:
    """Return the kinds of actions by their time, then the slowest actions."""
    kinds = [f"{duration(total):>12}  {name:28} {count:,}" for name, count, total in profile.by_mnemonic()]
    head = f"{len(profile.actions):,} actions, {duration(profile.seconds)} in total"
    unfinished = (
        [] if profile.complete else ["(Bazel was killed before it wrote the end: the last actions are missing)"]
    )
    parts = [head, *unfinished, "", "by kind:", *kinds, "", "the slowest:", *slowest(profile, LISTED)]
    return "\n".join(parts) + "\n"
