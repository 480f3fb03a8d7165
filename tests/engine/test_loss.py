"""An engine that ends is noticed, whether it is back or not, and nothing else is taken for that.

The engine of these tests is a process that answers a few requests at a socket, and can be killed.
"""

import gc
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests

from tfbuild.engine import Engine, client, connection, faults
from tfbuild.errors import DiskFull, EngineMissing, TfbuildError

# Its arguments: the socket, and how it answers who asks for events. As Docker does on SIGTERM, it first stops to accept
# connections, and serves those that it has until it has stopped its containers.
PROGRAM = """
import http.server, json, os, signal, socketserver, sys, threading

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        name = self.path.partition("?")[0].rpartition("/")[2]
        open_end = name == "events" and EVENTS == 200
        body = b"" if open_end else json.dumps(ANSWERS.get(name, {})).encode()
        self.send_response(EVENTS if name == "events" else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header(*(("Transfer-Encoding", "chunked") if open_end else ("Content-Length", str(len(body)))))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

class Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True

PATH, EVENTS = sys.argv[1], int(sys.argv[2])
VERSION = {"Version": "1", "Os": "linux", "Arch": "amd64", "ApiVersion": "1.43", "MinAPIVersion": "1.24"}
ANSWERS = {"version": VERSION, "info": {"NCPU": 2, "DockerRootDir": os.path.dirname(PATH)}}
if os.path.exists(PATH):
    os.unlink(PATH)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
server = Server(PATH, Handler)
threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
print("ready", flush=True)
signal.sigwait({signal.SIGTERM})
server.shutdown()
server.socket.close()
print("closed", flush=True)
signal.pause()
"""


class Served:
    """An engine's process, and the address of its socket."""

    def __init__(self, folder: Path, events: int) -> None:
        self.socket, self._events = folder / "engine.sock", events
        self.start()

    @property
    def host(self) -> str:
        return f"unix://{self.socket}"

    def start(self) -> None:
        command = [sys.executable, "-IS", "-c", PROGRAM, str(self.socket), str(self._events)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.said() == "ready"

    def said(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def shut_down(self) -> None:
        """Begin to; it is not over."""
        self._process.send_signal(signal.SIGTERM)
        assert self.said() == "closed"

    def kill(self) -> None:
        with self._process:
            self._process.kill()


@pytest.fixture
def served(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Served]:
    engine = Served(tmp_path, getattr(request, "param", 200))
    yield engine
    engine.kill()


@pytest.fixture
def engine(served: Served) -> Iterator[Engine]:
    gc.freeze()  # what other tests left is not looked through below
    there = Engine.connect(served.host)
    yield there
    there.client.close()
    # The SDK leaves those sockets open that nobody answered.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    gc.unfreeze()


EITHER = pytest.mark.parametrize("served", [200, 403], indirect=True, ids=["events", "no-events"])


@EITHER
def test_the_errors_of_an_engine_that_runs_on_stay_what_they_are(engine: Engine) -> None:
    """Those of a container that was killed among them; and EngineMissing, where a client is what is missing."""
    for error in (ValueError("x"), TfbuildError("killed"), TimeoutError(), EngineMissing("no docker program")):
        with pytest.raises(type(error)) as raised, engine.watched("verification"):
            raise error
        assert raised.value is error
    with engine.watched("verification") as require_engine:
        assert engine.cpus == 2, "other requests have other connections"
        require_engine()


@EITHER
def test_an_engine_that_is_gone_is_the_cause(engine: Engine, served: Served) -> None:
    with engine.watched("verification") as require_engine:
        served.kill()
        with pytest.raises(EngineMissing) as raised:
            require_engine()
    assert raised.value.exit_code == 20
    assert raised.value.reason == (
        f"the container engine stopped answering during verification: Connection refused ({served.host})"
    )
    assert raised.value.hint == "invoke engine; run the same command again: what was made is kept"


def test_a_lost_engine_by_ssh_is_named_by_its_host(
    engine: Engine, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`invoke engine` would start another one, on this machine."""
    monkeypatch.setattr(connection, "tunnel_to", lambda _: served.host)
    by_ssh = Engine(engine.client, served.host, connection.Endpoint(address="ssh://web1"))
    with by_ssh.watched("verification") as require_engine:
        served.kill()
        with pytest.raises(EngineMissing, match="answers at ssh://web1: Connection refused") as raised:
            require_engine()
    assert "ssh web1 docker version; run the same" in raised.value.hint


def test_an_engine_that_is_back_is_the_cause_too_of_any_error(engine: Engine, served: Served) -> None:
    error = TfbuildError("the streams of container x were lost while it was running")

    def fail() -> None:
        served.kill()
        served.start()
        assert engine.cpus == 2, "it answers as if nothing had happened"
        raise error

    with pytest.raises(EngineMissing) as raised, engine.watched("verification"):
        fail()
    assert raised.value.exit_code == 20
    assert raised.value.reason == "the container engine ended during verification, and was started again"
    assert raised.value.hint.startswith("run the same command again")
    assert raised.value.__context__ is error
    with engine.watched("verification") as require_engine:
        require_engine()


@EITHER
def test_a_full_disk_of_the_engine_is_the_cause_of_any_error(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It may say anything of it, such as that a folder is missing which it could not make."""
    with engine.watched("verification") as require_engine:
        monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=faults.FULL_BYTES))
        require_engine()
        monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=faults.FULL_BYTES - 1))
        with pytest.raises(DiskFull) as raised:
            require_engine()
    assert raised.value.reason == f"the engine's disk is full: no space is left on {tmp_path} for verification"
    with pytest.raises(DiskFull, match="no space is left on"), engine.watched("verification"):
        raise TfbuildError("the container engine refused: chown work/work: no such file or directory")
    own = DiskFull("no space is left in /tmp for a copy of the image's /x")
    with pytest.raises(DiskFull) as raised, engine.watched("verification"):
        raise own
    assert raised.value is own


def test_the_disk_of_images_is_that_of_the_containerd_that_keeps_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With Docker 29, that is the system's, if there is one."""
    config, own, named = (tmp_path / name for name in ("config.toml", "own", "named"))
    own.mkdir()
    named.mkdir()
    monkeypatch.setattr(client, "CONTAINERD_CONFIG", config)
    monkeypatch.setattr(client, "CONTAINERD_ROOT", own)
    info: dict[str, Any] = {"DockerRootDir": str(tmp_path), "Containerd": {"Address": client.CONTAINERD_SOCKET}}
    version = {"Version": "29", "Os": "linux", "Arch": "amd64"}
    there = Engine(SimpleNamespace(version=lambda: version, info=lambda: info))
    assert there.data_root == tmp_path
    info["DriverStatus"] = [["driver-type", "io.containerd.snapshotter.v1"]]
    assert there.data_root == own
    for text, root in ((f'version = 2\nroot = "{named}"\n', named), ("version = 2\n", own), ("root", own)):
        config.write_text(text)
        assert there.data_root == root
    info["Containerd"] = {"Address": "/var/run/docker/containerd/containerd.sock"}
    assert there.data_root == tmp_path
    info["OperatingSystem"] = "Docker Desktop"
    assert there.data_root is None, "that of its VM"


def test_an_engine_that_is_shutting_down_is_gone_though_it_still_answers(engine: Engine, served: Served) -> None:
    """It kills its containers meanwhile."""
    with engine.watched("verification") as require_engine:
        assert engine.cpus == 2
        served.shut_down()
        assert engine.cpus == 2, "over the same connection"
        with pytest.raises(EngineMissing, match="stopped answering"):
            require_engine()


def test_an_engine_that_is_gone_at_the_start_is_missed_at_once(engine: Engine, served: Served) -> None:
    served.kill()
    with pytest.raises(EngineMissing, match="no container engine answers"), engine.watched("verification"):
        pytest.fail("nothing can be done without an engine")


def test_an_error_that_was_being_handled_is_not_the_cause_of_the_next_one() -> None:
    """As where a clean-up after a failed transfer fails, because the engine has ended."""
    refused = requests.exceptions.ConnectionError("refused")
    refused.__context__ = TfbuildError("the transfer failed", hint="again")
    with pytest.raises(EngineMissing) as raised, faults.translated():
        raise refused
    assert raised.value.reason == "no container engine answers: refused"
