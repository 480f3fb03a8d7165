"""What the user is told where no engine answers, and what the script that manages ours leaves alone."""

import io
import os
import subprocess
import sys
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests import servers
from tests.commandline import executable
from tfbuild.engine import connection, daemon
from tfbuild.engine.client import Engine
from tfbuild.errors import EngineMissing
from tfbuild.util.progress import Progress


def denied() -> BaseException:
    error = EngineMissing("no engine")
    error.__cause__ = PermissionError(13, "Permission denied")
    return error


@pytest.mark.parametrize(
    ("situation", "hint"),
    [
        ({"named": "DOCKER_HOST=tcp://build:2375"}, "DOCKER_HOST=tcp://build:2375"),
        ({"system": "darwin", "apt": False}, "Docker Desktop"),
        ({"cause": denied(), "root": False, "dockerd": True}, "usermod -aG docker"),
        ({"root": False, "dockerd": True}, "sudo systemctl start docker"),
        ({"root": False}, "apt-get install docker.io"),
        ({"apt": False, "dockerd": True}, "systemctl start docker"),
        ({"apt": False}, "https://docs.docker.com/engine/install/"),
        # As root on Debian, tfbuild itself does it.
        ({}, ""),
        ({"dockerd": True}, ""),
    ],
)
def test_the_advice_fits_the_situation(situation: dict[str, Any], hint: str) -> None:
    usual = {"cause": ConnectionRefusedError(), "named": "", "system": "linux", "apt": True, "root": True}
    said = daemon.advice(**{**usual, "dockerd": False, **situation})
    assert hint in said if hint else said == ""


def test_debian_and_its_derivatives_have_apt() -> None:
    systems: tuple[dict[str, str], ...] = (
        {"ID": "debian"},
        {"ID": "mint", "ID_LIKE": "ubuntu debian"},
        {"ID": "fedora"},
        {},
    )
    assert [daemon.has_apt(system) for system in systems] == [True, True, False, False]


def test_who_is_not_root_is_told_to_become_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/s")
    monkeypatch.setattr(connection, "SOCKET", f"unix://{tmp_path}/s")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(daemon, "this_system", lambda: {"ID": "debian"})
    monkeypatch.setattr(daemon, "FOLDER", tmp_path / "engine")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineMissing) as caught:
        daemon.ensure(Progress())
    assert caught.value.hint.startswith("sudo apt-get install docker.io")
    assert not daemon.FOLDER.exists()


def test_an_engine_on_this_machine_is_not_asked_through_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which would get what is sent to the engine, with docker's logins in clear."""
    said = b'{"Version": "29", "Os": "linux", "Arch": "amd64", "ApiVersion": "1.43", "MinAPIVersion": "1.24"}'

    class Docker(servers.Handler):
        def do_GET(self) -> None:
            self.say(200, said, {"Content-Type": "application/json"})

    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "REQUESTS_CA_BUNDLE"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    with servers.running(server := ThreadingHTTPServer(("127.0.0.1", 0), Docker)):
        engine = Engine.connect(f"tcp://127.0.0.1:{server.server_port}")
        assert engine.version == "29"
        engine.client.close()


@pytest.mark.parametrize("text", ["", "x", "-1", "0", "{stranger}"])
def test_stop_leaves_a_stranger_s_process_alone(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids are used again after a reboot."""
    monkeypatch.setattr(daemon, "FOLDER", tmp_path)
    with subprocess.Popen(["sleep", "30"]) as process:
        (tmp_path / "dockerd.pid").write_text(text.format(stranger=process.pid))
        assert daemon.running_containers() == 0
        assert daemon.stop(Progress(shown := io.StringIO())) is False
        assert "engine: stop: skip" in shown.getvalue()
        assert process.poll() is None
        process.kill()


def test_stop_ends_the_process_that_names_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "FOLDER", tmp_path)
    command = [sys.executable, "-c", "print(flush=True); input()", str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        (tmp_path / "dockerd.pid").write_text(f"{process.pid}\n")
        executable(tmp_path / "bin/docker", "exit 1")
        monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
        with pytest.raises(EngineMissing, match="containers cannot be counted"):
            daemon.running_containers()
        assert daemon.stop(Progress()) is True
        assert process.poll() is not None
    assert not (tmp_path / "dockerd.pid").exists()
    assert daemon.stop(Progress()) is False
