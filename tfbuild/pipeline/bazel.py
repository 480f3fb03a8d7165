"""What Bazel says of a compile as it runs. Recorded samples: tests/data/bazel."""

import re
import time
from collections import deque
from collections.abc import Callable
from itertools import pairwise
from statistics import mean, median

from tfbuild.engine.build import NO_SPACE
from tfbuild.util.progress import Step, duration

# "[1,234 / 20,345] 8 actions running"; some versions add "[Prepa]" or "(12:34:56)".
ACTION_COUNT = re.compile(r"\[(?P<done>\d[\d,]{,20}) / (?P<total>\d[\d,]{,20})\]\s*(?P<rest>.*)")
KILLED = re.compile(
    r"Killed signal terminated program|internal compiler error: Killed|unable to execute command: Killed"
    r"|Cannot allocate memory|memory exhausted|(?:LLVM ERROR|cc1\w*|ld[\w.]*): out of memory|died due to signal 9"
    r"|Server terminated abruptly|java\.lang\.OutOfMemoryError"
    r"|collect2: fatal error: ld terminated with signal 9|failed:? \((Killed|Exit 137)\)"
)
# An action that failed, and a program's error in its output. With --keep_going, Bazel goes on, perhaps for hours.
FAILED = re.compile(r"ERROR: .* failed:? \(")
CAUSE = re.compile(r"\berror: |: undefined reference to |^\w*Error: ")
TIME_LIMIT = "tfbuild: the time limit is reached"
# What compile.sh and Bazel print where a remote cache or executor cannot be reached.
NO_REMOTE = re.compile(
    r"tfbuild: the remote (cache|executor) .* does not answer|Failed to query remote execution capabilities"
    r"|StatusRuntimeException: (UNAUTHENTICATED|PERMISSION_DENIED)"
)
# What compile.sh prints of an executor that answers and yet compiles nothing, and why.
NO_USE = "tfbuild: the remote executor is of no use: "
ALONE = "tfbuild: going on without it"
# What bolt.py does, once all is compiled.
BOLT = "tfbuild: bolt: "
# The first lines of any build, after the start of Bazel's server.
FIRST_LINES = ("Loading:", "Computing main repo mapping", "Analyzing:", "INFO: Analyzed")
PROCESSES = re.compile(r"INFO: (?P<summary>\d[\d,]* process(?:es)?: .*)")
# How many actions end in a minute differs a hundredfold: many are Bazel's own or come from a cache, and oneDNN's
# kernels are slow. So the rate is the mean of half an hour, in which no minute counts for more than three times the
# usual one of the last five: after what a cache had, the rest is slower.
MINUTE = 60.0
WINDOW_MINUTES, LATEST_MINUTES, MOST_TIMES = 30, 5, 3
# A build begins with its short actions: 2.14.1's compile, of many hours, had "57 minutes left" after ten.
LEAST_MINUTES = 15


class BazelWatch:
    """Takes a compile's output line by line, and returns for each what to show ("": nothing new).

    `counted`: the step in which Bazel counts its actions, None before; `failed`: how many of them failed; `first`: what
    Bazel says of the first of these, and its error, which a compiler's notes may push out of the last lines.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.began = False
        self.killed = False
        self.full = False
        self.failed = 0
        self.first: list[str] = []
        self.out_of_time = False
        self.no_remote = False
        self.no_use = ""
        self.alone = False
        self.summary = ""
        self.counted: Step | None = None
        self._clock = clock
        self._counts: deque[tuple[float, int]] = deque(maxlen=WINDOW_MINUTES + 1)

    def __call__(self, line: str) -> str:
        self.killed = self.killed or KILLED.search(line) is not None
        # What only its cache could not store is a warning of Bazel's.
        self.full = self.full or (NO_SPACE.search(line) is not None and not line.startswith("WARNING: "))
        failed = FAILED.match(line)
        self.failed += failed is not None
        if len(self.first) < 2 and (CAUSE.search(line) if self.first else failed):
            self.first.append(line[:300])  # the rest is its command line
        self.out_of_time = self.out_of_time or line.startswith(TIME_LIMIT)
        self.began = self.began or line.startswith(FIRST_LINES)
        self.no_remote = self.no_remote or NO_REMOTE.search(line) is not None
        if line.startswith(NO_USE):
            self.no_use = line.removeprefix(NO_USE)
        if line.startswith(ALONE):
            self.no_remote, self.alone = False, True
        if processes := PROCESSES.match(line):
            self.summary = processes["summary"]
        count = ACTION_COUNT.search(line)
        if count is None:
            return ""
        done, total = (int(count[name].replace(",", "")) for name in ("done", "total"))
        return self._progress(done, total, count["rest"])

    def show(self, step: Step, line: str) -> None:
        """Show in `step` how far the compile is; until Bazel says that, its last line."""
        if detail := self(line):
            step.detail, self.counted = detail, step
        elif line.startswith(BOLT) or step is not self.counted:
            # A compiler's warnings do not replace the progress of the compile.
            step.detail = line.removeprefix("tfbuild: ")

    def _progress(self, done: int, total: int, rest: str) -> str:
        now = self._clock()
        if not self._counts or now - self._counts[-1][0] >= MINUTE:
            self._counts.append((now, done))
        text = f"{done:,} / {total:,} actions" + (f", {100 * done // total} %" if total else "")
        if self.failed:
            text += f", {self.failed} failed"
        if left := self._left(done, total):
            text += f", about {duration(left)} left"
        return f"{text}: {rest}" if rest else text

    def _left(self, done: int, total: int) -> float:
        """Return the seconds left at the usual rate, 0 where it is not known yet. The total still grows early on."""
        rates = [(last - first) / (end - begin) for (begin, first), (end, last) in pairwise(self._counts)]
        if len(rates) < LEAST_MINUTES:
            return 0.0
        most = MOST_TIMES * median(rates[-LATEST_MINUTES:])
        # Without a remote cache that it lost, Bazel counts from 0 again.
        usual = mean(max(0.0, min(rate, most)) for rate in rates)
        return (total - done) / usual if usual else 0.0
