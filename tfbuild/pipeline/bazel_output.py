"""Read Bazel's output during a compile: how far it is, how long it will take, and why it died."""

import re
import time
from collections import deque
from collections.abc import Callable

from tfbuild.util.progress import duration

# "[1,234 / 20,345] 8 actions running"; some versions add "[Prepa]" or "(12:34:56)".
COUNT = re.compile(r"\[(?P<done>\d[\d,]{,20}) / (?P<total>\d[\d,]{,20})\]\s*(?P<rest>.*)")
KILLED = re.compile(
    r"Killed signal terminated program|internal compiler error: Killed|unable to execute command: Killed"
    r"|clang frontend command failed due to signal|Server terminated abruptly|java\.lang\.OutOfMemoryError"
    r"|collect2: fatal error: ld terminated with signal 9"
)
TIME_LIMIT = "tfbuild: the time limit is reached"
# What compile.sh and Bazel print where a remote cache or executor cannot be reached.
NO_REMOTE = re.compile(
    r"tfbuild: the remote (cache|executor) .* does not answer|Failed to query remote execution capabilities"
    r"|StatusRuntimeException: (UNAUTHENTICATED|PERMISSION_DENIED)"
)
ALONE = "tfbuild: going on without it"
# The first lines of any build, after the start of Bazel's server.
BEGINS = ("Loading:", "Computing main repo mapping", "Analyzing:", "INFO: Analyzed")
# What archives.py prints of a file that is not the one that the tree requires.
REFUSED = "tfbuild: note: not taken from the mirror"
PROCESSES = re.compile(r"INFO: (?P<summary>\d[\d,]* process(?:es)?: .*)")
# Only the last minutes count for the rate: a build begins with cache hits and ends with long links.
WINDOW_SECONDS = 300.0
LEAST_SECONDS = 10.0


class BazelWatch:
    """Takes a compile's output line by line, and returns for each what to show ("": nothing new).

    `share`: the part of the compile that is done, 0 to 1, among the actions that Bazel knows so far.
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
        self._counts: deque[tuple[float, int]] = deque()

    def __call__(self, line: str) -> str:
        self.killed = self.killed or KILLED.search(line) is not None
        self.out_of_time = self.out_of_time or line.startswith(TIME_LIMIT)
        self.began = self.began or line.startswith(BEGINS)
        self.no_remote = self.no_remote or NO_REMOTE.search(line) is not None
        if line.startswith(ALONE):
            self.no_remote, self.alone = False, True
        if line.startswith(REFUSED):
            self.refused.append(line.removeprefix("tfbuild: note: "))
        if processes := PROCESSES.match(line):
            self.summary = processes["summary"]
        count = COUNT.search(line)
        if count is None:
            return ""
        return self._progress(number(count["done"]), number(count["total"]), count["rest"])

    def _progress(self, done: int, total: int, rest: str) -> str:
        now = self._clock()
        self._counts.append((now, done))
        while now - self._counts[0][0] > WINDOW_SECONDS:
            self._counts.popleft()
        self.share = min(1.0, done / total) if total else None
        text = f"{done:,} / {total:,} actions" + (f", {100 * done // total} %" if total else "")
        if left := self._left(done, total):
            text += f", about {duration(left)} left"
        return f"{text}: {rest}" if rest else text

    def _left(self, done: int, total: int) -> float:
        """Return the seconds left at the present rate, 0 where it is unknown. The total still grows early on."""
        (first, before), (last, _) = self._counts[0], self._counts[-1]
        if last - first < LEAST_SECONDS or done <= before:
            return 0.0
        return (total - done) * (last - first) / (done - before)


def number(text: str) -> int:
    return int(text.replace(",", ""))
