"""The passwords of a proxy and of a registry in a real build and push: nowhere where others can read them."""

import base64
import json
import math
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import requests

from tests.servers import Handler, serving
from tests.with_engine import registry as registries
from tests.with_engine import saved
from tests.with_engine.conftest import ROOT
from tests.with_engine.second import processes
from tfbuild.engine import Engine
from tfbuild.errors import BuildFailed

pytestmark = pytest.mark.nightly
USER, CANARY = "robot-name", "tw33t-s3cr3t"
LOGIN = f"Basic {base64.b64encode(f'{USER}:{CANARY}'.encode()).decode()}"
SECRETS = (CANARY, USER, LOGIN.partition(" ")[2])
ID = "2.20.0-cpu-py3.11-avx"
BUILD = (
    "build", "--release", "2.20.0", "--python", "3.11", "--target", "cpu", "--wheel", "official", "--base", "bootstrap",
    "--network", "host", "--no-cache", "--reverify", "--no-throughput",
)  # fmt: skip
# Less than the wheel has.
MEGABYTES = 30


class Proxy(Handler):
    """Demands a login. Each tunnel ends after `most` bytes."""

    most: ClassVar[float] = math.inf
    refused: ClassVar[list[str]] = []

    def do_CONNECT(self) -> None:
        host, _, port = self.path.rpartition(":")
        if self._admitted():
            with socket.create_connection((host, int(port)), 30) as there:
                self.send_response(200)
                self.end_headers()
                self._relay(there)
        self.close_connection = True

    def do_GET(self) -> None:
        """What apt asks for."""
        if not self._admitted():
            return
        with requests.Session() as session:
            session.trust_env = False
            answer = session.get(self.path, timeout=60, stream=True)
            content = answer.raw.read()
        self.say(answer.status_code, content)

    def _admitted(self) -> bool:
        if self.headers.get("Proxy-Authorization") == LOGIN:
            return True
        self.refused.append(self.path)
        self.say(407, headers={"Proxy-Authenticate": 'Basic realm="x"'})
        return False

    def _relay(self, there: socket.socket) -> None:
        left, ends = type(self).most, {self.connection: there, there: self.connection}
        while left > 0:
            for end in select.select([*ends], [], [], 60)[0]:
                if not (data := end.recv(1 << 16)):
                    return
                left -= len(data)
                ends[end].sendall(data)


@dataclass(frozen=True, kw_only=True)
class Place:
    """A folder in which verbs are run, with the login of the registry, and of the proxy in their environment."""

    folder: Path
    env: dict[str, str]
    proxy: type[Proxy]

    def run(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """Run a verb. No secret is among its output, its files, or the command lines of all processes meanwhile."""
        command = [sys.executable, "-m", "invoke", "--search-root", str(ROOT), *words]
        with watched() as lines:
            done = subprocess.run(
                command, cwd=self.folder, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                check=False,
            )  # fmt: skip
        assert not leaked(done.stdout), done.stdout[-6000:]
        assert not lines
        written = [path for path in self.folder.rglob("*") if path.is_file()]
        assert [path for path in written if leaked(path.read_text(errors="replace"))] == []
        return done

    @property
    def files(self) -> set[str]:
        return {path.name for path in self.folder.rglob("*") if path.is_file()}


def leaked(text: str) -> list[str]:
    return [secret for secret in SECRETS if secret in text]


@contextmanager
def watched() -> Iterator[set[str]]:
    """The command lines with a secret in them."""
    lines: set[str] = set()
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.1):
            lines.update(line for secret in SECRETS for line in processes(secret))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield lines
    finally:
        over.set()
        watcher.join()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Callable[..., Place]]:
    """Makes the place for a registry's host."""
    kind = type("Here", (Proxy,), {"refused": []})
    with serving(kind) as address:
        proxy = f"http://{USER}:{CANARY}@{address}"
        variables = {name: proxy for scheme in ("http_proxy", "https_proxy") for name in (scheme, scheme.upper())}

        def make(host: str) -> Place:
            configuration, work = tmp_path / "docker", tmp_path / "work"
            configuration.mkdir()
            work.mkdir()
            login = {"auths": {host: {"auth": LOGIN.partition(" ")[2]}}}
            (configuration / "config.json").write_text(json.dumps(login))
            more = {"DOCKER_CONFIG": str(configuration), "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
            return Place(folder=work, env={**os.environ, **variables, **more}, proxy=kind)

        yield make


def test_no_password_is_seen_while_an_image_is_built_and_pushed_or_in_what_stays(
    engine: Engine, place: Callable[..., Place], tmp_path: Path
) -> None:
    (tmp_path / "registry").mkdir()
    with registries.serve(tmp_path / "registry") as server, registries.between(server, login=LOGIN) as (host, _):
        here = place(host)
        here.proxy.most = MEGABYTES << 20
        done = here.run(*BUILD)
        assert done.returncode == BuildFailed.exit_code, done.stdout[-6000:]
        assert done.stdout.count("error: ") == 1
        assert "build.log" in here.files

        here.proxy.most = math.inf
        done = here.run(*BUILD)
        assert done.returncode == 0, done.stdout[-6000:]
        assert {f"{ID}.json", f"{ID}.md", f"{ID}.html", "build.log"} <= here.files
        name = f"tfbuild:{ID}"
        try:
            needles = [secret.encode() for secret in SECRETS]
            # The label shows that the search would find them.
            label = b"io.tfbuild.plan"
            assert saved.found(saved.everything(engine, name), *needles, label) == {label}
            for words in (["push", ID], ["verify", ID], ["push", ID, "--yank", "x"]):
                done = here.run(*words, "--registry", f"{host}/us/x")
                assert done.returncode == 0, done.stdout[-6000:]
        finally:
            engine.untag(name)
