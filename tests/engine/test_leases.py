"""Whose container may be removed: judged by the owner's process where it can be seen, else by the engine's clock."""

import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import docker
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfbuild.engine import leases
from tfbuild.engine.leases import CONTAINER, LEASE, OWNER, VOLUME, Owner

NAME = "tfbuild-0123456789ab"


def me() -> Owner:
    owner = leases.this_process()
    assert owner is not None
    return owner


def labels(owner: Owner | None, seconds: float = 60) -> dict[str, str]:
    return {CONTAINER: NAME, OWNER: str(owner or ""), LEASE: f"{seconds:.0f}"}


def ended() -> Owner:
    """A process that has just ended."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        return replace(me(), pid=process.pid, start=leases.start_of(process.pid))


def test_a_lease_is_read_as_it_was_written() -> None:
    written = leases.lease(leases.CONTAINER, NAME, 12.6)
    assert (written[CONTAINER], written[LEASE]) == (NAME, "13")
    assert leases.read_owner(written[OWNER]) == me()
    assert me().pid == os.getpid()


def test_a_container_goes_with_its_process_and_not_before() -> None:
    year = 365.0 * 24 * 3600
    assert not leases.is_over(labels(me()), me(), year), "its process runs"
    assert leases.is_over(labels(ended()), me(), 0), "its process has ended"
    assert leases.is_over(labels(replace(me(), start="1")), me(), 0), "another process has its number"


@pytest.mark.parametrize(
    "change",
    [
        {"boot": "0" * 36},
        {"namespace": "pid:[1]"},
        # Who is not root may not see it.
        {"user": 4242},
    ],
)
def test_a_process_that_cannot_be_seen_from_here_keeps_its_container_for_its_seconds(change: dict[str, Any]) -> None:
    viewer = replace(me(), user=1000)
    owner = replace(viewer, pid=2**22 + 1, **change)
    assert not leases.is_over(labels(owner), viewer, 59)
    assert leases.is_over(labels(owner), viewer, 61)
    assert not leases.is_over(labels(me()), None, 59), "this system shows no processes"


def test_root_sees_the_processes_of_all_users() -> None:
    owner = replace(me(), user=4242, pid=2**22 + 1)
    assert leases.is_over(labels(owner), replace(me(), user=0), 0)


@given(st.text(), st.text())
def test_labels_of_any_content_keep_a_container_for_days(owner: str, lease: str) -> None:
    foreign = {OWNER: owner, LEASE: lease if not leases.SECONDS.fullmatch(lease) else ""}
    assert not leases.is_over(foreign, me(), leases.LONGEST_SECONDS)
    assert leases.is_over(foreign, me(), leases.LONGEST_SECONDS + 1)


class Client:
    """An engine's answers, and what it is told to remove."""

    def __init__(self, *rows: dict[str, Any], time: str = "2026-11-22T10:00:00.123456789Z") -> None:
        self.api, self.rows, self.time, self.removed = self, rows, time, list[str]()
        self.dangling: list[dict[str, Any]] | None = None

    def containers(self, **_: object) -> list[dict[str, Any]]:
        return list(self.rows)

    def volumes(self, filters: dict[str, object]) -> dict[str, object]:
        assert filters == {"label": VOLUME, "dangling": True}
        return {"Volumes": self.dangling}

    def remove_volume(self, name: str) -> None:
        self.remove_container(name)

    def info(self) -> dict[str, str]:
        return {"SystemTime": self.time}

    def remove_container(self, container: str, **_: object) -> None:
        if container == "busy":
            raise docker.errors.APIError("removal is already in progress")
        self.removed.append(container)


def row(identifier: str, name: str, owner: Owner, created: int = 1795341600) -> dict[str, Any]:
    return {"Id": identifier, "Names": [f"/{name}"], "Labels": labels(owner), "Created": created}


def test_a_sweep_removes_what_is_over_and_has_its_own_name() -> None:
    far = replace(me(), boot="0" * 36)
    client = Client(
        row("alive", NAME, me()),
        row("dead", NAME, ended()),
        # Of an image that was made of a container: its labels are inherited.
        row("child", "somebody-s", ended()),
        row("far", NAME, far),
        row("far-over", NAME, far, created=1795341600 - 3600),
        row("busy", NAME, ended()),
        {"Id": "bare", "Names": None, "Labels": None, "Created": 0},
    )
    assert leases.sweep(client) == [NAME, NAME]
    assert client.removed == ["dead", "far-over"]


def volume(name: str, owner: Owner, created: str = "2026-11-22T10:00:00Z") -> dict[str, Any]:
    """One without a container."""
    return {"Name": name, "CreatedAt": created, "Labels": {VOLUME: "", **labels(owner)}}


def test_a_sweep_removes_volumes_that_lost_their_containers_and_their_runs() -> None:
    far = replace(me(), boot="0" * 36)
    client = Client()
    client.dangling = [
        volume("alive", me()),  # `docker container prune`, while it is needed
        volume("dead", ended()),
        volume("busy", ended()),
        volume("far", far),
        volume("far-over", far, created="2026-11-22T09:00:00Z"),
        volume("dead-of-any-time", ended(), created=""),
        {"Name": "bare", "Labels": None},
    ]
    assert leases.sweep(client) == []
    assert client.removed == ["dead", "far-over", "dead-of-any-time"]


@pytest.mark.parametrize("time", ["", "yesterday"])
def test_without_the_engine_s_time_no_lease_is_over(time: str) -> None:
    client = Client(row("far", NAME, replace(me(), boot="0" * 36), created=0), time=time)
    assert leases.sweep(client) == []
