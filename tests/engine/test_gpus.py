"""Which GPUs an engine offers and how they are requested, by `docker info` in the API's form. No real GPU is used."""

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

import docker
import pytest

from tests.engine.api import EngineApi
from tests.servers import serving
from tfbuild.engine import ContainerRun, Engine, sandbox

RUNC = {"io.containerd.runc.v2": {"path": "runc"}, "runc": {"path": "runc"}}
NVIDIA = {**RUNC, "nvidia": {"path": "nvidia-container-runtime"}}
GPU = "nvidia.com/gpu="
ALL = {"Driver": "", "Count": -1, "DeviceIDs": [], "Capabilities": [["gpu"]], "Options": {}}


def cdi(*ids: str) -> list[dict[str, str]]:
    return [{"Source": "cdi", "ID": name} for name in ids]


def request_for(*ids: str) -> dict[str, Any]:
    return {"Driver": "cdi", "Count": 0, "DeviceIDs": list(ids), "Capabilities": [], "Options": {}}


@pytest.mark.parametrize(
    ("info", "request_fields"),
    [
        ({"Runtimes": NVIDIA}, ALL),
        ({"Runtimes": NVIDIA, "CDISpecDirs": ["/etc/cdi"], "DiscoveredDevices": None}, ALL),
        (
            {"Runtimes": RUNC, "DiscoveredDevices": cdi("nvidia.com/gpu=0", "nvidia.com/gpu=all", "vendor.com/net=0")},
            request_for("nvidia.com/gpu=all"),
        ),
        (
            {"Runtimes": NVIDIA, "DiscoveredDevices": cdi(f"{GPU}1", f"{GPU}0", f"{GPU}GPU-8836")},
            request_for("nvidia.com/gpu=0", "nvidia.com/gpu=1"),
        ),
        ({"Runtimes": RUNC, "DiscoveredDevices": cdi(f"{GPU}GPU-8836")}, request_for("nvidia.com/gpu=GPU-8836")),
    ],
)  # fmt: skip
def test_all_gpus_are_requested_each_once(info: dict[str, Any], request_fields: dict[str, Any]) -> None:
    offer = sandbox.offered(info)
    assert [dict(request) for request in offer.requests] == [request_fields]
    assert offer.way


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
def test_where_the_engine_offers_none_there_is_a_reason(info: dict[str, Any]) -> None:
    assert sandbox.offered(info).requests == ()
    with engine(info) as (fake, _):
        assert "the engine offers no GPU" in fake.lacks_gpus("x")


class EngineHandler(EngineApi, BaseHTTPRequestHandler):
    """Answers like an engine when a container is created and removed, and records the requests to create one."""

    info: dict[str, Any]
    created: list[dict[str, Any]]

    def do_GET(self) -> None:
        answers = {
            "version": {"Version": "28.2.2", "Os": "linux", "Arch": "amd64", "ApiVersion": "1.43"},
            "info": self.info,
            "json": {"Id": "sha256:1", "Name": "/x", "Config": {}, "State": {}},
        }
        self.answer(answers[self.path.partition("?")[0].rpartition("/")[2]])

    def do_POST(self) -> None:
        self.created.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.answer({"Id": "1", "Warnings": []}, 201)

    def do_DELETE(self) -> None:
        self.answer({}, 204)


@contextmanager
def engine(info: dict[str, Any]) -> Iterator[tuple[Engine, list[dict[str, Any]]]]:
    created: list[dict[str, Any]] = []
    handler = type("Handler", (EngineHandler,), {"info": info, "created": created})
    with serving(handler) as host, closing(docker.DockerClient(base_url=f"tcp://{host}", version="1.43")) as client:
        yield Engine(client), created


@pytest.mark.parametrize(
    ("runtimes", "with_gpus", "requests"), [(NVIDIA, True, [ALL]), (NVIDIA, False, None), (RUNC, True, [])]
)
def test_a_container_gets_gpus_only_where_it_requests_them(
    runtimes: dict[str, Any], with_gpus: bool, requests: list[dict[str, Any]] | None
) -> None:
    with engine({"Runtimes": runtimes}) as (fake, created):
        with fake._container("x", ["true"], entrypoint=(), gpus=with_gpus):
            pass
        assert created[0]["HostConfig"].get("DeviceRequests") == requests
        assert created[0]["HostConfig"]["CapDrop"] == ["ALL"], (
            "a container with GPUs has no more capabilities than others"
        )


@pytest.mark.parametrize(
    ("info", "trial", "reason"),
    [
        ({"Runtimes": RUNC}, None, sandbox.NO_GPU),
        ({"Runtimes": NVIDIA}, (0, ""), ""),
        (
            {"Runtimes": NVIDIA},
            (128, 'Error response from daemon: could not select device driver "" with capabilities: [[gpu]]\n'),
            "the engine offers GPUs (the runtime nvidia), but a container that has them does not start: Error response "
            'from daemon: could not select device driver "" with capabilities: [[gpu]]',
        ),
    ],
)
def test_gpus_that_are_offered_but_do_not_start_are_reported(
    info: dict[str, Any], trial: tuple[int, str] | None, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[dict[str, Any]] = []

    def run(*_: object, **options: Any) -> ContainerRun:
        runs.append(options)
        assert trial
        return ContainerRun(exit_code=trial[0], stdout="", stderr=trial[1], truncated=False)

    with engine(info) as (fake, _):
        monkeypatch.setattr(fake, "run", run)
        assert fake.lacks_gpus("x") == reason
    assert [options["gpus"] for options in runs] == ([True] if trial else [])
