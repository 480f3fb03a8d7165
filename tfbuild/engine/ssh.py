"""An engine behind ssh: one ssh, with the user's keys and settings, forwards its socket to one of this machine.

The SDK's own support needs a second implementation of ssh; Docker's client starts an ssh for each connection, and
prompts for passwords.
"""

import atexit
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache

from tfbuild.engine.faults import NO_ANSWER
from tfbuild.errors import EngineMissing, UsageError
from tfbuild.util import files

CONNECT_SECONDS = 10
ANSWER_SECONDS = 30.0
# A lost network is noticed after 45 s. Without `-S none`, a user's ControlPersist would outlive this process.
OPTIONS = (
    "-nNT", "-S", "none", "-o", "BatchMode=yes", "-o", "RemoteCommand=none", "-o", "ServerAliveInterval=15",
    "-o", f"ConnectTimeout={CONNECT_SECONDS}",
)  # fmt: skip
# A host cannot be taken for an option, nor begin with a character that is special to a shell.
ADDRESS = re.compile(
    r"ssh://(?P<user>[A-Za-z0-9_][\w.+-]*@)?(?P<host>[A-Za-z0-9_][\w.-]*|\[[0-9A-Fa-f:.%\w]+\])(:(?P<port>\d{1,5}))?"
    r"(?P<path>/[\w./-]*)?",
    re.ASCII,
)
# Printed above ssh's last line, which is the same as for an unknown host.
CHANGED = "IDENTIFICATION HAS CHANGED"
HINTS = (
    (CHANGED, "its host key has changed: find out why, then ssh-keygen -R"),
    ("Permission denied", "ssh must not prompt: install a key (ssh-copy-id {host}), or load yours (ssh-add)"),
    ("Host key verification failed", "check its key and accept it once by hand: ssh {host}"),
    ("Could not resolve hostname", "is the name right? ~/.ssh/config applies"),
    ("Connection refused", "no sshd answers on that port: ssh://{host}:PORT"),
    ("No route to host", "is it switched on, and reachable from here?"),
    ("timed out", "is it switched on, and reachable from here?"),
    # ssh opens the local socket before it asks for the one there.
    ("", "its engine is down, its socket is elsewhere (ssh://HOST/PATH/docker.sock), that user may not use it, or sshd "
     "forwards no sockets: ssh {host} docker version"),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Destination:
    """The host to connect to; `port`: 0 for the default of ssh; `socket`: the engine's path there."""

    host: str
    port: int = 0
    socket: str = "/var/run/docker.sock"


def destination(address: str) -> Destination:
    """Parse ``ssh://user@host:port/socket``, of which only the host must be there. Raises UsageError."""
    match = ADDRESS.fullmatch(address)
    port = int((match and match["port"]) or 0)
    if match is None or port > 65535:
        raise UsageError(f"{address!r} names no ssh host", hint="ssh://user@host, ssh://user@host:2222")
    host = (match["user"] or "") + match["host"].strip("[]")
    path = (match["path"] or "").rstrip("/")
    return Destination(host=host, port=port, **({"socket": path} if path else {}))


@contextmanager
def tunnel(address: str) -> Iterator[str]:
    """Yield the address of a local socket that ssh forwards to the engine at ssh://HOST. Raises EngineMissing."""
    to = destination(address)
    if shutil.which("ssh") is None:
        raise EngineMissing(f"{address} needs ssh, which is not on PATH", hint="apt-get install openssh-client")
    # A short name: the kernel limits a socket's path to 107 bytes, of which ssh needs 17.
    with files.temporary_folder() as folder, (folder / "log").open("w+b") as log:
        near, port = folder / "engine", ("-p", str(to.port)) if to.port else ()
        with subprocess.Popen(
            ["ssh", *OPTIONS, "-L", f"{near}:{to.socket}", *port, "--", to.host],
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
                    why = reason(log.read().decode(errors="replace")) if program.poll() is not None else "timed out"
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
    last = next((line for line in reversed(lines) if line), "ssh ended without output")
    return f"{CHANGED}: {last}" if any(CHANGED in line for line in lines) else last


def advice(address: str, reason: str) -> str:
    """Return what to do about an engine at `address` that does not answer, for this reason."""
    return next(hint for part, hint in HINTS if part in reason).format(host=destination(address).host)
