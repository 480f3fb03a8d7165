"""Read the machines of a fleet: recorded /proc/cpuinfo files, folders of them, and hosts reached by ssh.

Nothing is installed on a host. It runs `cat` and, where glibc has it, the loader's list of CPUID words, because kernels
do not print all features.
"""

import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tfbuild import cpu as cpus
from tfbuild import facts
from tfbuild.cpu import Cpu, recordings
from tfbuild.errors import TfbuildError, Unsupported, UsageError
from tfbuild.util import ssh
from tfbuild.util.ssh import Destination

BY_SSH = re.compile(r"ssh(://|\s+\S)")
SECONDS = 20
# Hosts that are asked at a time.
AT_ONCE = 16
# Run by sh, whatever the user's shell. The empty line separates the loader's output from the last core's block.
COMMAND = (
    f"sh -c 'cat /proc/cpuinfo && echo && {{ env -i {recordings.LOADER} --list-diagnostics 2>/dev/null || true; }}'"
)
HINTS = (
    ("/proc/cpuinfo: No such file", "it does not run Linux: record its CPU there, and give the file"),
    ("timed out", "is it switched on, and reachable from here? --timeout gives it more time"),
)


@dataclass(frozen=True, kw_only=True)
class FleetHost:
    name: str
    cpu: Cpu


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """A machine that could not be read, and what to do about it."""

    name: str
    reason: str
    hint: str


@dataclass(frozen=True, kw_only=True)
class Gathered:
    hosts: tuple[FleetHost, ...]
    skipped: tuple[Skipped, ...]


def gather(
    sources: Sequence[str], *, timeout: int = SECONDS, config: Path | None = None, skip: bool = False
) -> Gathered:
    """Return all machines that the sources name, each once, in their order.

    A source is a recorded file, a folder of them, a file that lists ssh hosts, or ``ssh://host``. Raises UsageError if
    a source names nothing. Raises Unsupported, which lists all machines that cannot be read, unless `skip` is set.
    """
    all_locations = (location for source in sources for location in _locations(source))
    # Links count as separate machines, which is how to list several of one kind.
    unique = {os.path.abspath(place) if isinstance(place, Path) else place: place for place in all_locations}
    locations = [*unique.values()]
    destinations = [location for location in locations if isinstance(location, Destination)]
    answers: dict[Path | Destination, str | Skipped] = dict(
        zip(destinations, fetch(destinations, timeout=timeout, config=config), strict=True)
    )
    names = _names(locations)
    machines = [_read(names[location], location, answers.get(location)) for location in locations]
    hosts = tuple(machine for machine in machines if isinstance(machine, FleetHost))
    skipped = tuple(machine for machine in machines if isinstance(machine, Skipped))
    if skipped and not skip:
        raise Unsupported(_list(skipped), hint="fix that, or leave them out: --skip-unreachable")
    if not hosts:
        raise Unsupported("no machine could be read" + (f": {_list(skipped)}" if skipped else ""))
    return Gathered(hosts=hosts, skipped=skipped)


def _list(skipped: Sequence[Skipped]) -> str:
    lines = "\n".join(f"  {machine.name}: {machine.reason}\n    {machine.hint}".rstrip() for machine in skipped)
    return f"{len(skipped)} of the machines cannot be read\n{lines}"


def _locations(source: str) -> list[Path | Destination]:
    path = Path(source)
    # os.path's tests return False if the system refuses to look (the name is too long, the folder is not readable).
    if os.path.isdir(path):
        files = _inside(path)
        if not files:
            raise UsageError(
                f"there is no file in {source}", hint="record one per machine: cat /proc/cpuinfo > FOLDER/NAME"
            )
        return [location for file in files for location in _listed(file)]
    if os.path.isfile(path):
        return _listed(path)
    if BY_SSH.match(source):
        return [ssh.destination(source)]
    raise UsageError(
        f"{source} is not a file, a folder or an ssh host",
        hint="name a recorded /proc/cpuinfo, a folder of them, a file of lines `ssh host`, or ssh://user@host",
    )


def _inside(folder: Path) -> list[Path]:
    try:
        return sorted(file for file in folder.iterdir() if os.path.isfile(file) and not file.name.startswith("."))
    except OSError as error:
        raise UsageError(
            f"cannot read {folder}: {error.strerror}", hint="name files, or a folder that you can read"
        ) from error


def _listed(file: Path) -> list[Path | Destination]:
    """Return the hosts that a file lists, or the file itself if its first line does not name one."""
    try:
        lines = [line.partition("#")[0].strip() for line in cpus.read_text(file).splitlines()]
    except TfbuildError:
        return [file]  # reported with all others that cannot be read
    entries = [line for line in lines if line]
    return [ssh.destination(line) for line in entries] if entries and BY_SSH.match(entries[0]) else [file]


def _names(locations: Sequence[Path | Destination]) -> dict[Path | Destination, str]:
    """Return names of the machines: a file's name alone, unless another one has the same name."""
    counts = Counter(location.name for location in locations if isinstance(location, Path))
    return {
        location: location.name if isinstance(location, Path) and counts[location.name] == 1 else str(location)
        for location in locations
    }


def _read(name: str, location: Path | Destination, answer: str | Skipped | None) -> FleetHost | Skipped:
    if isinstance(answer, Skipped):
        return answer
    try:
        cpu = cpus.parse(cpus.read_text(Path(str(location))) if answer is None else answer, origin=name)
    except TfbuildError as error:
        list_hint = "" if answer is not None else "; a list of hosts has lines such as: ssh web1"
        return Skipped(name=name, reason=error.reason, hint=f"{error.hint}{list_hint}")
    if not cpu.level:
        lowest = facts.levels(cpu.arch)[0]
        reason = f"its CPU is below {lowest.name}, for which no TensorFlow is built"
        return Skipped(name=name, reason=reason, hint="")
    return FleetHost(name=name, cpu=cpu)


# --- ssh --------------------------------------------------------------------------------------------------------------


def fetch(destinations: Sequence[Destination], *, timeout: int, config: Path | None = None) -> list[str | Skipped]:
    """Return the recordings of all hosts in order; AT_ONCE run at a time, for at most `timeout` seconds each.

    `config` replaces the user's ~/.ssh/config. Raises UsageError where there is no ssh.
    """
    if not destinations:
        return []
    if shutil.which("ssh") is None:
        raise UsageError("there is no ssh on PATH", hint="apt-get install openssh-client, or record the CPUs in files")
    # On an interrupt, `map` skips the machines still waiting.
    with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
        return list(pool.map(lambda machine: _ask(machine, timeout, config), destinations))


def _ask(machine: Destination, timeout: int, config: Path | None) -> str | Skipped:
    options = ("-F", str(config)) if config else ()
    try:
        completed = subprocess.run(
            ssh.command(machine, COMMAND, *options, timeout=timeout),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return _failed(machine, f"timed out: no answer within {timeout} s")
    if completed.returncode == 0:
        return completed.stdout
    return _failed(machine, ssh.reason(completed.stderr, completed.returncode))


def _failed(machine: Destination, reason: str) -> Skipped:
    hint = ssh.advice(machine, reason, "cat /proc/cpuinfo", HINTS)
    return Skipped(name=str(machine), reason=reason, hint=hint)
