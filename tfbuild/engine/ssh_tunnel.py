"""An engine that ssh reaches, at a socket here: each connection to it is a `docker system dial-stdio` over there.

The SDK's own way by ssh needs a second implementation of ssh, and waits for ever; Docker's client asks for passwords.
Here one ssh in BatchMode, with the user's own keys and settings, carries the connections of the process. Where the
server refuses it another session (MaxSessions), ssh logs in anew for that one.
"""

import atexit
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

from tfbuild.errors import EngineMissing
from tfbuild.util import ssh
from tfbuild.util.process import Attached
from tfbuild.util.ssh import Destination

CONNECT_SECONDS = 10
# Docker's client there may look for its engine for some seconds.
ANSWER_SECONDS = 30.0
END_SECONDS = 2.0
# A network that is gone is noticed after 45 s, and all connections end.
ALIVE = ("-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=3")
# It prints the engine's version, and then lives for as long as its stdin is open: it ends with this process, however
# that ends. Docker's client prints an empty line where no engine answers.
KEEP = "sh -c 'v=$(docker version --format {{.Server.Version}}) && echo $v && exec cat >/dev/null'"
DIAL = "docker system dial-stdio"
LISTENING = 16
# Beside those of ssh itself; the first that fits.
HINTS = (
    ("Cannot connect to the Docker daemon", "start the engine there: ssh {host} sudo systemctl start docker"),
    ("permission denied while trying", "that user may not use the engine there: sudo usermod -aG docker USER"),
    ("docker: ", "install Docker there, on the PATH that commands by ssh get: ssh {host} docker version"),
    ("timed out", "is it switched on, and reachable from here?"),
)
OTHERWISE = "see what this says: ssh -o BatchMode=yes {host} docker version"


class Tunnel:
    """A socket, at the address `host`, behind which the engine of another machine answers. Raises EngineMissing."""

    def __init__(self, where: Destination) -> None:
        program = ssh.find()
        if program is None:
            raise EngineMissing(f"{where} needs ssh, which is not on PATH", hint="apt-get install openssh-client")
        # A short name, for the kernel gives a socket's path 107 bytes, of which ssh takes 17 for itself.
        self._folder = Path(tempfile.mkdtemp(prefix="tfbuild-ssh-"))
        self._where, self._program = where, program
        self._control = ("-o", f"ControlPath={self._folder}/m", "-o", "ControlPersist=no", *ALIVE)
        self._dialled: list[subprocess.Popen[bytes]] = []
        self._listening = socket.socket(socket.AF_UNIX)
        try:
            self._master = self._connect()
            self._listening.bind(str(self._folder / "engine"))
            self._listening.listen(LISTENING)
        except BaseException:
            self._listening.close()
            shutil.rmtree(self._folder, ignore_errors=True)
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
        hint = ssh.advice(self._where, why, (*HINTS, *ssh.HINTS), OTHERWISE)
        raise EngineMissing(f"no container engine answers at {self._where}: {why}", hint=hint)

    def _ssh(self, run: str, master: str) -> list[str]:
        options = ("-o", master, *self._control)
        return ssh.command(self._program, self._where, run, *options, timeout=CONNECT_SECONDS)

    def _serve(self) -> None:
        """Hands each connection to an ssh of its own, which goes through the first one."""
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            # Where no process can be had, whoever connected sees the connection end.
            with near, suppress(OSError):
                dialled = subprocess.Popen(
                    self._ssh(DIAL, "ControlMaster=no"),
                    stdin=near.fileno(),
                    stdout=near.fileno(),
                    stderr=subprocess.DEVNULL,
                    # Ctrl-C must not reach it before the containers are taken down.
                    start_new_session=True,
                )
                self._dialled = [*(one for one in self._dialled if one.poll() is None), dialled]

    def close(self) -> None:
        """Ends all of its processes, and removes the socket."""
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        # The SDK keeps connections open that it may use again.
        for one in self._dialled:
            one.kill()
            one.wait()
        self._master.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._master.process.wait(END_SECONDS)
        self._master.close()
        shutil.rmtree(self._folder, ignore_errors=True)


@cache
def to(address: str) -> str:
    """The address here of the engine at ssh://HOST; it answers until this process ends. Raises EngineMissing."""
    tunnel = Tunnel(ssh.destination(address))
    atexit.register(tunnel.close)
    return tunnel.host
