"""Connect the `docker` SDK to an engine, by ssh too, and explain why one does not answer.

Behind ssh, each connection to a local socket runs `docker system dial-stdio` on that machine. The SDK's own ssh support
needs a second implementation of ssh, and waits forever; Docker's client prompts for passwords. Here one ssh in
BatchMode, with the user's keys and settings, carries all connections of the process. Where the server refuses another
session (MaxSessions), ssh logs in again for that connection.
"""

import atexit
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import docker

from tfbuild.engine.faults import NO_ANSWER, translated, unanswered
from tfbuild.engine.selection import Endpoint
from tfbuild.errors import EngineMissing
from tfbuild.oci import credentials
from tfbuild.util import files, ssh
from tfbuild.util.process import Attached
from tfbuild.util.ssh import Destination

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
            raise EngineMissing(f"{NO_ANSWER}{why}", hint=unanswered(error)) from error


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


# --- an engine behind ssh --------------------------------------------------------------------------------------------


# The remote Docker client may take some seconds to find its engine.
ANSWER_SECONDS = 30.0
END_SECONDS = 2.0
# A lost network is noticed after 45 s, and all connections end.
ALIVE = ("-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=3")
# Prints the engine's version, then runs until its stdin closes: it ends with this process, however that ends.
# Docker's client prints an empty line where no engine answers.
KEEP = "sh -c 'v=$(docker version --format {{.Server.Version}}) && echo $v && exec cat >/dev/null'"
DIAL = "docker system dial-stdio"
BACKLOG = 16
# Tried before the hints of ssh itself; the first match is used.
SSH_HINTS = (
    ("Cannot connect to the Docker daemon", "start the engine there: ssh {host} sudo systemctl start docker"),
    ("permission denied while trying", "that user may not use the engine there: sudo usermod -aG docker USER"),
    ("docker: ", "install Docker there, on the PATH of commands run through ssh: ssh {host} docker version"),
    ("timed out", "is it switched on, and reachable from here?"),
)
OTHERWISE = "see what this prints: ssh -o BatchMode=yes {host} docker version"


class Tunnel:
    """A socket at the address `host`, behind which the engine of another machine answers. Raises EngineMissing."""

    def __init__(self, destination: Destination) -> None:
        program = ssh.find()
        if program is None:
            raise EngineMissing(f"{destination} needs ssh, which is not on PATH", hint="apt-get install openssh-client")
        self._stack = ExitStack()
        # A short name: the kernel limits a socket's path to 107 bytes, of which ssh needs 17.
        self._folder = self._stack.enter_context(files.temporary_folder())
        self._destination, self._program = destination, program
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
        hint = ssh.advice(self._destination, why, (*SSH_HINTS, *ssh.HINTS), OTHERWISE)
        raise EngineMissing(f"no container engine answers at {self._destination}: {why}", hint=hint)

    def _ssh(self, command: str, master: str) -> list[str]:
        options = ("-o", master, *self._control)
        return ssh.command(self._program, self._destination, command, *options, timeout=CONNECT_SECONDS)

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
