"""Parse BuildKit's `--progress=plain` output, and show it in stages. Recorded samples: tests/data/buildkit."""

import re
import textwrap
from collections import deque
from dataclasses import dataclass
from typing import Protocol

from tfbuild.util.progress import Progress, Step

LINE = re.compile(r"#(?P<step>\d{1,9}) (?P<rest>.*)")
TIMED = re.compile(r"(?P<seconds>\d+\.\d+) (?P<text>.*)")
ENDED = re.compile(r"(?:DONE (?P<done>\d+(?:\.\d+)?)s|(?P<cached>CACHED)|(?P<canceled>CANCELED)|ERROR: (?P<error>.*))$")
# "[wheel 2/5] RUN ...", "[2/5] RUN ..." and, where several platforms are built, "[linux/amd64 wheel 2/5] RUN ...".
INSTRUCTION = re.compile(r"\[(?:(?P<stage>[^\]]*?) )?(?P<index>\d{1,9})/(?P<count>\d{1,9})\] (?P<text>.*)")
# Terminal control sequences, and all control characters except tab, in the output of a build step.
CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\x00-\x08\x0a-\x1f\x7f]")
UNNAMED_STAGE = "image"
TAIL_LINES = 20
# Progress shows an instruction on one line of at most this width, without its mounts.
MOUNTS = re.compile(r"--mount=\S+\s*")
WIDTH = 60


@dataclass(frozen=True, kw_only=True)
class Event:
    """`kind`: "start" (title in `text`), "output", "done" (after `seconds`), "cached", "canceled", "error".

    Or "text", which belongs to no step.
    """

    kind: str
    step: int
    text: str
    seconds: float = 0.0


def parse(line: str) -> Event | None:
    """Return the event of one line; None for a line without information (blank, a digest, a switch between steps)."""
    line = CONTROL.sub("", _last_state(line)).rstrip()
    match = LINE.fullmatch(line)
    if match is None:
        # Skip rules, and the title above the last lines of a failed step, which BuildKit repeats.
        return None if not line.strip("- ") or line.startswith(" > [") else Event(kind="text", step=0, text=line)
    step, rest = int(match["step"]), match["rest"].strip()
    if not rest or rest == "..." or rest.startswith("sha256:"):
        return None
    if ended := ENDED.fullmatch(rest):
        kind = next(name for name, value in ended.groupdict().items() if value is not None)
        return Event(kind=kind, step=step, text=ended["error"] or "", seconds=float(ended["done"] or 0))
    if timed := TIMED.fullmatch(rest):
        return Event(kind="output", step=step, text=timed["text"])
    kind = "start" if rest.startswith(("[", "exporting")) else "output"
    return Event(kind=kind, step=step, text=rest)


def _last_state(line: str) -> str:
    """Return what a terminal shows of a line that a progress bar redrew by carriage returns, with BuildKit's prefix."""
    head, *redrawn = line.rstrip("\r\n").split("\r")
    if not (states := [part for part in redrawn if part.strip()]):
        return head
    prefix = re.match(r"#\d+ \d+\.\d+ ", head)
    return (prefix[0] if prefix else "") + states[-1]


class Tail:
    """The last lines that explain a failure: the output of the failed steps, then the client's last line."""

    def __init__(self) -> None:
        self._output: dict[int, deque[str]] = {}
        self._failed: list[int] = []
        self._text: deque[str] = deque(maxlen=TAIL_LINES)

    def add(self, event: Event) -> None:
        """Remember what may explain a failure."""
        if event.kind == "output":
            self._output.setdefault(event.step, deque(maxlen=TAIL_LINES)).append(event.text)
        elif event.kind == "error":
            self._failed.append(event.step)
        elif event.kind in ("done", "cached"):
            self._output.pop(event.step, None)
        elif event.kind == "text":
            self._text.append(event.text)

    def lines(self) -> list[str]:
        """Return the lines to print of a build that failed."""
        printed = [line for step in self._failed for line in self._output.get(step, ()) if line.strip()]
        texts = list(self._text)[-1:] if printed else list(self._text)
        return [*printed[-TAIL_LINES:], *texts]


class LogWatch(Protocol):
    """Takes each line that a step prints, and returns what to show ("": the line itself); `share`: the part done."""

    share: float | None

    def __call__(self, line: str) -> str: ...


def show(step: Step, line: str, watch: LogWatch | None) -> None:
    """Show a line that a step prints, or what its watch makes of it."""
    if watch and (detail := watch(line)):
        # Only for the stage that printed it: the stages after a compile have not come as far.
        step.detail, step.share = detail, watch.share
    elif step.share is None:
        # A compiler's warnings do not replace the progress of the compile.
        step.detail = line


class Stages:
    """Shows BuildKit's events in `progress`: one step per stage, not one per instruction."""

    def __init__(self, progress: Progress, watch: LogWatch | None = None) -> None:
        self._progress = progress
        self._watch = watch
        self._titles: dict[int, str] = {}
        self._running: dict[str, Step] = {}
        # A stage's time is the sum of its instructions' times: BuildKit prints parallel stages one after the other.
        self._seconds: dict[str, float] = {}
        self._finished: set[str] = set()

    def add(self, event: Event) -> None:
        """Show what the event changes."""
        if event.kind == "start":
            self._titles[event.step] = event.text
        stage, detail, last = parse_title(self._titles.get(event.step, ""))
        if not stage or stage in self._finished:
            return
        if stage not in self._running:
            self._running[stage] = self._progress.start(f"build: {stage}")
        step = self._running[stage]
        if event.kind == "start":
            step.detail = detail
        elif event.kind == "output" and event.text:
            show(step, event.text, self._watch)
        elif event.kind in ("error", "canceled"):
            self._end(stage, "failed" if event.kind == "error" else "canceled")
        elif event.kind in ("done", "cached"):
            if event.kind == "done":
                self._seconds[stage] = self._seconds.get(stage, 0.0) + event.seconds
            # The next instruction may have to wait for another stage.
            step.detail = ""
            if last:
                self._end(stage, "done" if stage in self._seconds else "cached")

    def _end(self, stage: str, outcome: str) -> None:
        step = self._running.pop(stage)
        self._finished.add(stage)
        seconds = self._seconds.get(stage, 0.0)
        self._progress.finish(step, outcome, seconds if outcome in ("done", "cached") else None)

    def end(self, outcome: str) -> None:
        """End the stages that still run."""
        for stage in list(self._running):
            self._end(stage, outcome)


def parse_title(title: str) -> tuple[str, str, bool]:
    """Return a step's stage, what it does, and whether it is the stage's last; BuildKit's internal steps have no stage.

    A FROM step belongs to "base", which all stages share: in concurrent builds, BuildKit gives it the name of another
    build's stage.
    """
    if title.startswith("exporting"):
        return "export", "", True
    match = INSTRUCTION.fullmatch(title)
    if match is None:
        return "", "", False
    if match["text"].startswith("FROM "):
        return "base", match["text"], True
    stage = (match["stage"] or "").split(" ")[-1] or UNNAMED_STAGE
    text = textwrap.shorten(MOUNTS.sub("", match["text"]), WIDTH, placeholder=" ...")
    return stage, f"{match['index']}/{match['count']} {text}", int(match["index"]) == int(match["count"])
