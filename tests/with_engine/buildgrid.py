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
SECONDS = 60
CONFIG = """
server:
  - !channel
    address: "127.0.0.1:{port}"
    insecure-mode: {insecure}
{credentials}
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
{scheduler}
instances:
  - name: "{instance}"
    services:
      - !action-cache
        cache: *actions
      - !cas
        storage: *store
      - !bytestream
        storage: *store
{execution}
"""
SCHEDULER = """
connections:
  - !sql-connection &sql
    connection-string: "{database}"
schedulers:
  - !sql-scheduler &scheduler
    sql: *sql
    storage: *store
    action-cache: *actions
    property-set: !dynamic-property-set {{ wildcard-property-keys: [{properties}] }}
    bot-session-keepalive-timeout: 20
"""
EXECUTION = """
      - !execution
        scheduler: *scheduler
        operation-stream-keepalive-timeout: 20
"""
CREDENTIALS = """    credentials:
      tls-server-key: {key}
      tls-server-cert: {certificate}
"""
CLIENTS = """      tls-client-certs: {clients}
"""


@dataclass(frozen=True, kw_only=True)
class Pair:
    certificate: Path
    key: Path


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
def serve(
    folder: Path,
    *,
    actor: str = "",
    instance: str = "",
    tls: Pair | None = None,
    clients: Path | None = None,
    database: str = "",
    properties: tuple[str, ...] = (),
) -> Iterator[Server]:
    """An empty server; with `tls` it speaks TLS alone, with an actor it asks for that header.

    `clients`: a file with authorities; it then refuses clients without a certificate of one of them. With a `database`
    it hands actions with these `properties` to workers.
    """
    port = free_port()
    credentials = CREDENTIALS.format(key=tls.key, certificate=tls.certificate) if tls else ""
    text = CONFIG.format(
        port=port,
        folder=folder,
        instance=instance,
        insecure="false" if tls else "true",
        credentials=credentials + (CLIENTS.format(clients=clients) if clients else ""),
        scheduler=SCHEDULER.format(database=database, properties=", ".join(properties)) if database else "",
        execution=EXECUTION if database else "",
        authorization=f"{{ method: headers, acl-config: {folder}/acl.yml }}" if actor else "{ method: none }",
    )
    # Bazel 2.1.0 sends no header with these; an action's result without one is refused all the same.
    allowed = [{"requests": ["GetCapabilities", "QueryWriteStatus", "Write"]}, {"actor": f"{actor}$"}]
    (folder / "acl.yml").write_text(json.dumps({instance: {"allow": allowed}}), encoding="utf-8")
    config = folder / "config.yml"
    config.write_text(text, encoding="utf-8")
    program = str(_installed() / "bin" / "bgd")
    if database:
        _migrate(program, database)
    command = [program, "server", "start", str(config)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    url = f"grpc{'s' if tls else ''}://127.0.0.1:{port}"
    server = Server(url=url, port=port, folder=folder, process=process)
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


def _installed() -> Path:
    digest = hashlib.sha256(LOCK.read_bytes()).hexdigest()[:16]
    venv = mirror.CACHE / f"buildgrid-{digest}"
    # Written when it is whole: an interrupted installation is begun again.
    done = venv / "installed"
    if not done.is_file():
        subprocess.run([sys.executable, "-m", "venv", "--clear", venv], check=True, stdout=sys.stderr)
        pip = [str(venv / "bin" / "pip"), "install", "--quiet", "--require-hashes", "--requirement", str(LOCK)]
        subprocess.run(pip, check=True, stdout=sys.stderr)
        done.touch()
    return venv
