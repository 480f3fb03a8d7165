"""sitting.py begin FILE | watch FILE | end FILE LOG PROFILE WHY: what a run of a compile cost, as JSON in FILE.

A compile can take several sittings, each stopped by a time limit or a fault and resumed from Bazel's cache: FILE is in
that cache, and has a line for each. CPU time and memory are those of this step's cgroup (v1 or v2), so that Bazel's
server and all compilers count. `watch` writes both into the last line every few seconds, and when it was: whatever
kills a sitting leaves that much of it.
"""

import json
import os
import re
import sys
import time

SAMPLE_SECONDS = 5
SLOWEST = 10
COUNT = re.compile(rb"\[(\d[\d,]{,20}) / (\d[\d,]{,20})\]")
PROCESSES = re.compile(rb"^INFO: (\d[\d,]{,20}) process(?:es)?(?:: (.*?))?\.?$", re.MULTILINE)
HITS = re.compile(rb"(\d[\d,]{,20}) (?:remote|disk) cache hit")


def read(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def cpu_seconds():
    """Of everything in this step so far, None where there is no cgroup to ask."""
    usage = read("/sys/fs/cgroup/cpuacct/cpuacct.usage")
    if usage:
        return round(int(usage) / 1e9, 1)
    found = re.search(rb"^usage_usec (\d+)$", read("/sys/fs/cgroup/cpu.stat"), re.MULTILINE)
    return round(int(found.group(1)) / 1e6, 1) if found else None


def memory():
    """Bytes that processes hold now, without files that the kernel merely keeps; 0 where that is not known."""
    for path, name in (("memory/memory.stat", b"total_rss"), ("memory.stat", b"anon")):
        found = re.search(rb"^" + name + rb" (\d+)$", read("/sys/fs/cgroup/" + path), re.MULTILINE)
        if found:
            return int(found.group(1))
    return 0


def number(text):
    return int(text.replace(b",", b""))


def told(log):
    """What Bazel's log says: actions done and known, and of its processes how many were taken from a cache."""
    text = read(log)
    counts = [(number(done), number(total)) for done, total in COUNT.findall(text)]
    done, total = counts[-1] if counts else (0, 0)
    summary = [(b"0", b""), *PROCESSES.findall(text)][-1]
    hits = HITS.search(summary[1])
    return {
        "actions_done": done,
        "actions_total": total,
        "processes": number(summary[0]),
        "from_cache": number(hits.group(1)) if hits else 0,
    }


def write(path, content):
    with open(path + ".part", "wb") as file:
        file.write(content)
    # Renamed: a sitting that is killed meanwhile loses nothing of the earlier ones.
    os.replace(path + ".part", path)


def whole(line):
    """Whether it is a line that this script wrote: a power failure may leave half of one."""
    try:
        return line.endswith(b"\n") and isinstance(json.loads(line), dict)
    except ValueError:
        return False


def begin(path):
    before = b"".join(line for line in read(path).splitlines(True) if whole(line))
    write(path, before + json.dumps({"began": int(time.time())}).encode() + b"\n")


def update(path, **more):
    """Add to the last line."""
    before, newline, last = read(path).rstrip(b"\n").rpartition(b"\n")
    row = json.loads(last)
    row.update(more)
    write(path, before + newline + json.dumps(row).encode() + b"\n")


def watch(path):
    peak = 0
    while True:
        peak = max(peak, memory())
        update(path, seen=int(time.time()), cpu_seconds=cpu_seconds(), peak_bytes=peak)
        time.sleep(SAMPLE_SECONDS)


def slowest(profile):
    """The actions that took longest, with their seconds: Bazel's trace has an event a line."""
    actions = []
    for line in read(profile).decode(errors="replace").splitlines():
        try:
            event = json.loads(line.strip().rstrip(","))
        except ValueError:
            continue
        if isinstance(event, dict) and event.get("cat") == "action processing":
            actions.append([round(event.get("dur", 0) / 1e6, 1), str(event.get("name", ""))])
    return sorted(actions, reverse=True)[:SLOWEST]


def end(path, log, profile, why):
    update(path, ended=int(time.time()), why=why, cpu_seconds=cpu_seconds(), slowest=slowest(profile), **told(log))


{"begin": begin, "watch": watch, "end": end}[sys.argv[1]](*sys.argv[2:])
