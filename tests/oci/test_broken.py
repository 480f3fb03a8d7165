"""Registries that break off, hang or are in trouble: one message, in bounded time, and the next request goes well."""

import json
import socket
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests import broken
from tfbuild.errors import RegistryRefused
from tfbuild.oci import transport
from tfbuild.oci.client import Registry
from tfbuild.oci.manifests import INDEX
from tfbuild.oci.references import Repository

INDEX_OF_NOTHING = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": []}).encode()
PATH = "/v2/us/x/manifests/t"
MESSAGES = {
    "reset": "broke off: Connection reset by peer",
    "short": "broke off: the connection ended early",
    "stall": "broke off: no answer in time",
    "silence": "does not answer: no answer in time",
    "500": "answers 500 Trouble",
    "503,": "answers 503 Trouble",
    "429,": "answers 429 Trouble",
}


MOST_PATIENCE = transport.MOST_PATIENCE


@pytest.fixture(autouse=True)
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr(transport, "SECONDS", 0.5)
    monkeypatch.setattr(transport, "TRIES", 1)
    monkeypatch.setattr(transport, "MOST_PATIENCE", 0)


def registry(port: int) -> Registry:
    return Registry(Repository.parse(f"127.0.0.1:{port}/us/x"))


@pytest.mark.parametrize("fault", broken.FAULTS)
def test_a_broken_answer_is_told_by_its_cause_and_asked_for_again(fault: str) -> None:
    with broken.serve({PATH: INDEX_OF_NOTHING}) as server:
        server.fault = fault
        there, begun = registry(server.port), time.monotonic()
        with pytest.raises(RegistryRefused, match=MESSAGES[fault]) as refusal:
            there.manifest("t")
        assert refusal.value.hint
        assert "\n" not in refusal.value.reason
        assert time.monotonic() - begun < 30
        server.fault = ""
        manifest = there.manifest("t")
    assert manifest is not None
    assert manifest.content == INDEX_OF_NOTHING


def test_a_registry_that_wants_an_hour_of_patience_gets_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr(transport, "MOST_PATIENCE", MOST_PATIENCE)
    monkeypatch.setattr(time, "sleep", waited.append)
    with broken.serve({}) as server:
        server.fault = "429,"
        with pytest.raises(RegistryRefused, match="answers 429"):
            registry(server.port).manifest("t")
    assert waited == [60]


def test_an_answer_in_drips_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte comes before the socket's own limit is over."""
    monkeypatch.setattr(transport, "MOST_SECONDS", 0.5)
    ended = threading.Event()

    def drip(listening: socket.socket) -> None:
        end, _ = listening.accept()
        with end:
            end.recv(1 << 16)
            end.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
            while not ended.wait(0.1):
                end.sendall(b" ")

    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        thread = threading.Thread(target=drip, args=(listening,), daemon=True)
        thread.start()
        begun = time.monotonic()
        try:
            with pytest.raises(RegistryRefused, match="took longer than 0 s to send"):
                registry(listening.getsockname()[1]).manifest("t")
        finally:
            ended.set()
        thread.join()
    assert time.monotonic() - begun < 30
