"""Read the machines of a fleet from their recordings: files, and folders of them."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tfbuild import cpu as cpus
from tfbuild import facts
from tfbuild.cpu import Cpu
from tfbuild.errors import TfbuildError, Unsupported, UsageError

RECORD = "record one per machine: cat /proc/cpuinfo > FOLDER/NAME"


@dataclass(frozen=True, kw_only=True)
class FleetHost:
    name: str
    cpu: Cpu


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """A recording that could not be read, and what to do about it."""

    name: str
    reason: str
    hint: str


@dataclass(frozen=True, kw_only=True)
class Gathered:
    hosts: tuple[FleetHost, ...]
    skipped: tuple[Skipped, ...]


def gather(sources: Sequence[str], *, skip: bool = False) -> Gathered:
    """Return the machines of all recordings, each file once, in their order. A source is a file or a folder of them.

    Raises UsageError if a source names nothing, and Unsupported, which lists all recordings that cannot be read, unless
    `skip` is set.
    """
    # Links count as separate machines, which is how to list several of one kind.
    files = list({os.path.abspath(file): file for source in sources for file in _files(source)}.values())
    counts = Counter(file.name for file in files)
    machines = [_read(file.name if counts[file.name] == 1 else str(file), file) for file in files]
    hosts = tuple(machine for machine in machines if isinstance(machine, FleetHost))
    skipped = tuple(machine for machine in machines if isinstance(machine, Skipped))
    if skipped and not skip:
        raise Unsupported(_list(skipped), hint="fix that, or leave them out: --skip-unreadable")
    if not hosts:
        raise Unsupported("no machine could be read" + (f": {_list(skipped)}" if skipped else ""))
    return Gathered(hosts=hosts, skipped=skipped)


def _list(skipped: Sequence[Skipped]) -> str:
    lines = "\n".join(f"  {machine.name}: {machine.reason}\n    {machine.hint}".rstrip() for machine in skipped)
    return f"{len(skipped)} of the machines cannot be read\n{lines}"


def _files(source: str) -> list[Path]:
    path = Path(source)
    # os.path's tests return False if the system refuses to look (the name is too long, the folder is not readable).
    if os.path.isfile(path):
        return [path]
    if not os.path.isdir(path):
        raise UsageError(f"{source} is not a file or a folder", hint=RECORD)
    try:
        files = sorted(file for file in path.iterdir() if os.path.isfile(file) and not file.name.startswith("."))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", hint="name files or a readable folder") from error
    if not files:
        raise UsageError(f"there is no file in {source}", hint=RECORD)
    return files


def _read(name: str, file: Path) -> FleetHost | Skipped:
    try:
        cpu = cpus.parse(cpus.read_text(file), origin=name)
    except TfbuildError as error:
        return Skipped(name=name, reason=error.reason, hint=error.hint)
    if not cpu.level:
        lowest = facts.levels(cpu.arch)[0]
        return Skipped(name=name, reason=f"its CPU is below {lowest.name}, for which no TensorFlow is built", hint="")
    return FleetHost(name=name, cpu=cpu)
