"""sitting.py begin FILE | watch FILE | end FILE LOG WHY: what a run of a compile cost.

A compile can take several runs, each stopped by a time limit or a fault and resumed from Bazel's cache. FILE is in that
cache, and has a line of JSON for each run. CPU time and memory are those of this step's cgroup (v1 or v2), which
includes Bazel's server and all compilers; without a container it may be the whole machine's. `watch` updates the last
line every few seconds, so that a run that is killed leaves its record up to then.
"""

import json
import os
import re
import signal
import sys
import time

SAMPLE_SECONDS = 5
COUNT = re.compile(rb"\[(\d[\d,]{,20}) / (\d[\d,]{,20})\]")
PROCESSES = re.compile(rb"^INFO: (\d[\d,]{,20}) process(?:es)?(?:: (.*?))?\.?$", re.MULTILINE)
HITS = re.compile(rb"(\d[\d,]{,20}) (?:remote|disk) cache hit")
# Bazel counts what it does itself, such as symlinks, which no cache holds.
INTERNAL = re.compile(rb"(\d[\d,]{,20}) internal")


def read(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def group(controller):
    """Return the folder of this process's cgroup ("": version 2). In a container that is the top one."""
    top = "/sys/fs/cgroup/" + controller
    for line in read("/proc/self/cgroup").decode().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(",") and os.path.isdir(top + path):
            return top + path
    return top


def cpu_seconds():
    """Return the CPU time of this cgroup so far, 0 if it cannot be read."""
    usage = read(group("cpuacct") + "/cpuacct.usage")
    if usage:
        return int(usage) / 1e9
    found = re.search(rb"^usage_usec (\d+)$", read(group("") + "/cpu.stat"), re.MULTILINE)
    return int(found.group(1)) / 1e6 if found else 0


def memory():
    """Return the bytes that processes hold now, without the page cache; 0 if unknown."""
    for controller, name in (("memory", b"total_rss"), ("", b"anon")):
        found = re.search(rb"^" + name + rb" (\d+)$", read(group(controller) + "/memory.stat"), re.MULTILINE)
        if found:
            return int(found.group(1))
    return 0


def number(text):
    return int(text.replace(b",", b""))


def counts_in(log):
    """Return what Bazel's log says: actions done and in all, processes, and how many of these came from a cache.

    Processes are those that ran and those that a cache answered.
    """
    text = read(log)
    done, total = [(b"0", b"0"), *COUNT.findall(text)][-1]
    summary = [(b"0", b""), *PROCESSES.findall(text)][-1]
    internal, hits = (sum(map(number, kind.findall(summary[1]))) for kind in (INTERNAL, HITS))
    return {
        "actions_done": number(done),
        "actions_total": number(total),
        "processes": number(summary[0]) - internal,
        "from_cache": hits,
    }


def write(path, content):
    with open(path + ".part", "wb") as file:
        file.write(content)
    # Renamed into place: a run that is killed meanwhile loses no earlier record.
    os.replace(path + ".part", path)


def begin(path):
    # A power failure may have left half of a line.
    rows = [*read(path).splitlines(), json.dumps({"began": int(time.time())}).encode()]
    write(path, b"\n".join(rows) + b"\n")


def update(path, **more):
    """Add to the last line's object."""
    before, newline, last = read(path).rstrip(b"\n").rpartition(b"\n")
    write(path, before + newline + json.dumps(json.loads(last) | more).encode() + b"\n")


def watch(path):
    """Sample until SIGTERM, and once more then."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    # Monotonic: the wall clock may be set meanwhile.
    first, cpu, peak, pause, ends = time.monotonic(), cpu_seconds(), 0, 0, None
    while not ends:
        ends, pause = signal.sigtimedwait([signal.SIGTERM], pause), SAMPLE_SECONDS
        peak = max(peak, memory())
        took = {"seconds": round(time.monotonic() - first), "cpu_seconds": round(cpu_seconds() - cpu, 1)}
        update(path, seen=int(time.time()), peak_bytes=peak, **took)


def end(path, log, why):
    update(path, ended=int(time.time()), why=why, **counts_in(log))


{"begin": begin, "watch": watch, "end": end}[sys.argv[1]](*sys.argv[2:])
