"""Which GPUs an engine offers and how they are asked for, by `docker info` as its API has it. No GPU was at hand."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import docker
import pytest

from tfbuild.engine import gpus
from tfbuild.engine.client import ContainerRun, Engine

RUNC = {"io.containerd.runc.v2": {"path": "runc"}, "runc": {"path": "runc"}}
NVIDIA = {**RUNC, "nvidia": {"path": "nvidia-container-runtime"}}
GPU = "nvidia.com/gpu="
ALL = {"Driver": "", "Count": -1, "DeviceIDs": [], "Capabilities": [["gpu"]], "Options": {}}


def cdi(*ids: str) -> list[dict[str, str]]:
    return [{"Source": "cdi", "ID": name} for name in ids]


def asks_for(*ids: str) -> dict[str, Any]:
    return {"Driver": "cdi", "Count": 0, "DeviceIDs": list(ids), "Capabilities": [], "Options": {}}


@pytest.mark.parametrize(
    ("info", "asked"),
    [
        ({"Runtimes": NVIDIA}, ALL),
        ({"Runtimes": NVIDIA, "CDISpecDirs": ["/etc/cdi"], "DiscoveredDevices": None}, ALL),
        (
            {"Runtimes": RUNC, "DiscoveredDevices": cdi("nvidia.com/gpu=0", "nvidia.com/gpu=all", "vendor.com/net=0")},
            asks_for("nvidia.com/gpu=all"),
        ),
        (
            {"Runtimes": NVIDIA, "DiscoveredDevices": cdi(f"{GPU}1", f"{GPU}0", f"{GPU}GPU-8836")},
            asks_for("nvidia.com/gpu=0", "nvidia.com/gpu=1"),
        ),
        ({"Runtimes": RUNC, "DiscoveredDevices": cdi("nvidia.com/gpu=GPU-8836")}, asks_for("nvidia.com/gpu=GPU-8836")),
    ],
)  # fmt: skip
def test_all_gpus_are_asked_for_each_once(info: dict[str, Any], asked: dict[str, Any]) -> None:
    offer = gpus.offered(info)
    assert [dict(request) for request in offer.requests] == [asked]
    assert offer.way
    assert not offer.reason


@pytest.mark.parametrize(
    "info",
    [
        {},
        {"Runtimes": None},
        {"Runtimes": RUNC},
        {"Runtimes": RUNC, "DiscoveredDevices": cdi("amd.com/gpu=all")},
        {"Runtimes": RUNC, "DiscoveredDevices": [{"Source": "other", "ID": "nvidia.com/gpu=0"}]},
    ],
)
def test_where_the_engine_offers_none_the_reason_is_told(info: dict[str, Any]) -> None:
    offer = gpus.offered(info)
    assert offer.requests == ()
    assert "the engine offers no GPU" in offer.reason


class Recorded(BaseHTTPRequestHandler):
    """Answers as an engine does, as far as a container is made and removed; keeps what a container was to be."""

    info: dict[str, Any]
    made: list[dict[str, Any]]

    def do_GET(self) -> None:
        answers = {
            "version": {"Version": "28.2.2", "Os": "linux", "Arch": "amd64", "ApiVersion": "1.43"},
            "info": self.info,
            "json": {"Id": "sha256:1", "Name": "/x", "Config": {}, "State": {}},
        }
        self.answer(answers[self.path.partition("?")[0].rpartition("/")[2]])

    def do_POST(self) -> None:
        self.made.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.answer({"Id": "1", "Warnings": []}, 201)

    def do_DELETE(self) -> None:
        self.answer({}, 204)

    def answer(self, content: object, code: int = 200) -> None:
        body = json.dumps(content).encode() if code != 204 else b""
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@contextmanager
def engine(info: dict[str, Any]) -> Iterator[tuple[Engine, list[dict[str, Any]]]]:
    made: list[dict[str, Any]] = []
    handler = type("Handler", (Recorded,), {"info": info, "made": made})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    client = docker.DockerClient(base_url=f"tcp://127.0.0.1:{server.server_port}", version="1.43")
    try:
        yield Engine(client), made
    finally:
        client.close()
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize(
    ("runtimes", "wanted", "asked"), [(NVIDIA, True, [ALL]), (NVIDIA, False, None), (RUNC, True, [])]
)
def test_a_container_is_made_with_them_where_it_asks(
    runtimes: dict[str, Any], wanted: bool, asked: list[dict[str, Any]] | None
) -> None:
    with engine({"Runtimes": runtimes}) as (found, made):
        with found._container("x", ["true"], {}, (), {}, "none", gpus=wanted):
            pass
        assert made[0]["HostConfig"].get("DeviceRequests") == asked
        assert made[0]["HostConfig"]["CapDrop"] == ["ALL"], "and with no right more than others have"


@pytest.mark.parametrize(
    ("info", "ended", "told"),
    [
        ({"Runtimes": RUNC}, None, gpus.NONE),
        ({"Runtimes": NVIDIA}, (0, ""), ""),
        (
            {"Runtimes": NVIDIA},
            (128, 'Error response from daemon: could not select device driver "" with capabilities: [[gpu]]\n'),
            "the engine offers GPUs (the runtime nvidia), but a container that has them does not start: Error response "
            'from daemon: could not select device driver "" with capabilities: [[gpu]]',
        ),
    ],
)
def test_what_is_offered_and_does_not_start_is_told_as_it_is(
    info: dict[str, Any], ended: tuple[int, str] | None, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []

    def run(*_: object, **given: Any) -> ContainerRun:
        asked.append(given)
        assert ended
        return ContainerRun(exit_code=ended[0], stdout="", stderr=ended[1], seconds=0.1, truncated=False)

    with engine(info) as (found, _):
        monkeypatch.setattr(found, "run", run)
        assert found.lacks_gpus("x") == told
    assert [given["gpus"] for given in asked] == ([True] if ended else [])
