"""Which engine a run uses, and the `docker` SDK's connection to it.

The engine is the one that the user names, else the one that Docker's own client would use: DOCKER_HOST, or its current
context.
"""

import os
import shutil
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import docker
from docker.errors import TLSParameterError
from docker.tls import TLSConfig

from tfbuild.engine import ssh
from tfbuild.engine.faults import NO_ANSWER, translated, unanswered
from tfbuild.errors import EngineMissing
from tfbuild.oci import credentials

SOCKET, DEFAULT = "unix:///var/run/docker.sock", "default"
# Docker's own client applies these to an address in DOCKER_HOST, even to that of a socket, but not to a context.
TLS_VARIABLES = ("DOCKER_TLS", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH")


def environment(engine: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment in which Docker's own client uses `engine`: an address, a context, or "" for its own."""
    if not engine:
        return dict(environ)
    is_address = "://" in engine
    dropped = {"DOCKER_HOST", "DOCKER_CONTEXT"}
    if not is_address or engine.startswith("unix://"):
        dropped |= {*TLS_VARIABLES}
    kept = {name: value for name, value in environ.items() if name not in dropped}
    return {**kept, "DOCKER_HOST" if is_address else "DOCKER_CONTEXT": engine}


def choose(engine: str) -> str:
    """Return what the user names. Raises EngineMissing for an unknown context, UsageError for a bad ssh address."""
    if engine.startswith("ssh://"):
        ssh.destination(engine)
    elif engine and "://" not in engine:
        endpoint(environment(engine, os.environ))
    return engine


def elsewhere(engine: str) -> bool:
    """Return whether `engine` is not at a socket of this machine, without connecting to it."""
    return not endpoint(environment(engine, os.environ)).local


# --- where it is ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """An engine's `address` (unix://, tcp://, ssh://), its TLS settings, and the name of its context if it has one."""

    address: str
    tls: TLSConfig | None = None
    context: str = ""

    @property
    def local(self) -> bool:
        """Whether the address is a socket or pipe of this machine."""
        return self.address.startswith(("unix://", "npipe://"))


def endpoint(environ: Mapping[str, str]) -> Endpoint:
    """Return the engine that Docker's own client would talk to. Raises EngineMissing for bad contexts and TLS files."""
    try:
        if host := environ.get("DOCKER_HOST"):
            return Endpoint(address=host, tls=_environment_tls(environ))
        return _context(environ)
    except TLSParameterError as error:
        raise EngineMissing(
            f"the engine's TLS certificates cannot be used: {str(error).split(' TLS configurations')[0]}",
            hint="DOCKER_CERT_PATH names a folder with ca.pem, cert.pem and key.pem",
        ) from error


# One line each: the name, the address, whether to trust any certificate, and the folder of TLS files.
FIELDS = "\n".join(
    f"{{{{{name}}}}}"
    for name in (".Name", ".Endpoints.docker.Host", ".Endpoints.docker.SkipTLSVerify", ".Storage.TLSPath")
)


def _context(environ: Mapping[str, str]) -> Endpoint:
    """Return the endpoint of the context in DOCKER_CONTEXT, else of Docker's current one."""
    name = environ.get("DOCKER_CONTEXT", "")
    program = shutil.which("docker", path=environ.get("PATH", os.defpath))
    if program is None:
        if name in ("", DEFAULT):
            return Endpoint(address=SOCKET)
        raise EngineMissing(f"the Docker context {name!r} needs a docker program, and none is on PATH")
    command = [program, "context", "inspect", "--format", FIELDS, *([name] if name else [])]
    done = subprocess.run(command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        why = done.stderr.strip().rpartition("\n")[2]
        missing = f"there is no Docker context {name!r}" if "context not found" in why else ""
        known = "docker context ls; or ssh://HOST, tcp://HOST:PORT"
        hint = f"--engine unix://{name}" if name.startswith("/") else known
        raise EngineMissing(missing or f"the Docker context {name!r} cannot be used: {why}", hint=hint)
    name, address, trusting, files = done.stdout.splitlines()
    folder, verify = Path(files, "docker"), trusting != "true"
    tls = None
    if address.startswith("tcp://") and (folder.is_dir() or not verify):
        tls = _tls(folder, verify=verify) if folder.is_dir() else TLSConfig(verify=False)
    return Endpoint(address=address or SOCKET, tls=tls, context="" if name == DEFAULT else name)


def _environment_tls(environ: Mapping[str, str]) -> TLSConfig | None:
    """Read the TLS variables as Docker's client does: any value means yes, and certificates alone enable nothing."""
    verify, path = bool(environ.get("DOCKER_TLS_VERIFY")), environ.get("DOCKER_CERT_PATH", "")
    if not (verify or environ.get("DOCKER_TLS")) or not environ["DOCKER_HOST"].startswith("tcp://"):
        return None
    return _tls(Path(path or environ.get("DOCKER_CONFIG") or os.path.expanduser("~/.docker")), verify=verify)


def _tls(folder: Path, *, verify: bool) -> TLSConfig:
    """Read the certificates in a folder; the client's own may be missing, since not every engine asks for one."""
    ca, certificate, key = (folder / name for name in ("ca.pem", "cert.pem", "key.pem"))
    pair = (str(certificate), str(key)) if certificate.is_file() or key.is_file() else None
    return TLSConfig(client_cert=pair, ca_cert=str(ca) if ca.is_file() else None, verify=verify)


# --- the SDK's connection ---------------------------------------------------------------------------------------------

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


def open_client(endpoint: Endpoint) -> Any:
    """Return the SDK's client for an engine, after it answered. Raises EngineMissing."""
    address = endpoint.address
    try:
        if address.startswith("ssh://"):
            address = ssh.tunnel_to(address)
        _check_address(address)
        with translated():
            _check_socket(address)
            with credentials.readable():
                client = _Client(base_url=address, tls=endpoint.tls or False, timeout=ssh.CONNECT_SECONDS)
            client.api.timeout = CALL_SECONDS
            return client
    except EngineMissing as error:
        if endpoint.local or not error.reason.startswith(NO_ANSWER):
            raise
        why = error.reason.removeprefix(NO_ANSWER)
        raise EngineMissing(
            f"no container engine answers at {endpoint.address}: {why}", hint=_advice(endpoint, why)
        ) from error


def _check_address(address: str) -> None:
    """Raise EngineMissing for an address that the SDK cannot read; its own errors could mean anything."""
    try:
        _ = urlsplit(docker.utils.parse_host(address)).port  # raises ValueError above 65535
    except (docker.errors.DockerException, ValueError) as error:
        raise EngineMissing(
            f"{address!r} is not an engine's address: {error}",
            hint="DOCKER_HOST and --engine take unix://PATH, tcp://HOST:PORT or ssh://HOST",
        ) from None


def _check_socket(address: str) -> None:
    """Raise EngineMissing if nobody listens at the engine's socket; the SDK would leave its own end of it open."""
    if address.startswith("unix://"):
        try:
            with socket.socket(socket.AF_UNIX) as end:
                end.settimeout(ssh.CONNECT_SECONDS)
                end.connect(address.removeprefix("unix://"))
        except OSError as error:
            why = f"{error.strerror or error} ({address})"
            raise EngineMissing(f"{NO_ANSWER}{why}", hint=unanswered(error)) from error


def _advice(endpoint: Endpoint, reason: str) -> str:
    """Return the hint for an engine on another machine that does not answer."""
    if endpoint.address.startswith("ssh://"):
        return ssh.advice(endpoint.address, reason)
    option = f"--context {endpoint.context}" if endpoint.context else f"--host {endpoint.address}"
    command = f"docker {option} version"
    if "400 Client Error" in reason:
        return (
            "it may require TLS: DOCKER_TLS_VERIFY=1 and DOCKER_CERT_PATH=FOLDER, or a context with certificates; "
            f"{command}"
        )
    if "certificate" in reason:
        source = f"the context {endpoint.context}" if endpoint.context else "DOCKER_CERT_PATH"
        return f"the CA and client certificate of {source} must be those that the engine was set up with; {command}"
    return f"is it up, and reachable from here? {command}"
