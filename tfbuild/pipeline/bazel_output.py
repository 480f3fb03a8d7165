"""What Bazel says while it compiles: how far it is, how long it will take, and why it died."""

import re
import time
from collections import deque
from collections.abc import Callable

from tfbuild.util.progress import duration

# "[1,234 / 20,345] 8 actions running", with "[Prepa]" or "(12:34:56)" around in some versions.
COUNT = re.compile(r"\[(?P<done>[\d,]+) / (?P<total>[\d,]+)\]\s*(?P<rest>.*)")
KILLED = re.compile(
    r"Killed signal terminated program|unable to execute command: Killed|clang frontend command failed due to signal"
    r"|Server terminated abruptly|java\.lang\.OutOfMemoryError|collect2: fatal error: ld terminated with signal 9"
)
TIME_LIMIT = "tfbuild: the time limit is reached"
# What compile.sh and Bazel say where a remote cache or executor cannot be spoken to.
NO_REMOTE = re.compile(
    r"tfbuild: the remote (cache|executor) .* does not answer|Failed to query remote execution capabilities"
    r"|StatusRuntimeException: (UNAUTHENTICATED|PERMISSION_DENIED)"
)
ALONE = "tfbuild: going on without it"
# The first that any build says, beside the start of its server.
BEGINS = ("Loading:", "Computing main repo mapping", "Analyzing:", "INFO: Analyzed")
# What archives.py says of a file that is not the one that the tree wants.
REFUSED = "tfbuild: note: not taken from the mirror"
PROCESSES = re.compile(r"INFO: (?P<what>\d[\d,]* process(?:es)?: .*)")
# The rate of the last minutes: a build begins with what is cached, and ends with long links.
WINDOW_SECONDS = 300.0
LEAST_SECONDS = 10.0


class BazelWatch:
    """Takes a compile's output line by line, and gives for each what to show of it ("": nothing new).

    `share`: how much of the compile is done, 0 to 1, as far as Bazel knows its actions by now.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.began = False
        self.killed = False
        self.out_of_time = False
        self.no_remote = False
        self.alone = False
        self.summary = ""
        self.refused: list[str] = []
        self.share: float | None = None
        self._clock = clock
        self._seen: deque[tuple[float, int]] = deque()

    def __call__(self, line: str) -> str:
        self.killed = self.killed or KILLED.search(line) is not None
        self.out_of_time = self.out_of_time or line.startswith(TIME_LIMIT)
        self.began = self.began or line.startswith(BEGINS)
        self.no_remote = self.no_remote or NO_REMOTE.search(line) is not None
        if line.startswith(ALONE):
            self.no_remote, self.alone = False, True
        if line.startswith(REFUSED):
            self.refused.append(line.removeprefix("tfbuild: note: "))
        if done := PROCESSES.match(line):
            self.summary = done["what"]
        found = COUNT.search(line)
        if found is None:
            return ""
        return self._progress(number(found["done"]), number(found["total"]), found["rest"])

    def _progress(self, done: int, total: int, rest: str) -> str:
        now = self._clock()
        self._seen.append((now, done))
        while now - self._seen[0][0] > WINDOW_SECONDS:
            self._seen.popleft()
        self.share = min(1.0, done / total) if total else None
        shown = f"{done:,} / {total:,} actions" + (f", {100 * done // total} %" if total else "")
        if left := self._left(done, total):
            shown += f", about {duration(left)} left"
        return f"{shown}: {rest}" if rest else shown

    def _left(self, done: int, total: int) -> float:
        """Seconds until the end at the present rate, 0 where that is not known yet. The total still grows early on."""
        (first, before), (last, _) = self._seen[0], self._seen[-1]
        if last - first < LEAST_SECONDS or done <= before:
            return 0.0
        return (total - done) * (last - first) / (done - before)


def number(text: str) -> int:
    return int(text.replace(",", ""))
