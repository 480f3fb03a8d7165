"""How much faster a compile is on clusters of 1, 2 and 4 workers, compared with what benchmarks.workers predicts.

    .venv/bin/python -m benchmarks.scale --image IMAGE --profile FILE [--actions FILE --target TARGET] -- COMMAND ...

`--image` is what `invoke worker-image` made. For each number of workers, a cluster of tests/with_engine/cluster.py
starts with empty stores; each worker is a container that runs one action at a time, on a quarter of a processor
(`--options`: of its `docker run`). COMMAND compiles. In its words and in those of `--profile` (where it leaves Bazel's
profile), `{executor}` becomes the scheduler's URL, `{workers}` the number of workers, `{jobs}` twice that, and `{run}`
another word each time. It must compile everything again: `{run}` may be a platform property's value, such as `run`'s.

`seconds` go from the begin of the first action to the end of the last one, by the profile: without start, analysis and
packing. `efficiency`: the time of one worker over N times that of N. `bytes`: what the kernel counted on the
scheduler's connections, once a second; `stored`: the size of its store at the end. `throttled`: the share of periods in
which a worker wanted more than its quota; `cpu_seconds`: what all workers used.

The simulation has the times of the processes on one worker, from that run's profile (`{workers}` in `--profile` keeps
it), and adds the same to each, `overhead_seconds`: what makes the simulation of one worker as long as that run. So only
the other numbers are forecasts.

`--report` writes benchmarks/results/scale.json. Needs an engine on this machine, and `ss`.
"""

import argparse
import re
import shlex
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.action_graph import durations, read_graph, read_profile, read_text
from benchmarks.harness import record
from benchmarks.workers import TARGET, WORKERS, makespan, work_of
from tests.with_engine import cluster
from tests.with_engine.cluster import Cluster, docker
from tfbuild.engine import Engine
from tfbuild.pipeline import bazel

SUMMARY = re.compile(r"^(?:INFO|bazel): (\d[\d,]* process(?:es)?: .*)$", re.MULTILINE)
CONNECTION = re.compile(r"(?P<address>\S+:\d+) +(?P<peer>\S+:\d+)\b.*?(?:users:\(\(.*?pid=(?P<pid>\d+)|$)")
SENT, RECEIVED = re.compile(r"\bbytes_acked:(\d+)"), re.compile(r"\bbytes_received:(\d+)")
# Of a container's group, in version 2 and 1: their files have other names and units.
GROUP = "cd /sys/fs/cgroup; exec 2>&-; cat cpu.stat cpu/cpu.stat; sed 's/^/usage_nsec /' cpuacct/cpuacct.usage; :"


@dataclass
class Meter:
    """The bytes of all connections to a port of this machine, by the other side's address. A closed one is gone."""

    port: int
    workers: Sequence[str]
    counts: dict[str, tuple[int, int]] = field(default_factory=dict)
    of_workers: set[str] = field(default_factory=set)

    def sample(self) -> None:
        self.counts |= counted(ss("-i", f"sport = :{self.port}"))
        for match in CONNECTION.finditer(ss("-p", f"dport = :{self.port}")):
            if match["pid"] and self.is_worker(match["pid"]):
                self.of_workers.add(match["address"])

    def is_worker(self, pid: str) -> bool:
        with suppress(OSError):
            groups = Path("/proc", pid, "cgroup").read_text()
            return any(worker in groups for worker in self.workers)
        return False

    def bytes(self) -> dict[str, int]:
        """Return what the client and the workers sent to the scheduler and received from it."""
        total = {"client_sent": 0, "client_received": 0, "workers_sent": 0, "workers_received": 0}
        for address, (sent, received) in self.counts.items():
            side = "workers" if address in self.of_workers else "client"
            total[f"{side}_sent"] += received
            total[f"{side}_received"] += sent
        return total


def ss(*words: str) -> str:
    return subprocess.run(["ss", "-tnHO", *words], capture_output=True, text=True, check=True).stdout


def counted(text: str) -> dict[str, tuple[int, int]]:
    """Return the bytes that the server's side of each connection sent and received, by the other side's address."""
    rows = {}
    for line in text.splitlines():
        if match := CONNECTION.search(line):
            sent, received = (pattern.search(line) for pattern in (SENT, RECEIVED))
            rows[match["peer"]] = (int(sent[1]) if sent else 0, int(received[1]) if received else 0)
    return rows


def throttling(groups: Sequence[str]) -> dict[str, float]:
    """Return the share of throttled periods and the CPU time of the workers, by what GROUP printed in each."""
    sums = dict.fromkeys(("nr_periods", "nr_throttled", "usage_usec", "usage_nsec"), 0)
    for name, value in re.findall(r"^(\w+) (\d+)$", "\n".join(groups), re.MULTILINE):
        if name in sums:
            sums[name] += int(value)
    return {
        "throttled": round(sums["nr_throttled"] / sums["nr_periods"], 3) if sums["nr_periods"] else 0.0,
        "cpu_seconds": round(sums["usage_usec"] / 1e6 + sums["usage_nsec"] / 1e9, 1),
    }


def span(profile: Path) -> float:
    """Return the seconds between the begin of the first action and the end of the last."""
    events: Iterable[dict[str, Any]] = bazel.events(read_text(profile))
    rows = [(row["ts"], row["ts"] + row["dur"]) for row in events if row.get("cat") == bazel.ACTION and "dur" in row]
    return float(max(end for _, end in rows) - min(start for start, _ in rows)) / 1e6


def filled(word: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        word = word.replace(f"{{{name}}}", value)
    return word


def measure(made: Cluster, number: int, options: argparse.Namespace) -> dict[str, Any]:
    """Run the command on so many workers of a cluster that has none yet."""
    start = f"docker run {options.options}"
    for _ in range(number):
        made.add_worker(cluster.worker(options.image).replace("docker run", start).replace("$(nproc)", "1"))
    values = {"executor": made.server.url, "jobs": str(2 * number), "workers": str(number), "run": uuid.uuid4().hex}
    words, meter = [filled(word, values) for word in options.command], Meter(made.server.port, made.workers)
    with tempfile.TemporaryFile("w+") as log:
        run = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT)
        while run.poll() is None:
            time.sleep(1)
            meter.sample()
        log.seek(0)
        said = log.read()
    if run.returncode or not (summaries := SUMMARY.findall(said)):
        sys.exit(f"{shlex.join(words)}: exit code {run.returncode}\n{said[-4000:]}")
    remote, local = bazel.remote_share(summaries[-1])
    stored = sum(file.stat().st_size for file in (made.server.folder / "store").rglob("*") if file.is_file())
    return {
        "seconds": round(span(Path(filled(options.profile, values))), 1),
        "processes": {"all": bazel.number(summaries[-1].split()[0]), "remote": remote, "local": local},
        "bytes": meter.bytes() | {"stored": stored},
        **throttling([docker("exec", worker, "sh", "-c", GROUP) for worker in made.workers]),
    }


def simulation(actions: Path, target: str, profile: Path, seconds: float) -> dict[str, object]:
    """Return the same seconds from the action graph and the profile of one worker, which took so many seconds."""
    graph = read_graph(actions, target)
    times = durations(graph.actions, {}, read_profile(profile))
    sent = sum(not action.client for action in graph.actions)
    base = makespan(work_of(graph.needs, graph.actions, times, 0.0), 1)
    overhead = max(0.0, (seconds - base) / sent)
    work = work_of(graph.needs, graph.actions, times, overhead)
    remote = [time for time, action in zip(times.seconds, graph.actions, strict=True) if not action.client]
    return {
        "actions": {"workers": sent, "client": len(graph.actions) - sent},
        "times": dict(times.sources),
        "process_seconds": round(sum(remote), 1),
        "longest_process": round(max(remote), 1),
        "overhead_seconds": round(overhead, 2),
        "critical_path": round(max(work.tails(work.seconds)), 1),
        "seconds": {str(number): round(makespan(work, number), 1) for number in WORKERS},
    }


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image", required=True, help="of the workers")
    parser.add_argument("--profile", required=True, help="where COMMAND leaves Bazel's profile")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4], help="(default: 1 2 4)")
    parser.add_argument("--options", default="--cpus 0.25", help="of each worker's `docker run` (default: --cpus 0.25)")
    parser.add_argument("--actions", type=Path, help="action graph, for the simulation (see benchmarks.workers)")
    parser.add_argument("--target", default=TARGET, help=f"in the action graph (default: {TARGET})")
    parser.add_argument("--report", action="store_true", help="write benchmarks/results/scale.json")
    parser.add_argument("command", nargs="+", metavar="COMMAND")
    return parser.parse_args()


def main() -> None:
    options = parsed()
    engine, runs = Engine.connect(), dict[str, dict[str, Any]]()
    for number in sorted(options.workers):
        with tempfile.TemporaryDirectory() as scratch, cluster.start(engine, Path(scratch, "cluster")) as made:
            runs[str(number)] = measure(made, number, options)
        print(f"{number} workers: {runs[str(number)]}", flush=True)
    least = min(options.workers)
    one = least * runs[str(least)]["seconds"]
    for each, run in runs.items():
        run["efficiency"] = round(one / int(each) / run["seconds"], 3)
    results: dict[str, object] = {"target": options.target, "options": options.options, "workers": runs}
    if options.actions:
        profile = Path(filled(options.profile, {"workers": str(least)}))
        results["simulation"] = simulation(options.actions, options.target, profile, one)
    if options.report:
        print(record("scale", results))


if __name__ == "__main__":
    main()
