"""BuildGrid on loopback, a real server of the remote execution API: a content store and an action cache over gRPC.

It comes from PyPI, by the hashes in buildgrid.lock, into an environment of its own beside the tests' downloads.
"""

import contextlib
import hashlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.engine import mirror

LOCK = Path(__file__).parent / "buildgrid.lock"
SECONDS = 60
CONFIG = """
server:
  - !channel
    address: "127.0.0.1:{port}"
    insecure-mode: {insecure}
{credentials}
authorization: {{ method: {method} }}
monitoring: {{ enabled: false }}
thread-pool-size: 50
storages:
  - !disk-storage &store
    path: {folder}/store
caches:
  - !lru-action-cache &actions
    storage: *store
    max-cached-refs: 10000
    allow-updates: true
    cache-failed-actions: false
instances:
  - name: "{instance}"
    services:
      - !action-cache
        cache: *actions
      - !cas
        storage: *store
      - !bytestream
        storage: *store
"""
CREDENTIALS = """    credentials:
      tls-server-key: {key}
      tls-server-cert: {certificate}
"""


@dataclass(frozen=True, kw_only=True)
class Server:
    port: int
    folder: Path
    process: "subprocess.Popen[bytes]"

    @property
    def url(self) -> str:
        return f"grpc://127.0.0.1:{self.port}"

    def stored(self) -> set[str]:
        """The names of all that is in the content store."""
        return {path.name for path in (self.folder / "store").rglob("*") if path.is_file()}

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def serve(
    folder: Path, *, method: str = "none", instance: str = "", key: Path | None = None, certificate: Path | None = None
) -> Iterator[Server]:
    """An empty server; with a key and its certificate it speaks TLS alone."""
    port = free_port()
    tls = CREDENTIALS.format(key=key, certificate=certificate) if key else ""
    config = folder / "config.yml"
    insecure = "false" if key else "true"
    text = CONFIG.format(port=port, folder=folder, method=method, instance=instance, credentials=tls, insecure=insecure)
    config.write_text(text, encoding="utf-8")
    with (folder / "log").open("wb") as log:
        command = [_installed() / "bin" / "bgd", "server", "start", config]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    server = Server(port=port, folder=folder, process=process)
    try:
        _wait(server)
        yield server
    finally:
        server.stop()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def _wait(server: Server) -> None:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end and server.process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", server.port), timeout=1):
            return
        time.sleep(0.2)
    raise AssertionError(f"BuildGrid did not start:\n{(server.folder / 'log').read_text(errors='replace')[-4000:]}")


def _installed() -> Path:
    digest = hashlib.sha256(LOCK.read_bytes()).hexdigest()[:16]
    venv = mirror.CACHE / f"buildgrid-{digest}"
    # Named when it is whole: an interrupted installation is begun again.
    done = venv / "installed"
    if not done.is_file():
        subprocess.run([sys.executable, "-m", "venv", "--clear", venv], check=True, stdout=sys.stderr)
        command = [venv / "bin" / "pip", "install", "--quiet", "--require-hashes", "--requirement", LOCK]
        subprocess.run(command, check=True, stdout=sys.stderr)
        done.touch()
    return venv
