"""sitting.py begin FILE | watch FILE PROFILE WHEEL FOLDER... | end FILE LOG PROFILE WHY: what a run of a compile cost.

A compile can take several runs, each stopped by a time limit or a fault and resumed from Bazel's cache. FILE is in that
cache, and has a line of JSON for each run. CPU time and memory are those of this step's cgroup (v1 or v2), which
includes Bazel's server and all compilers; without a container it may be the whole machine's. `watch` updates the last
line every few seconds, so that a run that is killed leaves its record up to then. It records each stage too: the
analysis ends where Bazel begins the PROFILE, the compile where the folder WHEEL is made. A stage's disk is what the
FOLDERs take at its end.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time

SAMPLE_SECONDS = 5
SLOWEST = 10
# Bazel's trace has an event a line; a run that was killed leaves half of one.
ACTION = re.compile(rb'"cat":"action processing","name":("(?:[^"\\]|\\.)*").*?"dur":(\d{1,18})')
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


def used():
    """Return this cgroup's CPU seconds so far, and the bytes that its processes hold without the page cache; or 0."""
    usage = read(group("cpuacct") + "/cpuacct.usage")
    found = re.search(rb"^usage_usec (\d+)$", read(group("") + "/cpu.stat"), re.MULTILINE)
    memory = read(group("memory") + "/memory.stat") or read(group("") + "/memory.stat")
    held = re.search(rb"^(?:total_rss|anon) (\d+)$", memory, re.MULTILINE)
    return int(usage) / 1e9 if usage else int(found[1]) / 1e6 if found else 0, int(held[1]) if held else 0


def disk_bytes(folders):
    """Return what the files in the folders take; one with several names counts once."""
    total = subprocess.run(["du", "-skc", *folders], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout.split()
    return int(total[-2]) << 10


def number(text):
    return int(text.replace(b",", b""))


def counts_in(log):
    """Return what Bazel's log says of its actions, and of the processes: those that ran or that a cache answered."""
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
    write(path, before + newline + json.dumps(dict(json.loads(last), **more)).encode() + b"\n")


def watch(path, profile, wheel, *folders):
    """Sample until SIGTERM, and once more then, which ends the last stage."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    # Monotonic: the wall clock may be set meanwhile.
    stages, name, last, pause, ends = {}, "", (time.monotonic(), used()[0]), 0, None
    while not ends:
        ends, pause = signal.sigtimedwait([signal.SIGTERM], pause), SAMPLE_SECONDS
        before = name
        name = "packing" if os.path.isdir(wheel) else "compile" if os.path.exists(profile) else "analysis"
        if before not in ("", name):
            stages[before]["disk_bytes"] = disk_bytes(folders)
        row = stages.setdefault(name, {"seconds": 0, "cpu_seconds": 0, "peak_bytes": 0})
        now, (cpu, held) = time.monotonic(), used()
        row["seconds"], row["cpu_seconds"] = row["seconds"] + now - last[0], row["cpu_seconds"] + cpu - last[1]
        row["peak_bytes"], last = max(row["peak_bytes"], held), (now, cpu)
        if ends:
            row["disk_bytes"] = disk_bytes(folders)
        took = {key: round(sum(each[key] for each in stages.values()), 1) for key in ("seconds", "cpu_seconds")}
        peak = max(each["peak_bytes"] for each in stages.values())
        update(path, seen=int(time.time()), peak_bytes=peak, stages=stages, **took)


def end(path, log, profile, why):
    longest = sorted(((int(time), name) for name, time in ACTION.findall(read(profile))), reverse=True)[:SLOWEST]
    slowest = [[round(microseconds / 1e6, 1), json.loads(name)] for microseconds, name in longest]
    update(path, ended=int(time.time()), why=why, slowest=slowest, **counts_in(log))


{"begin": begin, "watch": watch, "end": end}[sys.argv[1]](*sys.argv[2:])
