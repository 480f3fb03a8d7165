"""The engine that `invoke engine` starts and stops, by its script, in a network of its own.

A second dockerd beside the first would share docker0, or with --bridge=none even delete it.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.with_engine import second
from tests.with_engine.second import processes
from tfbuild.engine import Engine, daemon, faults
from tfbuild.errors import DiskFull, EngineMissing

pytestmark = pytest.mark.engine


@dataclass(frozen=True, kw_only=True)
class Place:
    folder: Path
    socket: Path

    def start(self, env: dict[str, str] | None = None) -> "subprocess.Popen[str]":
        command = ["unshare", "--net", "sh", str(daemon.SCRIPT), "start", str(self.folder), str(self.socket)]
        return subprocess.Popen(command, text=True, stderr=subprocess.PIPE, env=env)

    def stop(self) -> int:
        command = ["sh", str(daemon.SCRIPT), "stop", str(self.folder), str(self.socket)]
        return subprocess.run(command, check=False).returncode


@pytest.fixture
def place() -> Iterator[Place]:
    if os.geteuid() != 0 or shutil.which("dockerd") is None or shutil.which("apt-get") is None:
        pytest.skip("needs root on Debian or Ubuntu, and dockerd")
    top = Path(tempfile.mkdtemp(prefix="tfb-"))
    found = Place(folder=top / "engine", socket=top / "docker.sock")
    yield found
    found.stop()
    second.remove(top)


def test_an_engine_is_started_once_and_stopped(engine: Engine, place: Place) -> None:
    both = [place.start(), place.start()]
    errors = [process.communicate(timeout=120)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], errors
    assert len(processes(f"--pidfile={place.folder}/dockerd.pid")) == 1
    ours = Engine.connect(f"unix://{place.socket}")
    data = place.folder / "data"
    assert ours.data_root == data != engine.data_root
    free = shutil.disk_usage(data).free
    faults.require_free(ours.data_root, free // 2)
    with pytest.raises(DiskFull, match=f"GB are needed on {data}"):
        faults.require_free(ours.data_root, free * 2)
    ours.client.close()
    assert place.stop() == 0
    assert processes(str(place.folder)) == []
    assert place.stop() == daemon.NOT_RUNNING
    with pytest.raises(EngineMissing):
        Engine.connect(f"unix://{place.socket}")
    assert Engine.connect().version


def test_an_engine_that_cannot_start_says_why(place: Place, tmp_path: Path) -> None:
    """A real program that ends at once in dockerd's place: what it wrote is in the message, and nothing waits."""
    program = tmp_path / "dockerd"
    program.write_text("#!/bin/sh\necho 'failed to start daemon: no iptables' >&2\nexit 1\n")
    program.chmod(0o755)
    with place.start(env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}) as process:
        errors = process.communicate(timeout=60)[1]
    assert process.returncode == 1
    log = place.folder / "dockerd.log"
    assert errors == f"dockerd did not start\nfailed to start daemon: no iptables\nthe full log: {log}\n"
