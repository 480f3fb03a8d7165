"""The readers of JSON and TOML that somebody else wrote, for the fuzzer, each with a valid document to start from."""

import contextlib
import io
import json
import os
from collections.abc import Iterable
from pathlib import Path
from unittest.mock import patch

import msgspec
from requests import PreparedRequest, Response
from requests.adapters import BaseAdapter
from urllib3 import HTTPResponse

from tests.cpu.machines import machine
from tfbuild import cpu, fleet, plan
from tfbuild.errors import TfbuildError
from tfbuild.in_container.smoke.probes import Computed, Environment, TensorFlow
from tfbuild.measure import probe
from tfbuild.oci import client, credentials, manifests, references
from tfbuild.oci.client import Registry
from tfbuild.pipeline.wheel import SCHEMA
from tfbuild.plan import Request, options_file
from tfbuild.publish import indexes, wheel_index, wheel_rows

ZEROS = 64 * "0"
DIGEST = f"sha256:{ZEROS}"


class Answers(BaseAdapter):
    """A registry and its token server, whose every answer is the content."""

    def __init__(self, content: bytes) -> None:
        super().__init__()
        self.content = content

    def send(self, request: PreparedRequest, *_: object, **__: object) -> Response:
        answer = Response()
        open_to_all = "Authorization" in request.headers or "/v2/" not in str(request.url)
        answer.status_code = 200 if open_to_all else 401
        answer.url, answer.request = str(request.url), request
        answer.headers["Content-Type"] = manifests.INDEX
        answer.headers["WWW-Authenticate"] = 'Bearer realm="http://127.0.0.1:1/token",service="x"'
        answer.raw = HTTPResponse(io.BytesIO(self.content), preload_content=False)
        return answer

    def close(self) -> None:
        """Nothing is open."""


def registry_server(content: bytes) -> None:
    registry = Registry(references.Repository.parse("127.0.0.1:1/us/x"))
    session = registry._request.__self__._session  # type: ignore[attr-defined]
    session.trust_env = False
    session.mount("http://", Answers(content))
    digest = manifests.digest_of(content)
    for ask in (
        registry.tags,
        lambda: client.attached_types(registry, digest),
        lambda: registry.manifest("x"),
        lambda: indexes.refuse_yanked(registry, "x"),
    ):
        with contextlib.suppress(TfbuildError):
            ask()


def docker_folder(folder: Path) -> None:
    """Read the configuration of Docker's client; no helper for credentials is there."""
    with patch.dict(os.environ, {"DOCKER_CONFIG": str(folder), "PATH": str(folder)}):
        for host in ("docker.io", "127.0.0.1:1"):
            with contextlib.suppress(TfbuildError):
                credentials.stored(host)


def fleet_images(path: Path) -> None:
    """Read a fleet, and plan its images as `invoke matrix --fleet` does."""
    for image in fleet.read_fleet(path).images[:3]:
        with contextlib.suppress(TfbuildError):
            plan.select(Request(platform=image.platform, cpu=image.cpu), None)


def planned_options(path: Path) -> None:
    for build in options_file.find_options_file(str(path)).builds[:3]:
        with contextlib.suppress(TfbuildError):
            plan.select(build, None)


def probe_lines(content: bytes) -> None:
    for kind in (Environment, TensorFlow, Computed):
        with contextlib.suppress(ValueError):
            probe.parse_records(content.decode(errors="replace"), (kind, kind))


def wheel_list(content: bytes) -> None:
    for row in wheel_rows.read_list(content, "x").wheels:
        wheel_rows.is_sound(row)


def sidecars(folder: Path) -> None:
    """Read the file beside a wheel as an index does."""
    wheel_index._sidecar(folder / "x.whl", ZEROS)


# --- a valid document of each -----------------------------------------------------------------------------------------

OPERATION = {"name": "x", "values": [1.5], "note": "x"}
PLAN, AUDIT = {"target": "mkl", "features": ["avx"]}, {"platform_tag": "manylinux_2_28_x86_64"}
SIDECAR = {"schema": SCHEMA, "sha256": ZEROS, "plan": PLAN, "audit": AUDIT}
NAME = "tensorflow_cpu-2.14.0-cp311-cp311-manylinux_2_28_x86_64.whl"
WHEEL = {
    "file": f"pool/{ZEROS}/{NAME}", "size": 1, "sha256": ZEROS, "metadata": ZEROS, "project": "tensorflow_cpu",
    "version": "2.14.0", "release": "2.14.0", "python": "3.11", "requires_python": ">=3.9", "platform": "linux/amd64",
    "glibc": "2.28", "target": "mkl", "instruction_set": "avx", "features": ["avx"], "created": "2026-01-01T00:00:00Z",
    "yanked": "", "variant": {"file": "x", "size": 1, "sha256": ZEROS},
}  # fmt: skip
DOCUMENTS: dict[str, tuple[object, ...]] = {
    "docker": (
        {"auths": {"127.0.0.1:1": {"auth": "eDp5", "identitytoken": "x"}}, "currentContext": "x"},
        {"credsStore": "x", "credHelpers": {"127.0.0.1:1": "x"}, "proxies": {"default": {}}},
    ),
    "server": (
        {"token": "x", "access_token": "x", "tags": ["x"], "errors": [{"message": "x", "detail": "x"}]},
        {"manifests": [{"digest": DIGEST, "artifactType": "x", "annotations": {}}], "schemaVersion": 2},
        {"created": "2026-01-01T00:00:00Z", "reason": "x"},
    ),
    "probe": (OPERATION,),
    "wheels": ({"schema": wheel_rows.SCHEMA, "wheels": [WHEEL], "url": "x"},),
    "sidecar": (SIDECAR,),
}
TABLES = b"""release = "2.20"
cpu = "haswell"
bazel-flag = ["--x=1"]
[[build]]
python = "3.12"
"""


def documents(name: str) -> Iterable[bytes]:
    """Return valid documents for the reader `name`."""
    yield from (json.dumps(document).encode() for document in DOCUMENTS.get(name, ()))


def recorded_fleet() -> Iterable[bytes]:
    yield msgspec.json.encode(fleet.choose({"x": cpu.parse(machine("rhel7-haswell").cpuinfo())}, 1))
