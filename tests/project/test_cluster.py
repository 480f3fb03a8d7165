"""The cluster of docs/remote-cache.md: Compose takes its file, and its workers start as the tests' do."""

import re
import shlex
from pathlib import Path
from typing import Any

from tests import schemas
from tests.ci.steps import read
from tests.with_engine import buildgrid
from tests.with_engine.cluster import WORKER

FOLDER = Path(__file__).parents[2] / "docs" / "cluster"
COMPOSE: dict[str, Any] = read(FOLDER / "compose.yaml")
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
SCHEDULER = "http://scheduler:50051"


def test_compose_takes_its_file() -> None:
    schemas.vendored("compose-spec").validate(COMPOSE)


def test_a_worker_starts_as_in_the_tests() -> None:
    worker = SERVICES["worker"]
    (volume,) = worker["volumes"]
    # shlex keeps the shell's line breaks between options.
    printed = [word for word in shlex.split(WORKER.format(image="IMAGE", url=SCHEDULER)) if word != "\n"]
    options = ["--detach", "--init", "--restart", worker["restart"], "--network", "host"]
    options += ["--volume", f"{volume['source']}:{volume['target']}:ro"]
    command = [word.replace("$$", "$") for word in worker["command"]]
    assert worker["init"]
    assert volume["read_only"]
    assert ["docker", "run", *options, "IMAGE", *command] == printed


def test_its_scheduler_is_the_tested_one() -> None:
    scheduler = SERVICES["scheduler"]
    locked = set(re.findall(r"^(\S+==\S+) ", buildgrid.LOCK.read_text(encoding="utf-8"), re.MULTILINE))
    installed = re.findall(r"\S+==\S+", scheduler["build"]["dockerfile_inline"])
    assert len(installed) == 2
    assert locked.issuperset(installed)
    assert f" {buildgrid.DATABASE} " in scheduler["command"][-1]
    assert buildgrid.DATABASE in buildgrid.GRID.read_text(encoding="utf-8")
    assert "./grid.yml:/etc/grid.yml:ro" in scheduler["volumes"]


def test_others_reach_nothing_of_it_by_default() -> None:
    assert [port for service in SERVICES.values() for port in service.get("ports", [])] == [
        "${LISTEN:-127.0.0.1}:50051:50051"
    ]
    assert COMPOSE["networks"]["database"]["internal"]
    assert [name for name, service in SERVICES.items() if "database" in service.get("networks", [])] == [
        "database",
        "scheduler",
    ]
