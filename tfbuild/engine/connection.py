"""Connect the `docker` SDK to an engine, and explain why one does not answer."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import docker

from tfbuild.engine.docker_contexts import Endpoint
from tfbuild.engine.sdk_errors import NO_ANSWER, translated
from tfbuild.errors import EngineMissing
from tfbuild.oci import credentials

CONNECT_SECONDS = 10
CALL_SECONDS = 300


class _Api(docker.APIClient):  # type: ignore[misc]
    """Requests lets REQUESTS_CA_BUNDLE overrule a session's CA; this session's CA is the engine's, not the web's."""

    def merge_environment_settings(self, url: Any, proxies: Any, stream: Any, verify: Any, cert: Any) -> Any:
        return super().merge_environment_settings(url, proxies, stream, self.verify if verify is None else verify, cert)

    def _post(self, url: str, **options: Any) -> Any:
        """Pulls get the timeout of all other requests: the SDK would wait forever for a registry that went silent."""
        if "fromImage" in (options.get("params") or {}):
            options["timeout"] = self.timeout
        return super()._post(url, **options)


class _Client(docker.DockerClient):  # type: ignore[misc]
    def __init__(self, **options: Any) -> None:
        self.api = _Api(**options)


def open_client(address: str, tls: Any) -> Any:
    """Return the SDK's client for the engine at `address`. Raises EngineMissing."""
    with translated():
        _check_socket(address)
        with credentials.readable():
            client = _Client(base_url=address, tls=tls or False, timeout=CONNECT_SECONDS)
        client.api.timeout = CALL_SECONDS
        return client


@contextmanager
def explained(endpoint: Endpoint) -> Iterator[None]:
    """Name a remote engine that does not answer, and say what to do about it."""
    try:
        yield
    except EngineMissing as error:
        if endpoint.local:
            raise
        raise EngineMissing(
            f"no container engine answers at {endpoint.address}: {error.reason.removeprefix(NO_ANSWER)}",
            hint=_advice(endpoint, error.reason),
        ) from error


def check_address(address: str) -> None:
    """Raise EngineMissing for an address that the SDK cannot read; its own errors could mean anything."""
    try:
        _ = urlsplit(docker.utils.parse_host(address)).port  # raises ValueError above 65535
    except (docker.errors.DockerException, ValueError) as error:
        raise EngineMissing(
            f"{address!r} is not an engine's address: {error}",
            hint="DOCKER_HOST and --engine take unix://PATH, tcp://HOST:PORT or ssh://HOST",
        ) from None


def _check_socket(address: str) -> None:
    """Raise EngineMissing where nobody listens at the engine's socket; the SDK would leave its own end of it open."""
    if address.startswith("unix://"):
        try:
            with socket.socket(socket.AF_UNIX) as end:
                end.settimeout(CONNECT_SECONDS)
                end.connect(address.removeprefix("unix://"))
        except OSError as error:
            why = f"{error.strerror or error} ({address})"
            raise EngineMissing(f"{NO_ANSWER}{why}", hint="invoke engine") from error


def _advice(endpoint: Endpoint, reason: str) -> str:
    """Return the hint for an engine on another machine that does not answer."""
    option = f"--context {endpoint.context}" if endpoint.context else f"--host {endpoint.address}"
    command = f"docker {option} version"
    if "400 Client Error" in reason:
        return (
            "it may want TLS: DOCKER_TLS_VERIFY=1 and DOCKER_CERT_PATH=FOLDER, or a context with certificates; "
            f"{command}"
        )
    if "certificate" in reason:
        files = f"the context {endpoint.context}" if endpoint.context else "DOCKER_CERT_PATH"
        return f"the CA and client certificate of {files} must be those that the engine was set up with; {command}"
    return f"is it up, and reachable from here? {command}"
