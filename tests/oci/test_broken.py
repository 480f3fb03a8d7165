"""Registries that break off, hang or are in trouble: one message, in bounded time, and the next request goes well."""

import json
import socket
import threading
import time
from contextlib import closing, suppress
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


MOST_WAIT = transport.MOST_WAIT


@pytest.fixture(autouse=True)
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr(transport, "SECONDS", 0.5)
    monkeypatch.setattr(transport, "TRIES", 1)
    monkeypatch.setattr(transport, "MOST_WAIT", 0)


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
    monkeypatch.setattr(transport, "MOST_WAIT", MOST_WAIT)
    monkeypatch.setattr(time, "sleep", waited.append)
    with broken.serve({}) as server:
        server.fault = "429,"
        with pytest.raises(RegistryRefused, match="answers 429"):
            registry(server.port).manifest("t")
    assert waited == [60]


@pytest.mark.parametrize(
    ("said", "message"),
    [(b"SSH-2.0-OpenSSH_9.2\r\n", "it does not speak HTTP"), (b"", "the connection ended without an answer")],
)
def test_a_server_of_another_protocol_is_named_by_what_it_lacks(said: bytes, message: str) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:

        def answer() -> None:
            with suppress(OSError):
                while True:
                    with listening.accept()[0] as end:
                        end.recv(4096)
                        end.sendall(said)

        threading.Thread(target=answer, daemon=True).start()
        port = listening.getsockname()[1]
        try:
            with pytest.raises(RegistryRefused, match=f"^error: 127.0.0.1:{port} does not answer: {message}\n"):
                registry(port).manifest("t")
        finally:
            listening.shutdown(socket.SHUT_RDWR)
