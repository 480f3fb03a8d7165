"""Transfers whose engine is lost on the way: a relay between tfbuild and the real engine breaks off."""

import json
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.with_engine.test_registry import build, made, place, push, server
from tfbuild import plan
from tfbuild.cli.options import host_cpu
from tfbuild.engine import Engine, connection, transfer
from tfbuild.errors import RegistryRefused
from tfbuild.oci.client import Registry
from tfbuild.plan import Request
from tfbuild.util.progress import Progress

__all__ = ["made", "place", "server"]  # fixtures
pytestmark = pytest.mark.engine
TRANSFERS = (b"/push?", b"/images/create?")


class Relay:
    """Hands on what an engine and its client say; `cuts`: so many transfers end after the engine's first words.

    `stalls`: they do not end, and nothing more comes.
    """

    def __init__(self, address: str, *, cuts: int, stalls: bool) -> None:
        self.address, self.cuts, self.stalls = address.removeprefix("unix://"), cuts, stalls
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.host = f"tcp://127.0.0.1:{self.listening.getsockname()[1]}"
        self.ends: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self.listening.accept()
                far = socket.socket(socket.AF_UNIX)
                far.connect(self.address)
                self.ends += [near, far]
                requested = threading.Event()
                for one, other, back in ((near, far, False), (far, near, True)):
                    threading.Thread(target=self._pump, args=(one, other, requested, back), daemon=True).start()

    def _pump(self, one: socket.socket, other: socket.socket, asked: threading.Event, back: bool) -> None:
        with suppress(OSError):
            while data := one.recv(1 << 16):
                if not back and any(words in data for words in TRANSFERS) and self.cuts:
                    self.cuts -= 1
                    asked.set()
                other.sendall(data)
                if back and asked.is_set() and b'"status"' in data:
                    if self.stalls:
                        return
                    break
            else:
                other.shutdown(socket.SHUT_WR)
                return
        for end in (one, other):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.listening.shutdown(socket.SHUT_RDWR)
        for end in (self.listening, *self.ends):
            end.close()


@contextmanager
def relayed(engine: Engine, *, cuts: int, stalls: bool = False) -> Iterator[Engine]:
    endpoint = connection.endpoint(engine.environ)
    relay = Relay(endpoint.address, cuts=cuts, stalls=stalls)
    try:
        between = Engine.connect(relay.host)
        if stalls:
            between.client.api.timeout = 3
        yield between
        between.client.close()
    finally:
        relay.close()
    assert relay.cuts == 0


@pytest.mark.parametrize("stalls", [False, True])
def test_a_push_whose_engine_breaks_off_is_tried_again(
    stalls: bool,
    engine: Engine,
    made: Callable[..., str],
    place: Registry,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transfer, "WAIT_SECONDS", 0.1)
    image = made(build("avx"))
    with relayed(engine, cuts=2, stalls=stalls) as between:
        assert push(between, image, place, tmp_path).uploaded
    assert place.digest(build("avx").id)


@pytest.mark.parametrize("stalls", [False, True])
def test_a_pull_whose_engine_breaks_off_is_tried_again(
    stalls: bool,
    engine: Engine,
    made: Callable[..., str],
    place: Registry,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transfer, "WAIT_SECONDS", 0.1)
    digest = push(engine, made(build("avx")), place, tmp_path).digest
    ref = f"{place.repository}@{digest}"
    with relayed(engine, cuts=1, stalls=stalls) as between:
        transfer.again(lambda: between.pull(ref, Progress()), Progress())
        assert between.exists(ref)


# --- credentials, which the SDK reads for the engine ------------------------------------------------------------------


def test_a_helper_that_is_not_there_is_not_taken_for_an_engine_that_is_not(
    engine: Engine, made: Callable[..., str], place: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = made(build("avx"))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("DOCKER_HOST", connection.endpoint(engine.environ).address)
    (tmp_path / "config.json").write_text(json.dumps({"credsStore": "nobody-has-this"}))
    with pytest.raises(RegistryRefused, match=r"docker-credential-nobody-has-this not installed"):
        push(Engine.connect(), image, place, tmp_path)
    assert place.tags() == []
    (tmp_path / "config.json").write_text(json.dumps({"auths": {place.repository.host: {"auth": "no base64!"}}}))
    with pytest.raises(RegistryRefused, match="stored credentials cannot be read"):
        Engine.connect()


# --- another engine's machine -----------------------------------------------------------------------------------------


def test_the_cpu_of_an_engine_elsewhere_is_read_there(
    engine: Engine, invoke: Callable[..., "subprocess.CompletedProcess[str]"]
) -> None:
    """At an address of TCP: as far as its client knows, on another machine."""
    arguments = ("build", "--target", "cpu", "--release", "2.20.0", "--dry-run", "--json", "--base", "bootstrap")
    with relayed(engine, cuts=0) as elsewhere:
        done = invoke(*arguments, "--engine", elsewhere.name)
    (document,) = json.loads(done.stdout)
    here = plan.select(Request(target="cpu", release="2.20.0"), host_cpu(""))
    assert (document["id"], document["platform"]) == (here.id, here.platform)
    assert "detect: the engine's CPU: done" in done.stderr
