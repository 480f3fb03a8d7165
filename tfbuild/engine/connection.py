"""Which engine and builder a run uses, and the `docker` SDK's connection to it.

The engine is what the user names, else the environment's address, else the current context. The SDK finds contexts only
beside a config.json, which `docker context create` does not write.
https://docs.docker.com/engine/manage-resources/contexts/
"""

import atexit
import hashlib
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import docker
import msgspec
from docker.context.config import get_current_context_name
from docker.errors import TLSParameterError
from docker.tls import TLSConfig

from tfbuild.engine.faults import NO_ANSWER, translated, unanswered
from tfbuild.errors import EngineMissing
from tfbuild.oci import credentials
from tfbuild.util import files, ssh
from tfbuild.util.files import decode, read_regular
from tfbuild.util.process import Attached
from tfbuild.util.ssh import Destination
from tfbuild.util.terminal import cause

# What to do with Podman, which is not one of Docker's contexts.
PODMAN = (
    "--engine unix:///run/podman/podman.sock for images and inspect; builds need Docker, since Podman has no BuildKit"
)
# Docker's own client applies these to an address in DOCKER_HOST, even to that of a socket, but not to a context.
TLS_VARIABLES = ("DOCKER_TLS", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH")


@dataclass(frozen=True, kw_only=True)
class EngineChoice:
    """What the user names; an empty field leaves the choice to the environment.

    `engine`: ssh://HOST, tcp://HOST:PORT, unix://PATH or a Docker context's name; `builder`: a buildx builder's.
    """

    engine: str = ""
    builder: str = ""

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the environment in which Docker's own client makes this choice."""
        chosen = {"BUILDX_BUILDER": self.builder} if self.builder else {}
        if not self.engine:
            return {**environ, **chosen}
        is_address = "://" in self.engine
        chosen["DOCKER_HOST" if is_address else "DOCKER_CONTEXT"] = self.engine
        dropped = {"DOCKER_HOST", "DOCKER_CONTEXT"}
        if not is_address or self.engine.startswith("unix://"):
            dropped |= {*TLS_VARIABLES}
        return {name: value for name, value in environ.items() if name not in dropped} | chosen

    def elsewhere(self) -> bool:
        """Return whether the engine is not at a socket of this machine, without connecting to it."""
        return not endpoint(self.environment(os.environ)).local


# The environment's choice, if the user names nothing.
USUAL = EngineChoice()


def choose(engine: str, builder: str = "") -> EngineChoice:
    """Check what the user names. Raises EngineMissing for an unknown context, UsageError for a bad ssh address."""
    if engine.startswith("ssh://"):
        ssh.destination(engine)
    elif engine and "://" not in engine and engine != DEFAULT:
        read_context(engine, os.environ)
    return EngineChoice(engine=engine, builder=builder)


# --- Docker's contexts ------------------------------------------------------------------------------------------------

SOCKET = "unix:///var/run/docker.sock"
DEFAULT = "default"
META = "meta.json"
# Sockets and pipes are files of this machine, whatever listens behind them.
LOCAL = ("unix://", "npipe://")


class DockerEndpoint(msgspec.Struct, frozen=True):
    """A context's endpoint of the kind "docker"; a context can also have endpoints of other kinds."""

    host: str = msgspec.field(default="", name="Host")
    skip_tls_verify: bool = msgspec.field(default=False, name="SkipTLSVerify")


class Endpoints(msgspec.Struct, frozen=True):
    docker: DockerEndpoint = DockerEndpoint()


class Meta(msgspec.Struct, frozen=True):
    """The fields of a context's meta.json that are needed here."""

    name: str = msgspec.field(name="Name")
    endpoints: Endpoints = msgspec.field(default=Endpoints(), name="Endpoints")


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """An engine's `address` (unix://, tcp://, ssh://), its TLS settings, and the name of its context if it has one."""

    address: str
    tls: TLSConfig | None = None
    context: str = ""

    @property
    def local(self) -> bool:
        """Whether the address is a file of this machine."""
        return self.address.startswith(LOCAL)

    @property
    def ssh(self) -> bool:
        """Whether it is reached by ssh."""
        return self.address.startswith("ssh://")


def endpoint(environ: Mapping[str, str]) -> Endpoint:
    """Return the engine that Docker's own client would talk to in this environment.

    Raises EngineMissing for missing TLS files and for an unknown context; for the latter the SDK would silently use
    the engine on this machine.
    """
    try:
        if host := environ.get("DOCKER_HOST"):
            return Endpoint(address=host, tls=_environment_tls(environ))
        name = environ.get("DOCKER_CONTEXT") or _current_context() or DEFAULT
        if name == DEFAULT:
            return Endpoint(address=SOCKET)
        found = read_context(name, environ)
        return Endpoint(address=found.host or SOCKET, tls=_context_tls(name, found, environ), context=name)
    except TLSParameterError as error:
        raise EngineMissing(
            f"the engine's TLS certificates cannot be used: {str(error).split(' TLS configurations')[0]}",
            hint="DOCKER_CERT_PATH names a folder with ca.pem, cert.pem and key.pem",
        ) from error


def _current_context() -> str:
    """Return the context in Docker's configuration; the SDK reads no other than the current user's."""
    if not isinstance(name := get_current_context_name() or "", str):
        raise EngineMissing(
            f"the current context in Docker's config.json is not a name: {name!r}", hint="docker context use NAME"
        )
    return name


def read_context(name: str, environ: Mapping[str, str]) -> DockerEndpoint:
    """Return the Docker endpoint of the context `name`. Raises EngineMissing if it is missing or unreadable."""
    file = _context_folder(environ, "meta", name) / META
    try:
        return decode(read_regular(file), Meta).endpoints.docker
    except FileNotFoundError:
        known = f"one of: {', '.join(context_names(environ))}; or ssh://HOST, tcp://HOST:PORT"
        hint = f"--engine unix://{name}" if name.startswith("/") else PODMAN if name == "podman" else known
        raise EngineMissing(f"there is no Docker context {name!r}", hint=hint) from None
    except (OSError, ValueError) as error:
        raise EngineMissing(
            f"the Docker context {name!r} cannot be read: {cause(error)}", hint=f"docker context inspect {name}"
        ) from error


def context_names(environ: Mapping[str, str]) -> list[str]:
    """Return the names of all readable contexts, including the default one."""
    contexts = {DEFAULT}
    for file in (_configuration(environ) / "contexts" / "meta").glob(f"*/{META}"):
        try:
            contexts.add(decode(read_regular(file), Meta).name)
        except (OSError, ValueError):
            continue
    return sorted(contexts)


def _configuration(environ: Mapping[str, str]) -> Path:
    # A user without a name and without HOME, as in some containers, has no home: Path.home() would raise.
    return Path(environ.get("DOCKER_CONFIG") or os.path.expanduser("~/.docker"))


def _context_folder(environ: Mapping[str, str], kind: str, name: str) -> Path:
    return _configuration(environ) / "contexts" / kind / hashlib.sha256(os.fsencode(name)).hexdigest()


def _context_tls(name: str, found: DockerEndpoint, environ: Mapping[str, str]) -> TLSConfig | None:
    folder = _context_folder(environ, "tls", name) / "docker"
    if not folder.is_dir():
        return TLSConfig(verify=False) if found.skip_tls_verify and found.host.startswith("tcp://") else None
    return _tls(folder, verify=not found.skip_tls_verify)


def _environment_tls(environ: Mapping[str, str]) -> TLSConfig | None:
    """Read the TLS variables as Docker's client does: any value means yes, and certificates alone enable nothing."""
    verify, path = bool(environ.get("DOCKER_TLS_VERIFY")), environ.get("DOCKER_CERT_PATH", "")
    if not (verify or environ.get("DOCKER_TLS")) or not environ["DOCKER_HOST"].startswith("tcp://"):
        return None
    return _tls(Path(path) if path else _configuration(environ), verify=verify)


def _tls(folder: Path, *, verify: bool) -> TLSConfig:
    """Read the certificates in a folder; the client's own may be missing, since not every engine asks for one."""
    ca, certificate, key = (folder / name for name in ("ca.pem", "cert.pem", "key.pem"))
    pair = (str(certificate), str(key)) if certificate.is_file() or key.is_file() else None
    return TLSConfig(client_cert=pair, ca_cert=str(ca) if ca.is_file() else None, verify=verify)


# --- the SDK's connection ---------------------------------------------------------------------------------------------

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


def open_client(endpoint: Endpoint) -> Any:
    """Return the SDK's client for an engine, after it answered. Raises EngineMissing."""
    address = tunnel_to(endpoint.address) if endpoint.ssh else endpoint.address
    _check_address(address)
    try:
        with translated():
            _check_socket(address)
            with credentials.readable():
                client = _Client(base_url=address, tls=endpoint.tls or False, timeout=CONNECT_SECONDS)
            client.api.timeout = CALL_SECONDS
            return client
    except EngineMissing as error:
        if endpoint.local:
            raise
        raise EngineMissing(
            f"no container engine answers at {endpoint.address}: {error.reason.removeprefix(NO_ANSWER)}",
            hint=_advice(endpoint, error.reason),
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
                end.settimeout(CONNECT_SECONDS)
                end.connect(address.removeprefix("unix://"))
        except OSError as error:
            why = f"{error.strerror or error} ({address})"
            raise EngineMissing(f"{NO_ANSWER}{why}", hint=unanswered(error)) from error


def _advice(endpoint: Endpoint, reason: str) -> str:
    """Return the hint for an engine on another machine that does not answer."""
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


# --- an engine behind ssh ---------------------------------------------------------------------------------------------
# Each connection to a local socket runs `docker system dial-stdio` on the other machine. The SDK's own ssh support
# needs a second implementation of ssh, and waits forever; Docker's client prompts for passwords. Here one ssh in
# BatchMode, with the user's keys and settings, carries all connections of the process. If the server refuses another
# session (MaxSessions), ssh logs in again for that connection.

# The remote Docker client may take some seconds to find its engine.
ANSWER_SECONDS = 30.0
END_SECONDS = 2.0
# A lost network is noticed after 45 s, and all connections end.
ALIVE = ("-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=3")
# Prints the engine's version, then runs until its stdin closes: it ends with this process, however that ends.
# Docker's client prints an empty line if no engine answers.
KEEP = "sh -c 'v=$(docker version --format {{.Server.Version}}) && echo $v && exec cat >/dev/null'"
DIAL = "docker system dial-stdio"
BACKLOG = 16
HINTS = (
    ("Cannot connect to the Docker daemon", "start the engine there: ssh {host} sudo systemctl start docker"),
    ("permission denied while trying", "that user may not use the engine there: sudo usermod -aG docker USER"),
    ("docker: ", "install Docker there, on the PATH of commands run through ssh: ssh {host} docker version"),
)


class Tunnel:
    """A socket at the address `host`, behind which the engine of another machine answers. Raises EngineMissing."""

    def __init__(self, destination: Destination) -> None:
        if shutil.which("ssh") is None:
            raise EngineMissing(f"{destination} needs ssh, which is not on PATH", hint="apt-get install openssh-client")
        self._stack = ExitStack()
        # A short name: the kernel limits a socket's path to 107 bytes, of which ssh needs 17.
        self._folder = self._stack.enter_context(files.temporary_folder())
        self._destination = destination
        self._control = ("-o", f"ControlPath={self._folder}/m", "-o", "ControlPersist=no", *ALIVE)
        self._connections: list[subprocess.Popen[bytes]] = []
        self._listener = socket.socket(socket.AF_UNIX)
        try:
            self._master = self._connect()
            self._listener.bind(str(self._folder / "engine"))
            self._listener.listen(BACKLOG)
        except BaseException:
            self._listener.close()
            self._stack.close()
            raise
        self.host = f"unix://{self._folder}/engine"
        threading.Thread(target=self._serve, daemon=True).start()

    def _connect(self) -> Attached:
        master = Attached(self._ssh(KEEP, "ControlMaster=yes"), os.environ)
        deadline = time.monotonic() + ANSWER_SECONDS
        try:
            while b"\n" not in master.out and master.open:
                master.pump(deadline)
            if b"\n" in master.out:
                return master
            why = ssh.reason(master.err.decode(errors="replace"), master.process.wait(END_SECONDS))
        except TimeoutError:
            why = f"timed out: no answer within {ANSWER_SECONDS:g} s"
        except subprocess.TimeoutExpired:
            why = ssh.reason(master.err.decode(errors="replace"), ssh.NOT_CONNECTED)
        except BaseException:
            master.close()
            raise
        master.close()
        hint = ssh.advice(self._destination, why, "docker version", HINTS)
        raise EngineMissing(f"no container engine answers at {self._destination}: {why}", hint=hint)

    def _ssh(self, command: str, master: str) -> list[str]:
        options = ("-o", master, *self._control)
        return ssh.command(self._destination, command, *options, timeout=CONNECT_SECONDS)

    def _serve(self) -> None:
        """Hand each connection to an ssh of its own, which goes through the first one."""
        while True:
            try:
                local, _ = self._listener.accept()
            except OSError:
                return
            # Where no process can be started, the connection is closed.
            with local, suppress(OSError):
                dial = subprocess.Popen(
                    self._ssh(DIAL, "ControlMaster=no"),
                    stdin=local.fileno(),
                    stdout=local.fileno(),
                    stderr=subprocess.DEVNULL,
                    # Ctrl-C must not reach it before the containers are removed.
                    start_new_session=True,
                )
                self._connections = [*(process for process in self._connections if process.poll() is None), dial]

    def close(self) -> None:
        """End all processes of the tunnel, and remove the socket."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        # The SDK keeps connections open to reuse them.
        for process in self._connections:
            process.kill()
            process.wait()
        self._master.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._master.process.wait(END_SECONDS)
        self._master.close()
        self._stack.close()


@cache
def tunnel_to(address: str) -> str:
    """Return the local address of the engine at ssh://HOST, valid until this process ends. Raises EngineMissing."""
    tunnel = Tunnel(ssh.destination(address))
    atexit.register(tunnel.close)
    return tunnel.host
