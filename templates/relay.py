"""relay.py LOG: copies stdin to LOG, and to stdout as much of it as BuildKit keeps of a step's output.

BuildKit cuts that at 200 KiB a second and at 2 MiB (some versions at 1 MiB), and then loses the end, which says how the
step ended. This drops the least useful lines first, and always passes on the last ones.
"""

import collections
import contextlib
import re
import sys
import time

# Limits in bytes: for ordinary lines, for lines about errors, and for a second.
ANY, TROUBLE, SECOND = 400 << 10, 800 << 10, 64 << 10
PROGRESS = re.compile(rb"(\(.*\) )?\[[\d,]+ / [\d,]+\]")
PROGRESS_SECONDS = 60
TELLING = re.compile(rb"ERROR|FAILED|[Ee]rror|Killed|terminated|out of memory|exhausted|INFO: \d|INFO: Elapsed")
LAST = 15


def main(path):
    passed = left_out = burst = 0
    second, progressed = 0, -PROGRESS_SECONDS
    last = collections.deque(maxlen=LAST)
    with open(path, "ab", 0) as log:
        for line in sys.stdin.buffer:
            # On a full disk, the step goes on to say so.
            with contextlib.suppress(OSError):
                log.write(line)
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
        # All of the last lines, including those already shown: they explain each other.
        for _, line in last if not all(fits for fits, _ in last) else ():
            show(line[:2000].rstrip(b"\n") + b"\n")


def show(line):
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


main(sys.argv[1])
