"""Which engine a run uses, and the `docker` SDK's connection to it.

The engine is the one that the user names, else the one that Docker's own client would use: DOCKER_HOST, or its current
context.
"""

import atexit
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import docker
from docker.errors import TLSParameterError
from docker.tls import TLSConfig

from tfbuild.engine.faults import NO_ANSWER, translated, unanswered
from tfbuild.errors import EngineMissing, UsageError
from tfbuild.oci import credentials
from tfbuild.util import files
from tfbuild.util.process import printed

SOCKET, DEFAULT = "unix:///var/run/docker.sock", "default"
# Docker's own client applies these to an address in DOCKER_HOST, even to that of a socket, but not to a context.
TLS_VARIABLES = ("DOCKER_TLS", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH")


def environment(engine: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment in which Docker's client uses `engine`: an address, a context, or "" for its default."""
    if not engine:
        return dict(environ)
    is_address = "://" in engine
    dropped = {"DOCKER_HOST", "DOCKER_CONTEXT"}
    if not is_address or engine.startswith("unix://"):
        dropped |= {*TLS_VARIABLES}
    kept = {name: value for name, value in environ.items() if name not in dropped}
    return {**kept, "DOCKER_HOST" if is_address else "DOCKER_CONTEXT": engine}


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


HERE = Endpoint(address=SOCKET)


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
CONTEXT_FIELDS = "\n".join(
    f"{{{{{name}}}}}"
    for name in (".Name", ".Endpoints.docker.Host", ".Endpoints.docker.SkipTLSVerify", ".Storage.TLSPath")
)


def _context(environ: Mapping[str, str]) -> Endpoint:
    """Return the endpoint of the context in DOCKER_CONTEXT, else of Docker's current one."""
    name = environ.get("DOCKER_CONTEXT", "")
    program = shutil.which("docker", path=environ.get("PATH", os.defpath))
    if program is None:
        if name in ("", DEFAULT):
            return HERE
        raise EngineMissing(f"the Docker context {name!r} needs a docker program, and none is on PATH")
    command = [program, "context", "inspect", "--format", CONTEXT_FIELDS, *([name] if name else [])]
    done = subprocess.run(command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode and not name and not printed([program, "--version"], environ).startswith("Docker version "):
        return HERE  # another engine's program, such as Podman's, which may have no contexts
    if done.returncode:
        why = done.stderr.strip().rpartition("\n")[2]
        whose = f"the Docker context {name!r}" if name else "Docker's current context"
        missing = f"there is no Docker context {name!r}" if name and "context not found" in why else ""
        known = "docker context ls; or ssh://HOST, tcp://HOST:PORT"
        hint = f"--engine unix://{name}" if name.startswith("/") else known
        raise EngineMissing(missing or f"{whose} cannot be used: {why}", hint=hint)
    name, address, trusting, tls_files = done.stdout.splitlines()
    folder, verify = Path(tls_files, "docker"), trusting != "true"
    secured = address.startswith("tcp://") and (folder.is_dir() or not verify)
    tls = _tls(folder, verify=verify) if secured else None
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


# --- by ssh -----------------------------------------------------------------------------------------------------------

# One ssh, with the user's keys and settings, forwards the engine's socket to one of this machine. The SDK's own support
# needs a second implementation of ssh; Docker's client starts an ssh for each connection, and prompts for passwords.
REMOTE_SOCKET = "/var/run/docker.sock"
CONNECT_SECONDS = 10
ANSWER_SECONDS = 30.0
# A lost network is noticed after 45 s. Without `-S none`, a user's ControlPersist would outlive this process.
SSH_OPTIONS = (
    "-nNT", "-S", "none", "-o", "BatchMode=yes", "-o", "RemoteCommand=none", "-o", "ServerAliveInterval=15",
    "-o", f"ConnectTimeout={CONNECT_SECONDS}",
)  # fmt: skip
# A host cannot be taken for an option, nor begin with a character that is special to a shell.
ADDRESS = re.compile(
    r"ssh://(?P<user>[A-Za-z0-9_][\w.+-]*@)?(?P<host>[A-Za-z0-9_][\w.-]*|\[[0-9A-Fa-f:.%\w]+\])(:(?P<port>\d{1,5}))?"
    r"(?P<path>/[\w./-]*)?",
    re.ASCII,
)
# By what ssh prints last. It opens the local socket before it asks for the one there.
SSH_HINTS = (
    ("Permission denied", "ssh must not prompt: install a key (ssh-copy-id {host}), or load yours (ssh-add)"),
    ("Host key verification failed", "check its key, which is new or has changed, by hand: ssh {host}"),
    ("", "is the name right, and the host up? If so, its engine is down, its socket is elsewhere "
     "(ssh://HOST:PORT/PATH/docker.sock), that user may not use it, or sshd forwards no sockets: "
     "ssh {host} docker version"),
)  # fmt: skip


def destination(address: str) -> tuple[str, int, str]:
    """Parse ``ssh://user@host:port/socket``, of which only the host must be there. Raises UsageError.

    Returns the host with its user, the port (0 for the default of ssh), and the engine's socket there.
    """
    match = ADDRESS.fullmatch(address)
    port = int((match and match["port"]) or 0)
    if match is None or port > 65535:
        raise UsageError(f"{address!r} names no ssh host", hint="ssh://user@host, ssh://user@host:2222")
    return (match["user"] or "") + match["host"].strip("[]"), port, (match["path"] or "").rstrip("/") or REMOTE_SOCKET


@contextmanager
def tunnel(address: str) -> Iterator[str]:
    """Yield the address of a local socket that ssh forwards to the engine at ssh://HOST. Raises EngineMissing."""
    host, port, socket_there = destination(address)
    if shutil.which("ssh") is None:
        raise EngineMissing(f"{address} needs ssh, which is not on PATH", hint="apt-get install openssh-client")
    # A short name: the kernel limits a socket's path to 107 bytes, of which ssh needs 17.
    with files.temporary_folder() as folder, (folder / "log").open("w+b") as log:
        near = folder / "engine"
        with subprocess.Popen(
            ["ssh", *SSH_OPTIONS, "-L", f"{near}:{socket_there}", *(["-p", str(port)] if port else []), "--", host],
            stdin=subprocess.DEVNULL,
            stderr=log,
            # Ctrl-C must not reach it before the containers are removed.
            start_new_session=True,
        ) as program:
            try:
                deadline = time.monotonic() + ANSWER_SECONDS
                while not near.exists() and program.poll() is None and time.monotonic() < deadline:
                    time.sleep(0.02)
                if not near.exists():
                    log.seek(0)
                    why = "timed out" if program.poll() is None else reason(log.read().decode(errors="replace"))
                    raise EngineMissing(f"{NO_ANSWER}{why}")
                yield f"unix://{near}"
            finally:
                program.kill()


tunnels = ExitStack()
atexit.register(tunnels.close)


@cache
def tunnel_to(address: str) -> str:
    """Return the local address of the engine at ssh://HOST, valid until this process ends. Raises EngineMissing."""
    return tunnels.enter_context(tunnel(address))


def reason(output: str) -> str:
    """Return the last line that ssh printed; the lines before it are banners and warnings."""
    lines = ["".join(filter(str.isprintable, line)).strip() for line in output.splitlines()]
    return next((line for line in reversed(lines) if line), "ssh ended without output")


# --- the SDK's connection ---------------------------------------------------------------------------------------------

CALL_SECONDS = 300


class _Api(docker.APIClient):  # type: ignore[misc]
    # REQUESTS_CA_BUNDLE would overrule the engine's own CA, and a proxy of the web's would get what is for the engine.
    trust_env = property(lambda _: False, lambda *_: None)

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
            address = tunnel_to(address)
        _check_address(address)
        with translated():
            _check_socket(address)
            with credentials.readable():
                client = _Client(base_url=address, tls=endpoint.tls or False, timeout=CONNECT_SECONDS)
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
                end.settimeout(CONNECT_SECONDS)
                end.connect(address.removeprefix("unix://"))
        except OSError as error:
            why = f"{error.strerror or error} ({address})"
            raise EngineMissing(f"{NO_ANSWER}{why}", hint=unanswered(error)) from error


def _advice(endpoint: Endpoint, reason: str) -> str:
    """Return the hint for an engine on another machine that does not answer."""
    if endpoint.address.startswith("ssh://"):
        host = destination(endpoint.address)[0]
        return next(hint for part, hint in SSH_HINTS if part in reason).format(host=host)
    option = f"--context {endpoint.context}" if endpoint.context else f"--host {endpoint.address}"
    return (
        f"is it up, and reachable from here? docker {option} version; if it requires TLS: DOCKER_TLS_VERIFY=1 and "
        "DOCKER_CERT_PATH=FOLDER with its CA and your certificate, or a context that has them"
    )
