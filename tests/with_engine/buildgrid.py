"""BuildGrid on loopback, a real server of the remote execution API: a content store and an action cache over gRPC.

It comes from PyPI, by the hashes in buildgrid.lock, into an environment of its own beside the tests' downloads.
"""

import contextlib
import hashlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.ports import free_port
from tests.with_engine import mirror

LOCK = Path(__file__).parent / "buildgrid.lock"
# What the manual publishes, and its database.
GRID = Path(__file__).parents[2] / "docs" / "cluster" / "grid.yml"
DATABASE = "postgresql+psycopg2://grid@database/grid"
SECONDS = 60
CONFIG = """
server:
  - !channel
    address: "127.0.0.1:{port}"
    insecure-mode: true
authorization: {authorization}
monitoring: {{ enabled: false }}
thread-pool-size: 500
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


@dataclass(frozen=True, kw_only=True)
class Server:
    url: str
    port: int
    folder: Path
    process: "subprocess.Popen[bytes]"

    def stored(self) -> set[str]:
        """The names of all that is in the content store."""
        return {path.name for path in (self.folder / "store").rglob("*") if path.is_file()}

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def serve(folder: Path, *, actor: str = "", instance: str = "", tls: bool = False) -> Iterator[Server]:
    """An empty server; with an actor it asks for that header.

    `tls`: by the certificate x.pem and the key key.pem in the folder, for clients with that certificate.
    """
    port = free_port()
    text = CONFIG.format(
        port=port,
        folder=folder,
        instance=instance,
        authorization=f"{{ method: headers, acl-config: {folder}/acl.yml }}" if actor else "{ method: none }",
    )
    # Bazel 2.1.0 sends no header with these; an action's result without one is refused all the same.
    allowed = [{"requests": ["GetCapabilities", "QueryWriteStatus", "Write"]}, {"actor": f"{actor}$"}]
    (folder / "acl.yml").write_text(json.dumps({instance: {"allow": allowed}}), encoding="utf-8")
    if tls:
        own = {"server-key": "key", "server-cert": "x", "client-certs": "x"}
        credentials = ", ".join(f"tls-{name}: {folder}/{file}.pem" for name, file in own.items())
        text = text.replace("insecure-mode: true", f"insecure-mode: false\n    credentials: {{ {credentials} }}")
    with _running(folder, f"grpc{'s' if tls else ''}://127.0.0.1:{port}", text) as server:
        yield server


@contextlib.contextmanager
def schedule(folder: Path, database: str) -> Iterator[Server]:
    """Run the scheduler of the manual's cluster; workers also take the property `run`, which keeps actions uncached."""
    port, text = free_port(), GRID.read_text(encoding="utf-8")
    own = {
        "0.0.0.0:50051": f"127.0.0.1:{port}",
        "/var/lib/grid": f"{folder}/store",
        DATABASE: database,
        "[cache-silo-key]": "[cache-silo-key, run]",
    }
    for published, here in own.items():
        assert text.count(published) == 1, published
        text = text.replace(published, here)
    _migrate(_program(), database)
    with _running(folder, f"grpc://127.0.0.1:{port}", text) as server:
        yield server


@contextlib.contextmanager
def _running(folder: Path, url: str, text: str) -> Iterator[Server]:
    config = folder / "config.yml"
    config.write_text(text, encoding="utf-8")
    with (folder / "log").open("wb") as log:
        command = [_program(), "server", "start", str(config)]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    server = Server(url=url, port=int(url.rpartition(":")[2]), folder=folder, process=process)
    try:
        _wait(server)
        yield server
    finally:
        server.stop()


def _wait(server: Server) -> None:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end and server.process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", server.port), timeout=1):
            return
        time.sleep(0.2)
    raise AssertionError(f"BuildGrid did not start:\n{(server.folder / 'log').read_text(errors='replace')[-4000:]}")


def _migrate(program: str, database: str) -> None:
    """Make the scheduler's tables, once the database answers."""
    end = time.monotonic() + SECONDS
    while (done := subprocess.run([program, "migrate", "apply", database], capture_output=True, text=True)).returncode:
        assert time.monotonic() < end, done.stderr[-4000:]
        time.sleep(0.5)


def _program() -> str:
    digest = hashlib.sha256(LOCK.read_bytes()).hexdigest()[:16]
    venv = mirror.CACHE / f"buildgrid-{digest}"
    # Written when it is whole: an interrupted installation is begun again.
    done = venv / "installed"
    if not done.is_file():
        subprocess.run([sys.executable, "-m", "venv", "--clear", venv], check=True, stdout=sys.stderr)
        pip = [str(venv / "bin" / "pip"), "install", "--quiet", "--require-hashes", "--requirement", str(LOCK)]
        subprocess.run(pip, check=True, stdout=sys.stderr)
        done.touch()
    return str(venv / "bin" / "bgd")
