"""The machines of a fleet: recorded /proc/cpuinfo files, folders of them, and hosts that ssh reaches."""

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tfbuild import cpu as cpus
from tfbuild import facts
from tfbuild.cpu import Cpu
from tfbuild.errors import TfbuildError, UnknownCpu, UsageError
from tfbuild.util import ssh
from tfbuild.util.ssh import Destination

BY_SSH = re.compile(r"ssh(://|\s+\S)")
SECONDS = 20


@dataclass(frozen=True, kw_only=True)
class FleetHost:
    name: str
    cpu: Cpu


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """A machine of which nothing could be read, and what to do about it."""

    name: str
    reason: str
    hint: str


@dataclass(frozen=True, kw_only=True)
class Gathered:
    hosts: tuple[FleetHost, ...]
    skipped: tuple[Skipped, ...]


def gather(words: Sequence[str], *, timeout: int = SECONDS, config: Path | None = None, skip: bool = False) -> Gathered:
    """All machines that the words name, each once, in their order.

    A word is a recorded file, a folder of them, a file that lists ssh hosts, or ``ssh://host``. Raises UsageError where
    a word names nothing, and UnknownCpu for machines that cannot be read, all at once, unless they are to be skipped.
    """
    named = (place for word in words for place in _places(word))
    # Links count as machines of their own: several of one kind can be told so.
    places = [*{os.path.abspath(place) if isinstance(place, Path) else place: place for place in named}.values()]
    destinations = [place for place in places if isinstance(place, Destination)]
    answers: dict[Path | Destination, ssh.Answer] = dict(
        zip(destinations, ssh.fetch(destinations, timeout=timeout, config=config), strict=True)
    )
    names = _names(places)
    read = [_read(names[place], place, answers.get(place)) for place in places]
    found = Gathered(
        hosts=tuple(one for one in read if isinstance(one, FleetHost)),
        skipped=tuple(one for one in read if isinstance(one, Skipped)),
    )
    if found.skipped and not skip:
        raise UnknownCpu(_told(found.skipped), hint="mend that, or go on without them: --skip-unreachable")
    if not found.hosts:
        raise UnknownCpu("not one machine could be read" + (f": {_told(found.skipped)}" if found.skipped else ""))
    return found


def _told(skipped: Sequence[Skipped]) -> str:
    few = "\n".join(f"  {one.name}: {one.reason}\n    {one.hint}".rstrip() for one in skipped)
    return f"{len(skipped)} of the machines cannot be read\n{few}"


def _places(word: str) -> list[Path | Destination]:
    path = Path(word)
    # os.path's tests are False where the system refuses to look (a name that is too long, a folder that is closed).
    if os.path.isdir(path):
        files = _inside(path)
        if not files:
            raise UsageError(
                f"there is no file in {word}", hint="record one a machine: cat /proc/cpuinfo > FOLDER/NAME"
            )
        return [place for file in files for place in _listed(file)]
    if os.path.isfile(path):
        return _listed(path)
    if BY_SSH.match(word):
        return [ssh.destination(word)]
    raise UsageError(
        f"{word} is no file, no folder and no ssh host",
        hint="a recorded /proc/cpuinfo, a folder of them, a file of lines `ssh host`, or ssh://user@host",
    )


def _inside(folder: Path) -> list[Path]:
    try:
        return sorted(file for file in folder.iterdir() if os.path.isfile(file) and not file.name.startswith("."))
    except OSError as error:
        raise UsageError(f"cannot read {folder}: {error.strerror}", hint="name files, or a folder of yours") from error


def _listed(file: Path) -> list[Path | Destination]:
    """The hosts that a file lists, or the file itself where its first line names none."""
    try:
        lines = [line.partition("#")[0].strip() for line in cpus.read(file).splitlines()]
    except TfbuildError:
        return [file]  # told with all others that cannot be read
    named = [line for line in lines if line]
    return [ssh.destination(line) for line in named] if named and BY_SSH.match(named[0]) else [file]


def _names(places: Sequence[Path | Destination]) -> dict[Path | Destination, str]:
    """A file goes by its name alone where no other one has the same."""
    often = Counter(place.name for place in places if isinstance(place, Path))
    return {place: place.name if isinstance(place, Path) and often[place.name] == 1 else str(place) for place in places}


def _read(name: str, place: Path | Destination, answer: ssh.Answer | None) -> FleetHost | Skipped:
    if answer is not None and answer.reason:
        return Skipped(name=name, reason=answer.reason, hint=answer.hint)
    try:
        found = cpus.parse(answer.text if answer else cpus.read(Path(str(place))), origin=name)
    except TfbuildError as error:
        listed = "" if answer else "; a list of hosts has lines such as: ssh web1"
        return Skipped(name=name, reason=error.reason, hint=f"{error.hint}{listed}")
    if not found.level:
        least = facts.levels(found.arch)[0]
        reason = f"its CPU is below {least.name}, and no TensorFlow is built for that"
        return Skipped(name=name, reason=reason, hint="")
    return FleetHost(name=name, cpu=found)
