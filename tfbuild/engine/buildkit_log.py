"""Parse BuildKit's `--progress=plain` output into events. Recorded samples: tests/data/buildkit."""

import re
from collections import deque
from dataclasses import dataclass

LINE = re.compile(r"#(?P<step>\d{1,9}) (?P<rest>.*)")
TIMED = re.compile(r"(?P<seconds>\d+\.\d+) (?P<text>.*)")
ENDED = re.compile(r"(?:DONE (?P<done>\d+(?:\.\d+)?)s|(?P<cached>CACHED)|(?P<canceled>CANCELED)|ERROR: (?P<error>.*))$")
# "[wheel 2/5] RUN ...", "[2/5] RUN ..." and, where several platforms are built, "[linux/amd64 wheel 2/5] RUN ...".
INSTRUCTION = re.compile(r"\[(?:(?P<stage>[^\]]*?) )?(?P<index>\d{1,9})/(?P<count>\d{1,9})\] (?P<text>.*)")
# Terminal control sequences, and all control characters except tab, in the output of a build step.
CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\x00-\x08\x0a-\x1f\x7f]")
UNNAMED_STAGE = "image"
TAIL_LINES = 20


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """One line of a Dockerfile: the `index`-th of the `count` in its stage."""

    stage: str
    index: int
    count: int
    text: str


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


def instruction(title: str) -> Instruction | None:
    """Return the Dockerfile instruction that a step's title names; None for BuildKit's internal steps."""
    match = INSTRUCTION.fullmatch(title)
    if match is None:
        return None
    stage = (match["stage"] or "").split(" ")[-1] or UNNAMED_STAGE
    return Instruction(stage=stage, index=int(match["index"]), count=int(match["count"]), text=match["text"])


class Tail:
    """The last lines that explain a failure: the output of the failed steps, then the client's last line."""

    def __init__(self) -> None:
        self._output: dict[int, deque[str]] = {}
        self._failed: list[int] = []
        self._text: deque[str] = deque(maxlen=TAIL_LINES)

    def add(self, event: Event) -> None:
        if event.kind == "output":
            self._output.setdefault(event.step, deque(maxlen=TAIL_LINES)).append(event.text)
        elif event.kind == "error":
            self._failed.append(event.step)
        elif event.kind in ("done", "cached"):
            self._output.pop(event.step, None)
        elif event.kind == "text":
            self._text.append(event.text)

    def lines(self) -> list[str]:
        printed = [line for step in self._failed for line in self._output.get(step, ()) if line.strip()]
        texts = list(self._text)[-1:] if printed else list(self._text)
        return [*printed[-TAIL_LINES:], *texts]
