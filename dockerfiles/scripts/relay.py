"""relay.py LOG: what Bazel prints goes into LOG, all of it, and to stdout as much of it as a builder's log takes.

BuildKit cuts a step's output at 200 KiB a second and at 2 MiB (1 MiB by some versions), and what comes after, which
says how the step ended, is lost. Here what tells least goes first, and the last lines always arrive.
"""

import collections
import re
import sys
import time

# Bytes: of all lines, of those that tell of trouble besides, and of any within a second.
ANY, TROUBLE, SECOND = 400 << 10, 800 << 10, 64 << 10
PROGRESS = re.compile(rb"(\(.*\) )?\[[\d,]+ / [\d,]+\]")
PROGRESS_SECONDS = 60
TELLING = re.compile(rb"ERROR|FAILED|[Ee]rror|Killed|terminated|INFO: \d|INFO: Elapsed")
LAST = 15


def main(path):
    passed = left_out = burst = 0
    second, progressed = 0, -PROGRESS_SECONDS
    last = collections.deque(maxlen=LAST)
    with open(path, "ab") as log:
        for line in sys.stdin.buffer:
            log.write(line)
            log.flush()
            now = time.monotonic()
            second, burst = int(now), burst if int(now) == second else 0
            telling = TELLING.search(line)
            if PROGRESS.match(line):
                fits = passed < ANY or (now - progressed >= PROGRESS_SECONDS and passed < 2 * TROUBLE)
                progressed = now if fits else progressed
            else:
                fits = passed < (TROUBLE if telling else ANY)
            fits = fits and burst + len(line) <= (SECOND if telling else SECOND // 2)
            if fits:
                passed, burst = passed + len(line), burst + len(line)
                show(line)
            left_out += not fits
            last.append((fits, line))
    if left_out:
        show(b"tfbuild: %d lines are in Bazel's own log alone\n" % left_out)
        # In one piece: what was let through and what was not explain each other.
        for _, line in last if not all(fits for fits, _ in last) else ():
            show(line[:2000].rstrip(b"\n") + b"\n")


def show(line):
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


main(sys.argv[1])
