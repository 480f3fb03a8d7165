"""An engine that ends is noticed, whether it is back or not, and nothing else is taken for that.

The engine of these tests is a process that answers a few requests at a socket, and can be killed.
"""

import gc
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from tfbuild.engine import Engine
from tfbuild.engine.loss import HeldConnection
from tfbuild.errors import EngineMissing, TfbuildError

# Its arguments: the socket, and how it answers who asks for events. As Docker does on SIGTERM, it first stops to accept
# connections, and serves those that it has until it has stopped its containers.
PROGRAM = """
import json, os, signal, socketserver, sys
from http.server import BaseHTTPRequestHandler

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if "/events" in self.path:
            return self.answer(None if EVENTS == 200 else b"{}", EVENTS)
        names = {"version": VERSION, "info": {"NCPU": 2}, "json": []}
        name = self.path.partition("?")[0].rpartition("/")[2]
        self.answer(json.dumps(names[name]).encode(), 200)

    def answer(self, body, code):
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header(*(("Transfer-Encoding", "chunked") if body is None else ("Content-Length", str(len(body)))))
        self.end_headers()
        if body is None:
            self.rfile.read()
        else:
            self.wfile.write(body)

    def address_string(self): return ""
    def log_message(self, *_): pass

class Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True

PATH, EVENTS = sys.argv[1], int(sys.argv[2])
VERSION = {"Version": "1", "Os": "linux", "Arch": "amd64", "ApiVersion": "1.43", "MinAPIVersion": "1.24"}
if os.path.exists(PATH):
    os.unlink(PATH)
server = Server(PATH, Handler)
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
print("ready", flush=True)
try:
    server.serve_forever()
except SystemExit:
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
        command = [sys.executable, "-c", PROGRAM, str(self.socket), str(self._events)]
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
    there = Engine.connect(served.host)
    yield there
    there.client.close()
    # The SDK leaves those sockets open that nobody answered.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


REFUSED = pytest.mark.parametrize("served", [403], indirect=True)
EITHER = pytest.mark.parametrize("served", [200, 403], indirect=True, ids=["events", "no-events"])


@EITHER
def test_an_engine_that_runs_on_is_not_missed(engine: Engine) -> None:
    with engine.watched("verification") as require_engine:
        require_engine()
        time.sleep(0.1)
        assert engine.cpus == 2, "other requests have other connections"
        require_engine()


@EITHER
def test_the_errors_of_an_engine_that_runs_on_stay_what_they_are(engine: Engine) -> None:
    """Those of a container that was killed among them; and EngineMissing, where a client is what is missing."""
    for error in (ValueError("x"), TfbuildError("killed"), TimeoutError(), EngineMissing("no docker program")):
        with pytest.raises(type(error)) as raised, engine.watched("verification"):
            raise error
        assert raised.value is error


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
    assert raised.value.hint == "invoke engine; the image is kept: run the same command again"


def test_an_engine_that_is_back_is_the_cause_too(engine: Engine, served: Served) -> None:
    with engine.watched("verification") as require_engine:
        served.kill()
        served.start()
        assert engine.cpus == 2, "it answers as if nothing had happened"
        with pytest.raises(EngineMissing) as raised:
            require_engine()
    assert raised.value.exit_code == 20
    assert raised.value.reason == "the container engine ended during verification, and was started again"
    assert raised.value.hint.startswith("the image is kept: run the same command again")


def test_any_error_has_the_engine_s_end_as_its_cause(engine: Engine, served: Served) -> None:
    error = TfbuildError("the streams of container x were lost while it was running")

    def fail() -> None:
        served.kill()
        served.start()
        raise error

    with pytest.raises(EngineMissing, match="and was started again") as raised, engine.watched("verification"):
        fail()
    assert raised.value.__context__ is error


def test_an_engine_that_was_restarted_before_is_not_missed(engine: Engine, served: Served) -> None:
    served.kill()
    served.start()
    with engine.watched("verification") as require_engine:
        require_engine()


@REFUSED
def test_where_events_are_refused_an_engine_that_is_back_is_not_noticed(engine: Engine, served: Served) -> None:
    with engine.watched("verification") as require_engine:
        served.kill()
        served.start()
        require_engine()


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


def test_a_connection_that_was_closed_is_none_of_the_engine_s(engine: Engine) -> None:
    before = sockets()
    held = HeldConnection(engine.client)
    assert sockets() == before + 1
    held.close()
    assert sockets() == before


def sockets() -> int:
    return sum(1 for path in Path("/proc/self/fd").iterdir() if path.is_socket())
