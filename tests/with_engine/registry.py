"""Real registries on loopback, that tests start, stop and kill, and a proxy that breaks off.

Debian's docker-registry (distribution 2.8) has no referrers API. The registry of go-containerregistry has it; Debian's
`crane registry serve` leaves it out, so it is compiled from Debian's package of the library.
"""

import contextlib
import json
import math
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests

from tests import debian
from tests.ports import free_port
from tests.servers import Handler, serving
from tfbuild.oci.client import Registry
from tfbuild.oci.references import Repository

CONFIG = """\
version: 0.1
log: {{level: error, accesslog: {{disabled: true}}}}
storage: {{filesystem: {{rootdirectory: {folder}/data}}, delete: {{enabled: true}}}}
http: {{addr: "127.0.0.1:{port}"}}
"""

LIBRARY = "golang-github-google-go-containerregistry-dev"
GO = "1.24"
# It needs nothing but this package of the library, and Go's standard library.
WITH_REFERRERS = """\
package main

import (
	"log"
	"net/http"
	"os"

	"github.com/google/go-containerregistry/pkg/registry"
)

func main() {
	log.Fatal(http.ListenAndServe(os.Args[1], registry.New(registry.WithReferrersSupport(true))))
}
"""


@dataclass(kw_only=True)
class Server:
    """`program`: what with_referrers() compiled, in place of Debian's docker-registry; it keeps all in memory."""

    folder: Path
    port: int
    program: Path | None = None
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def repository(self) -> str:
        return f"127.0.0.1:{self.port}/us/tensorflow"

    def place(self, path: str = "us/tensorflow") -> Registry:
        """A repository of this server."""
        return Registry(Repository.parse(f"127.0.0.1:{self.port}/{path}"))

    @property
    def url(self) -> str:
        return f"http://{self.repository.replace('/us/', '/v2/us/', 1)}"

    def start(self) -> None:
        config = self.folder / "config.yml"
        config.write_text(CONFIG.format(folder=self.folder, port=self.port))
        command: list[str | Path] = ["docker-registry", "serve", config]
        if self.program is not None:
            command = [self.program, f"127.0.0.1:{self.port}"]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log)
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


def with_referrers(folder: Path) -> Path:
    """Compile the registry that has the referrers API, in half a minute, and return its path."""
    debian.unpack(folder, LIBRARY, f"golang-{GO}-go", f"golang-{GO}-src")
    (folder / "main.go").write_text(WITH_REFERRERS)
    own = {"GOROOT": f"{folder}/usr/lib/go-{GO}", "GOPATH": f"{folder}/usr/share/gocode", "GOCACHE": f"{folder}/cache"}
    settings = {"GO111MODULE": "off", "GOTOOLCHAIN": "local", "CGO_ENABLED": "0"}
    command = [f"{own['GOROOT']}/bin/go", "build", "-o", "registry", "main.go"]
    subprocess.run(command, cwd=folder, env={**os.environ, **own, **settings}, check=True)
    return folder / "registry"


@contextlib.contextmanager
def serve(folder: Path, program: Path | None = None) -> Iterator[Server]:
    if program is None and shutil.which("docker-registry") is None:
        pytest.skip("apt-get install docker-registry")
    server = Server(folder=folder, port=free_port(), program=program)
    server.start()
    try:
        yield server
    finally:
        server.kill()


# Neither the engine nor tfbuild tries again after that.
ENDS = {"code": "DENIED", "message": "the test ends here"}


CHANGES = ("POST", "PATCH", "PUT", "DELETE")


class Between(Handler):
    """Hands requests on to a registry, and ends that after `left` of those that change something there.

    From then on it refuses everything, so that neither the engine nor tfbuild tries again: what stands in the registry
    is what a push leaves behind that dies there. `login`: the header that each request must have.
    """

    protocol_version = "HTTP/1.1"
    origin = ""
    left: float = math.inf
    login = ""

    def do_GET(self) -> None:
        kind, body = type(self), self._body()
        changes = self.command in CHANGES
        if self.login not in ("", self.headers.get("Authorization")):
            self.say(401, b"{}", {"WWW-Authenticate": 'Basic realm="x"'})
            return
        if kind.left <= 0 and (changes or kind.left < 0):
            kind.left = -1
            self.say(403, json.dumps({"errors": [ENDS]}).encode(), {"Content-Type": "application/json"})
            return
        answer = requests.request(
            self.command, f"{self.origin}{self.path}", headers=dict(self.headers), data=body, allow_redirects=False,
            timeout=30,
        )  # fmt: skip
        kind.left -= changes
        kept = ("Content-Type", "Location", "Docker-Content-Digest", "Docker-Upload-UUID", "Range", "Content-Length")
        more = {name: answer.headers[name] for name in kept if name in answer.headers}
        self.say(answer.status_code, answer.content, more)

    do_HEAD = do_PUT = do_POST = do_PATCH = do_DELETE = do_GET

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", "0")))
        del self.headers["Transfer-Encoding"]
        data = b""
        while size := int(self.rfile.readline(), 16):
            data += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return data


@contextlib.contextmanager
def between(server: Server, **trouble: Any) -> Iterator[tuple[str, type[Between]]]:
    """Host and port at which such a proxy stands before a registry, and its state."""
    origin = f"http://127.0.0.1:{server.port}"
    handler = type("Here", (Between,), {"origin": origin, **trouble})
    with serving(handler) as host:
        yield host, handler
