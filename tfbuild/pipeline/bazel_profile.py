"""Read Bazel's JSON trace of a compile: which actions took how long. Recorded samples: tests/data/bazel.

The format is Chrome's: one event per line, times in microseconds. A Bazel that was killed leaves the trace unfinished.
"""

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tfbuild.util.progress import duration

ACTION = "action processing"
GZIP = b"\x1f\x8b"
# The end of the list of events, on a line of its own; in 0.26 the whole file is that list.
END = ("\n]", "\n  ]\n}", "\n  ]}")
# Up to 3.x an event does not hold its action's mnemonic: how its text begins, and the mnemonic that Bazel has for it.
MNEMONICS = (
    ("Compiling ", "CppCompile"),
    ("Linking ", "CppLink"),
    ("Executing genrule ", "Genrule"),
    ("Creating ", "Manifest"),
    ("Writing ", "FileWrite"),
    ("Symlinking ", "Symlink"),
)
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


# Microseconds of a century: no action takes longer, and a float can hold it.
MOST = 100 * 365 * 86_400_000_000


def read(path: Path) -> Profile:
    """Read the profile at `path`, compressed or not."""
    content = path.read_bytes()
    text = (gzip.decompress(content) if content.startswith(GZIP) else content).decode(errors="replace")
    actions = [_action(event) for event in _events(text) if event.get("cat") == ACTION and "dur" in event]
    return Profile(
        actions=tuple(sorted(actions, key=lambda action: (-action.seconds, action.name))),
        complete=text.rstrip().endswith(END),
    )


def _events(text: str) -> Iterator[dict[str, object]]:
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
        mnemonic=str(mnemonic or next((kind for start, kind in MNEMONICS if name.startswith(start)), "other")),
        seconds=min(microseconds, MOST) / 1e6 if isinstance(microseconds, int | float) else 0.0,
    )


def lines(profile: Profile, count: int) -> list[str]:
    """Return the slowest `count` actions, one line each."""
    slowest = profile.actions[:count]
    width = max((len(action.mnemonic) for action in slowest), default=0)
    return [f"{duration(action.seconds):>12}  {action.mnemonic:{width}}  {action.name}" for action in slowest]


def table(profile: Profile) -> str:
    """Return the kinds of actions by their time, then the slowest actions."""
    kinds = [f"{duration(total):>12}  {name:28} {count:,}" for name, count, total in profile.by_mnemonic()]
    head = f"{len(profile.actions):,} actions, {duration(profile.seconds)} in total"
    unfinished = (
        [] if profile.complete else ["(Bazel was killed before it wrote the end: the last actions are missing)"]
    )
    parts = [head, *unfinished, "", "by kind:", *kinds, "", "the slowest:", *lines(profile, LISTED)]
    return "\n".join(parts) + "\n"
