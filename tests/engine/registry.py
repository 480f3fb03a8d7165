"""Debian's docker-registry on loopback: a real one, that tests start, stop and kill."""

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import requests

CONFIG = """\
version: 0.1
log: {{level: error, accesslog: {{disabled: true}}}}
storage: {{filesystem: {{rootdirectory: {folder}/data}}, delete: {{enabled: true}}}}
http: {{addr: "127.0.0.1:{port}"}}
"""


@dataclass(kw_only=True)
class Server:
    folder: Path
    port: int
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def repository(self) -> str:
        return f"127.0.0.1:{self.port}/us/tensorflow"

    @property
    def url(self) -> str:
        return f"http://{self.repository.replace('/us/', '/v2/us/', 1)}"

    def start(self) -> None:
        config = self.folder / "config.yml"
        config.write_text(CONFIG.format(folder=self.folder, port=self.port))
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(["docker-registry", "serve", config], stdout=subprocess.DEVNULL, stderr=log)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            with contextlib.suppress(requests.exceptions.ConnectionError):
                requests.get(f"http://127.0.0.1:{self.port}/v2/", timeout=5)
                return
            time.sleep(0.1)
        raise AssertionError((self.folder / "log").read_text())

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@contextlib.contextmanager
def serve(folder: Path) -> Iterator[Server]:
    if shutil.which("docker-registry") is None:
        pytest.skip("apt-get install docker-registry")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = Server(folder=folder, port=port)
    server.start()
    try:
        yield server
    finally:
        server.kill()
