"""sitting.py begin FILE | watch FILE STAGE FOLDER... | end FILE LOG PROFILE WHY: what a run of a compile cost.

A compile can take several runs, each stopped by a time limit or a fault and resumed from Bazel's cache. FILE is in that
cache, and has a line of JSON for each run. CPU time and memory are those of this step's cgroup (v1 or v2), which
includes Bazel's server and all compilers. Without a container (TFBUILD_ROOT is set) the cgroup may be the whole
machine's; then they are those of compile.sh, of Bazel's server in one of the FOLDERs, and of their children. `watch`
updates the last line every few seconds, so that a run that is killed leaves its record up to then. The file STAGE names
the current stage (analysis, compile, packing); `watch` records each stage separately, with the disk that the
FOLDERs take at its end.
"""

import glob
import json
import os
import re
import signal
import sys
import time

SAMPLE_SECONDS = 5
SLOWEST = 10
# How Bazel marks an action for a program that runs during the build; older versions say host.
TOOL = ("[for tool]", "[for host]")
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
    """Return the CPU time of this cgroup so far, None if it cannot be read."""
    usage = read(group("cpuacct") + "/cpuacct.usage")
    if usage:
        return round(int(usage) / 1e9, 1)
    found = re.search(rb"^usage_usec (\d+)$", read(group("") + "/cpu.stat"), re.MULTILINE)
    return round(int(found.group(1)) / 1e6, 1) if found else None


def memory():
    """Return the bytes that processes hold now, without the page cache; 0 if unknown."""
    for controller, name in (("memory", b"total_rss"), ("", b"anon")):
        found = re.search(rb"^" + name + rb" (\d+)$", read(group(controller) + "/memory.stat"), re.MULTILINE)
        if found:
            return int(found.group(1))
    return 0


def processes(folders):
    """Return the numbers in /proc/PID/stat after the name, by PID, of compile.sh, Bazel's server and their children."""
    rows = {}
    for name in os.listdir("/proc"):
        numbers = read("/proc/" + name + "/stat").rpartition(b")")[2].split() if name.isdigit() else []
        if numbers:
            rows[int(name)] = numbers
    pids = {os.getppid()}
    for folder in folders:
        for file in glob.glob(glob.escape(folder) + "/*/server/server.pid.txt"):
            pids.add(int(read(file) or os.getppid()))  # empty while Bazel writes it
    found = pids & set(rows)
    while pids:
        pids = {pid for pid, numbers in rows.items() if int(numbers[1]) in pids} - found
        found |= pids
    return {pid: rows[pid] for pid in found}


def used(folders):
    """Return the CPU seconds so far and the bytes of memory now."""
    if not os.environ.get("TFBUILD_ROOT"):
        return cpu_seconds() or 0, memory()
    found = processes(folders)
    # Each process's own, and its ended children's.
    ticks = sum(int(part) for numbers in found.values() for part in numbers[11:15])
    texts = [read("/proc/" + str(pid) + "/status") for pid in found]
    held = [re.search(rb"^RssAnon:\s*(\d+) kB$", text, re.MULTILINE) for text in texts]
    return ticks / os.sysconf("SC_CLK_TCK"), sum(int(match.group(1)) << 10 for match in held if match)


def number(text):
    return int(text.replace(b",", b""))


def counts_in(log):
    """Return what Bazel's log says: actions done and in all, processes, and how many of these came from a cache.

    Processes are those that ran and those that a cache answered.
    """
    text = read(log)
    counts = [(number(done), number(total)) for done, total in COUNT.findall(text)]
    done, total = counts[-1] if counts else (0, 0)
    summary = [(b"0", b""), *PROCESSES.findall(text)][-1]
    internal, hits = (sum(map(number, kind.findall(summary[1]))) for kind in (INTERNAL, HITS))
    return {
        "actions_done": done,
        "actions_total": total,
        "processes": number(summary[0]) - internal,
        "from_cache": hits,
    }


def write(path, content):
    with open(path + ".part", "wb") as file:
        file.write(content)
    # Renamed into place: a run that is killed meanwhile loses no earlier record.
    os.replace(path + ".part", path)


def whole(line):
    """Return whether the line is intact: a power failure may leave half of one."""
    try:
        return line.endswith(b"\n") and isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def begin(path):
    lines = read(path).splitlines(True)
    good = [line for line in lines if whole(line)]
    if len(good) < len(lines):
        print(f"tfbuild: note: {path} was damaged: {len(good)} of {len(lines)} lines are kept")
    write(path, b"".join(good) + json.dumps({"began": int(time.time())}).encode() + b"\n")


def update(path, **more):
    """Add to the last line's object."""
    before, newline, last = read(path).rstrip(b"\n").rpartition(b"\n")
    row = json.loads(last)
    row.update(more)
    write(path, before + newline + json.dumps(row).encode() + b"\n")


def disk_bytes(folders):
    """Return what the files in the folders take on disk; a file with several names counts once."""
    sizes = {}
    for folder in folders:
        for top, _, names in os.walk(folder):
            for name in names:
                try:
                    status = os.lstat(os.path.join(top, name))
                except OSError:  # Bazel has removed it meanwhile
                    continue
                sizes[status.st_dev, status.st_ino] = status.st_blocks * 512
    return sum(sizes.values())


def watch(path, stage, *folders):
    """Sample until SIGTERM, and once more then, which ends the last stage."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    # Monotonic: the wall clock may be set meanwhile.
    stages, name, first, cpu = {}, "", time.monotonic(), used(folders)[0]
    last, spent, ends = first, 0, None
    while not ends:
        ends = signal.sigtimedwait([signal.SIGTERM], SAMPLE_SECONDS if stages else 0)
        # Empty while the shell writes it.
        ended, name = name, read(stage).decode().strip() or name
        if ended and name != ended:
            stages[ended]["disk_bytes"] = disk_bytes(folders)
        row = stages.setdefault(name, {"seconds": 0, "cpu_seconds": 0, "peak_bytes": 0})
        now, (total, held) = time.monotonic(), used(folders)
        # The total shrinks when a Bazel server ends.
        more = max(0, total - cpu)
        row["seconds"] = round(row["seconds"] + now - last, 1)
        row["cpu_seconds"] = round(row["cpu_seconds"] + more, 1)
        row["peak_bytes"] = max(row["peak_bytes"], held)
        last, cpu, spent = now, total, spent + more
        peak = max(each["peak_bytes"] for each in stages.values())
        took = {"seconds": round(now - first), "cpu_seconds": round(spent, 1)}
        update(path, seen=int(time.time()), peak_bytes=peak, stages=stages, **took)
    stages[name]["disk_bytes"] = disk_bytes(folders)
    update(path, stages=stages)


def profiled(profile):
    """Return the seconds of all actions, those of host tools, and the longest ones. Bazel's trace has one per line."""
    actions = []
    for line in read(profile).decode(errors="replace").splitlines():
        try:
            event = json.loads(line.strip().rstrip(","))
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict) and event.get("cat") == "action processing":
            actions.append([round(event.get("dur", 0) / 1e6, 1), str(event.get("name", ""))])
    return {
        "action_seconds": round(sum(seconds for seconds, _ in actions)),
        "tool_seconds": round(sum(seconds for seconds, name in actions if name.endswith(TOOL))),
        "slowest": sorted(actions, reverse=True)[:SLOWEST],
    }


def end(path, log, profile, why):
    update(path, ended=int(time.time()), why=why, **profiled(profile), **counts_in(log))


{"begin": begin, "watch": watch, "end": end}[sys.argv[1]](*sys.argv[2:])
