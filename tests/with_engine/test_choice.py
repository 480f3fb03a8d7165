"""An engine that is named: by an address, by a context; detection reads its machine."""

import contextlib
import hashlib
import json
import os
import select
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from urllib.parse import urlsplit

import pytest

from tfbuild import plan
from tfbuild.cli.options import host_cpu
from tfbuild.engine import Engine
from tfbuild.plan import Request

pytestmark = pytest.mark.engine
Invoke = Callable[..., "CompletedProcess[str]"]


def carry(one: socket.socket, other: socket.socket) -> None:
    """Both ways until both ends have said their last; one that hangs up in the middle ends both."""
    with one, other, contextlib.suppress(ConnectionError):
        ends = {one: other, other: one}
        while ends:
            for end in select.select(list(ends), [], [])[0]:
                data = end.recv(1 << 16)
                if data:
                    ends[end].sendall(data)
                else:
                    with contextlib.suppress(OSError):
                        ends[end].shutdown(socket.SHUT_WR)
                    del ends[end]


@pytest.fixture
def address(engine: Engine) -> Iterator[str]:
    """The engine at an address of TCP on loopback: as far as its client knows, on another machine."""
    path = urlsplit(os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")).path
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listening.accept()
                far = socket.socket(socket.AF_UNIX)
                far.connect(path)
                threading.Thread(target=carry, args=(near, far), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    yield f"tcp://127.0.0.1:{listening.getsockname()[1]}"
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()


def test_the_cpu_of_an_engine_elsewhere_is_read_there(address: str, invoke: Invoke) -> None:
    arguments = ("build", "--target", "cpu", "--release", "2.20.0", "--dry-run", "--json", "--base", "bootstrap")
    done = invoke(*arguments, "--engine", address)
    (document,) = json.loads(done.stdout)
    here = plan.select(Request(target="cpu", release="2.20.0"), host_cpu(""))
    assert document["id"] == here.id
    assert document["platform"] == here.platform
    assert "detect: the engine's CPU: done" in done.stderr


def test_a_named_engine_is_the_one_that_is_used(address: str, engine: Engine, invoke: Invoke, tmp_path: Path) -> None:
    nowhere = f"unix://{tmp_path}/none.sock"
    listed = invoke("images", "--json", "--engine", address, env={**os.environ, "DOCKER_HOST": nowhere})
    assert isinstance(json.loads(listed.stdout), list)
    refused = invoke("images", env={**os.environ, "DOCKER_HOST": nowhere}, code=20)
    assert "no container engine answers" in refused.stderr


def test_a_context_is_used_by_its_name_and_an_unknown_one_refused(
    engine: Engine, invoke: Invoke, tmp_path: Path
) -> None:
    meta = tmp_path / "contexts" / "meta" / hashlib.sha256(b"second").hexdigest()
    meta.mkdir(parents=True)
    host = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    named = {"Name": "second", "Metadata": {}, "Endpoints": {"docker": {"Host": host, "SkipTLSVerify": False}}}
    (tmp_path / "config.json").write_text("{}")
    (meta / "meta.json").write_text(json.dumps(named))
    env = {**os.environ, "DOCKER_CONFIG": str(tmp_path)}
    assert json.loads(invoke("images", "--engine", "second", "--json", env=env).stdout) is not None
    refused = invoke("images", "--engine", "third", env=env, code=20)
    assert "there is no Docker context 'third'" in refused.stderr
    assert "default, second" in refused.stderr
