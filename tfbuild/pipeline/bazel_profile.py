"""Bazel's JSON trace of a compile: which actions took how long. Recorded samples: tests/data/bazel.

The format is Chrome's: one event a line, times in microseconds. A Bazel that was killed leaves it without an end.
"""

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tfbuild.util.progress import duration

ACTION = "action processing"
GZIP = b"\x1f\x8b"
# The list's end, alone on its line: in 0.26 all of the file is that list.
END = ("\n]", "\n  ]\n}", "\n  ]}")
# Up to 3.x an event does not name its action's mnemonic; these begin its text. Bazel's own names stand on the right.
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
    """`seconds`: from its begin to its end, with what it waited for processors and memory."""

    name: str
    mnemonic: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The actions that ran, or whose results were brought from a cache, the slowest first.

    `complete` is False where Bazel did not live to write the end.
    """

    actions: tuple[Action, ...]
    complete: bool

    @property
    def seconds(self) -> float:
        """All actions' time together: with N of them at once, about N times what the clock showed."""
        return sum(action.seconds for action in self.actions)

    def by_mnemonic(self) -> list[tuple[str, int, float]]:
        """Each kind of action with its count and its seconds, the costliest first."""
        kinds: dict[str, list[float]] = {}
        for action in self.actions:
            kinds.setdefault(action.mnemonic, []).append(action.seconds)
        return sorted(((name, len(all_of), sum(all_of)) for name, all_of in kinds.items()), key=lambda kind: -kind[2])


def read(path: Path) -> Profile:
    """The profile at `path`, compressed or not."""
    content = path.read_bytes()
    text = (gzip.decompress(content) if content.startswith(GZIP) else content).decode(errors="replace")
    actions = [_action(event) for event in _events(text) if event.get("cat") == ACTION and "dur" in event]
    return Profile(
        actions=tuple(sorted(actions, key=lambda action: (-action.seconds, action.name))),
        complete=text.rstrip().endswith(END),
    )


def _events(text: str) -> Iterator[dict[str, object]]:
    """The events, each on a line of its own; a last line that was cut off is no event."""
    for line in text.splitlines():
        try:
            event = json.loads(line.strip().rstrip(","))
        except ValueError:
            continue
        if isinstance(event, dict):
            yield event


def _action(event: dict[str, object]) -> Action:
    name, args, taken = str(event.get("name", "")), event.get("args"), event["dur"]
    known = args.get("mnemonic") if isinstance(args, dict) else None
    return Action(
        name="".join(letter for letter in name if letter.isprintable()),
        mnemonic=str(known or next((word for start, word in MNEMONICS if name.startswith(start)), "other")),
        seconds=taken / 1e6 if isinstance(taken, int | float) else 0.0,
    )


def lines(profile: Profile, count: int) -> list[str]:
    """The slowest `count` actions, a line each."""
    shown = profile.actions[:count]
    width = max((len(one.mnemonic) for one in shown), default=0)
    return [f"{duration(one.seconds):>12}  {one.mnemonic:{width}}  {one.name}" for one in shown]


def table(profile: Profile) -> str:
    """The kinds of actions by their time, then the slowest actions."""
    kinds = [f"{duration(total):>12}  {name:28} {count:,}" for name, count, total in profile.by_mnemonic()]
    head = f"{len(profile.actions):,} actions, {duration(profile.seconds)} of them together"
    unfinished = [] if profile.complete else ["(Bazel did not live to write the end: what ran last is missing)"]
    parts = [head, *unfinished, "", "by kind:", *kinds, "", "the slowest:", *lines(profile, LISTED)]
    return "\n".join(parts) + "\n"
