"""Leases on the containers and volumes that tfbuild makes, so that a later run removes those whose run is gone.

A run that is killed cannot remove its containers. Each carries its own name, its owner and the seconds for which its
run may need it, as labels. A later run on the owner's machine looks for the owner's process. Any other run (of another
machine, container or user, who may share the engine) waits for the seconds to pass, on the engine's own clock. Images
made of such a container inherit its labels, and so do their containers: those have another name, and are left alone.
A volume goes with its container, unless the engine ends at that moment, or somebody removed the container alone.
"""

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import docker

from tfbuild.engine.faults import translated
from tfbuild.errors import TfbuildError

# The labels of a container or a volume: what it is (a container's own name), its owner, and for how long its run may
# need it.
CONTAINER = "io.tfbuild.container"
VOLUME = "io.tfbuild.sandbox"
OWNER = "io.tfbuild.owner"
LEASE = "io.tfbuild.lease"
# A run with a time limit needs its container for that time, and for what comes before and after it.
MARGIN_SECONDS = 600
# Workers and copies have no limit of their own; the longest benchmarks take hours.
LONGEST_SECONDS = 48 * 3600
TEXT = re.compile(r"[0-9a-f-]{36} pid:\[\d{1,20}\] \d{1,10} \d{1,10} \d{1,20}", re.ASCII)
SECONDS = re.compile(r"\d{1,9}", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Owner:
    """A process: the `boot` of its kernel and its `namespace` of process ids, in which it has `pid` since `start`."""

    boot: str
    namespace: str
    user: int
    pid: int
    start: str

    def __str__(self) -> str:
        return f"{self.boot} {self.namespace} {self.user} {self.pid} {self.start}"


@cache
def this_process() -> Owner | None:
    """Return this process; None if the system does not say (macOS)."""
    try:
        return Owner(
            boot=Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
            namespace=os.readlink("/proc/self/ns/pid"),
            user=os.geteuid(),
            pid=os.getpid(),
            start=start_of(os.getpid()),
        )
    except OSError:
        return None


def start_of(pid: int) -> str:
    """Return when a process began, in clock ticks since the boot (proc(5), field 22 of stat); "" for none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return ""
    # The name before the last parenthesis may hold anything.
    return stat.rpartition(")")[2].split()[19]


def read_owner(text: str) -> Owner | None:
    """Read an owner's label; None for any other text."""
    if TEXT.fullmatch(text) is None:
        return None
    boot, namespace, user, pid, start = text.split()
    return Owner(boot=boot, namespace=namespace, user=int(user), pid=int(pid), start=start)


def lease(kind: str, name: str = "", seconds: float = LONGEST_SECONDS) -> dict[str, str]:
    """Return the labels of a CONTAINER `name`, or of a VOLUME, that this process needs for at most `seconds`."""
    return {kind: name, OWNER: str(this_process() or ""), LEASE: f"{seconds:.0f}"}


def is_over(labels: Mapping[str, str], me: Owner | None, age: float) -> bool:
    """Whether nobody needs a container with these labels any more, `age` seconds after it was made."""
    owner = read_owner(labels.get(OWNER, ""))
    if owner and me and (owner.boot, owner.namespace) == (me.boot, me.namespace) and me.user in (0, owner.user):
        # Only root and a process's own user always see it: /proc may hide the others (hidepid).
        return start_of(owner.pid) != owner.start
    text = labels.get(LEASE, "")
    return age > (int(text) if SECONDS.fullmatch(text) else LONGEST_SECONDS)


def sweep(client: Any) -> list[str]:
    """Remove the containers whose lease is over, and return their names; also volumes that have no container any more.

    A failure is left to the next run.
    """
    removed: list[str] = []
    with suppress(TfbuildError), translated():
        rows = client.api.containers(all=True, filters={"label": CONTAINER})
        labelled = [(row, row.get("Labels") or {}) for row in rows]
        own = [(row, labels) for row, labels in labelled if f"/{labels.get(CONTAINER)}" in (row.get("Names") or ())]
        volumes = client.api.volumes(filters={"label": VOLUME, "dangling": True}).get("Volumes") or ()
        # If the time cannot be read, no lease is over.
        now = (engine_time(client) if own or volumes else None) or 0.0
        for row, labels in own:
            if is_over(labels, this_process(), now - row["Created"]):
                with suppress(docker.errors.APIError):  # another run may be removing it at this moment
                    client.api.remove_container(str(row["Id"]), force=True, v=True)
                    removed.append(labels[CONTAINER])
        for volume in volumes:
            created = _seconds(volume.get("CreatedAt"))
            if is_over(volume.get("Labels") or {}, this_process(), now - created if created else 0.0):
                with suppress(docker.errors.APIError):
                    client.api.remove_volume(volume["Name"])
    return removed


def engine_time(client: Any) -> float | None:
    """Return the engine's time, in seconds since the epoch; None if it cannot be read."""
    return _seconds(client.info().get("SystemTime"))


def _seconds(time: object) -> float | None:
    """Return a time that an engine names, in seconds since the epoch; None if it cannot be read."""
    try:
        return datetime.fromisoformat(str(time)).timestamp()
    except ValueError:
        return None
