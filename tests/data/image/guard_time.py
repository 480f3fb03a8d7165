"""Prints what the entry point adds to /bin/true: the median over pairs, in milliseconds of CPU time."""

import resource
import statistics
import subprocess


def used() -> float:
    """Of all processes that this one has started and that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def milliseconds(*command: str) -> float:
    start = used()
    subprocess.run(command, check=True)
    return (used() - start) * 1e3


GUARD = "/usr/local/bin/tfbuild-entrypoint"
print(statistics.median(milliseconds(GUARD, "/bin/true") - milliseconds("/bin/true") for _ in range(40)))
