"""Choosing a Docker client, advising the user and recognising the daemon's process, without an engine."""

import io
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, closing, nullcontext
from pathlib import Path

import pytest

from tfbuild.engine import build, daemon, debian
from tfbuild.engine.build import DockerProgram
from tfbuild.engine.client import Engine
from tfbuild.engine.daemon import DaemonPlace
from tfbuild.errors import Disturbed, EngineMissing
from tfbuild.util import process
from tfbuild.util.files import locked
from tfbuild.util.progress import Progress

BUILDX = 'if [ "$1" = buildx ]; then echo github.com/docker/buildx v0.12; exit; fi; '
NO_BUILDX = 'if [ "$1" = buildx ]; then echo "docker: unknown command: docker buildx" >&2; exit 1; fi; '
SERVER = 'if [ "$1" = version ]; then echo 20.10.24; exit; fi; '
NO_SERVER = 'if [ "$1" = version ]; then exit 1; fi; '


def client(folder: Path, version: str, rest: str = SERVER) -> str:
    folder.mkdir()
    program = folder / "docker"
    program.write_text(f'#!/bin/sh\nif [ "$1" = --version ]; then echo "{version}"; exit; fi; {rest}\nexit 9\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return str(folder)


NEW = "Docker version 28.2.2, build e6534b4"
OLD = "Docker version 20.10.24+dfsg1, build 297e128"
ANCIENT = "Docker version 17.12.1-ce, build 7390fc6"


@pytest.mark.parametrize(
    ("version", "rest", "buildx"),
    [
        (NEW, BUILDX + SERVER, True),
        (OLD, NO_BUILDX + SERVER, False),
        ("Docker version 18.09.1, build x", SERVER, False),
    ],
)
def test_a_client_with_buildkit_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, rest: str, buildx: bool
) -> None:
    folder = client(tmp_path / "a", version, rest)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    assert build.find_program(os.environ) == DockerProgram(path=f"{folder}/docker", buildx=buildx)


def test_clients_that_cannot_build_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [
        str(tmp_path / "missing"),
        client(tmp_path / "new", NEW, NO_BUILDX + SERVER),
        client(tmp_path / "podman", "podman version 4.3.1", BUILDX + SERVER),
        client(tmp_path / "ancient", ANCIENT, BUILDX + SERVER),
        client(tmp_path / "too-new", NEW, BUILDX + NO_SERVER),
        client(tmp_path / "old", OLD, NO_BUILDX + SERVER),
    ]
    monkeypatch.setenv("PATH", os.pathsep.join(folders))
    assert build.find_program(os.environ).path == f"{tmp_path}/old/docker"


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("echo 'runtime: failed to create new OS thread (have 5 already; errno=11)' >&2; exit 2", "process or thread"),
        ("echo 'fork/exec buildx: resource temporarily unavailable' >&2; exit 1", "process or thread"),
        ("echo 'open /x: too many open files' >&2; exit 1", "open another file"),
    ],
)
def test_a_limit_of_processes_or_files_is_named_as_one(
    program: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{client(tmp_path / 'limited', NEW, program)}:/usr/bin:/bin")
    with pytest.raises(Disturbed, match=told):
        build.find_program(os.environ)


def test_where_no_client_fits_each_reason_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [client(tmp_path / "new", NEW, NO_BUILDX), client(tmp_path / "podman", "podman version 4.3.1")]
    monkeypatch.setenv("PATH", os.pathsep.join(folders))
    with pytest.raises(EngineMissing) as caught:
        build.find_program(os.environ)
    assert "new/docker 28.2 has no buildx plugin" in str(caught.value)
    assert "podman/docker is not Docker's client" in str(caught.value)
    assert "docker-buildx" in caught.value.hint


def test_the_client_is_looked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = client(tmp_path / "a", OLD, f"echo x >> {tmp_path}/calls; {SERVER}")
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    assert build.find_program(os.environ) is build.find_program(os.environ)
    assert (tmp_path / "calls").read_text().count("x") == 1


@pytest.mark.parametrize(
    ("system", "apt"),
    [
        ({"ID": "debian", "VERSION_CODENAME": "bookworm"}, True),
        ({"ID": "ubuntu", "ID_LIKE": "debian"}, True),
        ({"ID": "linuxmint", "ID_LIKE": "ubuntu debian"}, True),
        ({"ID": "rocky", "ID_LIKE": "rhel centos fedora"}, False),
        ({"ID": "alpine"}, False),
        ({}, False),
    ],
)
def test_systems_with_apt(system: dict[str, str], apt: bool) -> None:
    assert debian.has_apt(system) is apt


def advice(
    cause: BaseException | None = None,
    *,
    named: str = "",
    system: str = "linux",
    apt: bool = True,
    root: bool = True,
    dockerd: bool = False,
) -> str:
    cause = cause or ConnectionRefusedError()
    return daemon.advice(cause, named, system=system, apt=apt, root=root, dockerd=dockerd)


def denied() -> BaseException:
    error = EngineMissing("no engine")
    error.__cause__ = PermissionError(13, "Permission denied")
    return error


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        (advice(named="DOCKER_HOST=tcp://build:2375"), "DOCKER_HOST=tcp://build:2375"),
        (advice(system="darwin", apt=False), "Docker Desktop"),
        (advice(denied(), root=False, dockerd=True), "usermod -aG docker"),
        (advice(root=False, dockerd=True), "sudo systemctl start docker"),
        (advice(root=False), "apt-get install docker.io"),
        (advice(apt=False, dockerd=True), "systemctl start docker"),
        (advice(apt=False), "https://docs.docker.com/engine/install/"),
    ],
)
def test_the_advice_fits_the_situation(given: str, hint: str) -> None:
    assert hint in given


def test_debian_with_root_needs_no_advice() -> None:
    assert advice() == advice(dockerd=True) == ""


def test_who_is_not_root_is_told_to_become_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", DaemonPlace().host)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(debian, "this_system", lambda: {"ID": "debian"})
    monkeypatch.setenv("PATH", str(tmp_path))
    place = DaemonPlace(socket=tmp_path / "s", folder=tmp_path / "engine")
    with pytest.raises(EngineMissing) as caught:
        daemon.ensure(Progress(), place)
    assert caught.value.hint.startswith("sudo apt-get install docker.io")
    assert not place.folder.exists()


def test_a_host_that_the_user_names_is_not_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    own = "unix:///var/run/docker.sock"
    assert daemon.named_host({}, own) == ""
    assert daemon.named_host({"DOCKER_HOST": own}, own) == ""
    assert daemon.named_host({"DOCKER_HOST": "tcp://b:1"}, own) == "DOCKER_HOST=tcp://b:1"
    assert daemon.named_host({"DOCKER_CONTEXT": "colima"}, own) == "Docker's context colima"


@pytest.mark.parametrize(
    ("address", "hint"),
    [("unix:///nonexistent/docker.sock", "invoke engine"), ("tcp://127.0.0.1:1", "docker --host tcp://127.0.0.1:1")],
)
def test_a_missing_engine_is_one_line_with_a_hint(address: str, hint: str) -> None:
    with pytest.raises(EngineMissing) as caught:
        Engine.connect(address)
    assert "\n" not in caught.value.reason
    assert hint in caught.value.hint


def test_a_process_is_recognised_by_its_command_line_too(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    command = [sys.executable, "-c", "print(flush=True); input()", str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        file.write_text(f"{process.pid}\n")
        assert daemon.running(file, str(file)) == process.pid
        assert daemon.running(file, "/another/engine.pid") is None
        process.communicate(b"\n")
    assert daemon.running(file, str(file)) is None


@pytest.mark.parametrize("text", ["", "x", "-1", "0"])
def test_a_bad_pid_file_names_no_process(tmp_path: Path, text: str) -> None:
    file = tmp_path / "pid"
    file.write_text(text)
    assert daemon.running(file, "") is None
    assert daemon.running(tmp_path / "missing", "") is None


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("echo no iptables; exit 1", "dockerd did not start\n  no iptables"),
        (
            "echo loading; while :; do sleep 1; done",
            "dockerd did not start: it wrote nothing to its log for 1 s\n  loading",
        ),
        ("while :; do sleep 1; done", ""),
    ],
)
def test_a_start_goes_on_while_dockerd_writes_to_its_log(
    script: str, error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a script in dockerd's place. The last one answers in the end; each question adds a line to its log."""
    program = tmp_path / "dockerd"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    slow = "no iptables" not in error
    place, said, began = DaemonPlace(socket=tmp_path / "s", folder=tmp_path), io.StringIO(), time.monotonic()

    def connect(_: str) -> str:
        while error and not place.log.read_text():
            time.sleep(0.01)
        if not error:
            with place.log.open("a") as log:
                log.write("line\n")
        if error or time.monotonic() - began < 1.5:
            raise EngineMissing("no answer")
        return "an engine"

    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(daemon, "START_SECONDS", 0.0 if slow else 60.0)
    monkeypatch.setattr(daemon, "SILENT_SECONDS", 1.0)
    monkeypatch.setattr(daemon, "_has_cgroups", lambda: True)
    monkeypatch.setattr(Engine, "connect", connect)
    with pytest.raises(EngineMissing) if error else nullcontext() as caught:
        assert str(daemon._start(place, place.host, Progress(said))) == "an engine"
    if caught:
        assert caught.value.reason == error
    assert said.getvalue().count("dockerd is still starting") == slow
    left = [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/cmdline") if str(place.pid_file) in text(path)]
    assert (left == []) == bool(error)
    for pid in left:
        assert process.end(pid, str(place.pid_file), 5)


def text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def test_no_second_engine_is_started_beside_a_silent_one(tmp_path: Path) -> None:
    program = Path(shutil.copy(str(shutil.which("cat")), tmp_path / "dockerd"))
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdin
        assert process.stdout
        try:
            # Until it answers, it may still have the name of this process.
            process.stdin.write(b"\n")
            assert process.stdout.read(1) == b"\n"
            with pytest.raises(EngineMissing, match=r"dockerd \(process \d+\) runs already, but does not answer"):
                daemon._refuse_beside_another(DaemonPlace(socket=tmp_path / "s", folder=tmp_path))
        finally:
            process.kill()


def test_stop_leaves_a_stranger_s_process_alone(tmp_path: Path) -> None:
    place = DaemonPlace(socket=tmp_path / "s", folder=tmp_path)
    with subprocess.Popen(["sleep", "30"]) as process:
        place.pid_file.write_text(str(process.pid))
        assert daemon.stop(Progress(), place) is False
        assert process.poll() is None
        process.kill()


def test_who_waits_for_another_process_is_told(tmp_path: Path) -> None:
    with ExitStack() as other:
        other.enter_context(locked(tmp_path, lambda: None))
        # If nothing is said, the test fails; it does not wait forever.
        late = threading.Timer(10, other.close)
        late.start()

        class Said(io.StringIO):
            def write(self, text: str) -> int:
                other.close()
                late.cancel()
                return super().write(text)

        said = Said()
        assert daemon.stop(Progress(said), DaemonPlace(socket=tmp_path / "s", folder=tmp_path)) is False
    assert said.getvalue() == "waiting for another process that starts or stops the engine\n"


DEB822 = """Types: deb deb-src
URIs: http://mirror.site/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

# a comment
Types: deb
URIs: http://mirror.site/debian
Suites: trixie
Components: main

Enabled: no
Types: deb
URIs: http://off.site/debian
Suites: bookworm
Components: main

Types: deb
URIs: https://packages.site/tool
Suites: nodistro
Components: main
"""
ONE_LINE = """deb [arch=amd64 signed-by=/k.gpg] https://mirror.site/debian-security bookworm-security main # site
deb-src https://mirror.site/debian bookworm main
deb https://packages.site/apt tool-bookworm main
deb https://download.site/linux/debian bookworm stable
"""


def test_the_site_s_own_mirror_is_used_and_third_parties_are_not(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text(ONE_LINE)
    (tmp_path / "sources.list.d" / "debian.sources").write_text(DEB822)
    (tmp_path / "sources.list.d" / "old.save").write_text("deb http://old.site/debian bookworm main\n")
    keyring = "[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]"
    assert debian.sources("bookworm", tmp_path) == [
        "deb [signed-by=/k.gpg] https://mirror.site/debian-security bookworm-security main",
        f"deb {keyring} http://mirror.site/debian bookworm main contrib",
        f"deb {keyring} http://mirror.site/debian bookworm-updates main contrib",
    ]
    assert debian.sources("bullseye", tmp_path) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="takes another user's rights")
def test_a_socket_of_others_is_refused_with_the_group_of_its_users(tmp_path: Path) -> None:
    code = (
        "import os, sys\n"
        "from tfbuild.engine import connection\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "try:\n    connection._check_socket(sys.argv[1])\nexcept Exception as error:\n    print(error)\n"
    )
    with tempfile.TemporaryDirectory() as folder, closing(socket.socket(socket.AF_UNIX)) as end:
        os.chmod(folder, 0o755)
        end.bind(f"{folder}/docker.sock")
        end.listen()
        os.chmod(f"{folder}/docker.sock", 0o600)
        command = [sys.executable, "-c", code, f"unix://{folder}/docker.sock"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "Permission denied" in done.stdout, done.stderr
    assert "hint: sudo usermod -aG docker" in done.stdout
