"""A mirror on loopback, made beforehand: Bazelisk and Bazel, which GitHub has, from npm's packages of their binaries.

Its folders are named as `--mirror` asks for them: HOST/PATH. All else comes through it from the hosts themselves.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import tarfile
import threading
from collections import defaultdict
from collections.abc import Iterator
from http import HTTPStatus
from http.server import ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import requests

from tests.contract import newbazel
from tests.servers import Handler, running
from tfbuild.cli.options import certificates
from tfbuild.facts import toolchains
from tfbuild.util.files import replace_file

# Debian's, from sid: plans take 5.3 or newer, and npm has none of these.
BAZEL = newbazel.VERSION
# Downloads outlive a test run: 60 MB, each checked by its digest.
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tfbuild-tests"


def fill(folder: Path) -> None:
    """Puts into `folder` what the double's builder downloads from GitHub, which npm has as well."""
    row = toolchains.table().bazelisk
    github = folder / "github.com" / "bazelbuild"
    bazelisk = github / f"bazelisk/releases/download/v{row.version}/bazelisk-linux-amd64"
    bazelisk.parent.mkdir(parents=True)
    program = _from_npm("@bazel/bazelisk", row.version, "package/bazelisk-linux_amd64", row.sha256["x86_64"])
    shutil.copyfile(program, bazelisk)
    # Debian's Bazel is in the site's base image: this starts it.
    debians = bazel(folder, BAZEL)
    debians.parent.mkdir(parents=True)
    debians.write_text(newbazel.LAUNCHER)


def bazel(folder: Path, version: str) -> Path:
    """Where Bazelisk asks for that Bazel."""
    return folder / f"github.com/bazelbuild/bazel/releases/download/{version}/bazel-{version}-linux-x86_64"


class Mirror(ThreadingHTTPServer):
    """Serves `folder`, where it also keeps what it fetches from the hosts themselves; `login`: what it asks for."""

    def __init__(self, folder: Path, login: str = "") -> None:
        super().__init__(("127.0.0.1", 0), _Files)
        self.folder, self.login, self.requested = folder, login, list[str]()
        self.locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self.session = requests.Session()
        # The bytes are kept as they are.
        self.session.headers.update({"Accept-Encoding": "identity", "User-Agent": "tfbuild", "Accept": "text/html"})

    def fetch(self, path: str, target: Path) -> int:
        """Fetch https://HOST/PATH, or by http what apt asks for, whose signatures it checks; return the status."""
        verify = str(certificates("") or "") or True
        with contextlib.ExitStack() as answers:
            try:
                got = answers.enter_context(self.session.get(f"https://{path}", stream=True, timeout=60, verify=verify))
            except requests.ConnectionError:
                got = answers.enter_context(self.session.get(f"http://{path}", stream=True, timeout=60))
            if got.status_code != HTTPStatus.OK:
                return got.status_code
            content = got.content
        if path.endswith("/"):
            # An index's links come through this mirror, too.
            content = LINK.sub(rb"\1" + b"../" * path.count("/"), content)
        replace_file(target, content)
        return got.status_code


# The beginning of a link to a host.
LINK = re.compile(rb"""(href=["']?)https?://""", re.IGNORECASE)


class _Files(Handler):
    protocol_version = "HTTP/1.1"
    server: Mirror

    def do_GET(self) -> None:
        self.server.requested.append(self.path)
        if self.server.login and self.headers["Authorization"] != f"Basic {self.server.login}":
            self.say(HTTPStatus.UNAUTHORIZED)
            return
        path = unquote(self.path.partition("?")[0]).lstrip("/")
        target = self.server.folder / (f"{path}index.html" if path.endswith("/") else path)
        with self.server.locks[path]:
            if not target.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                if (status := self.server.fetch(path, target)) != HTTPStatus.OK:
                    self.say(status)
                    return
        kind = "text/html" if path.endswith("/") else "application/octet-stream"
        self.say(HTTPStatus.OK, target.read_bytes(), {"Content-Type": kind})

    do_HEAD = do_GET


@contextlib.contextmanager
def serve(folder: Path, login: str = "") -> Iterator[Mirror]:
    server = Mirror(folder, login)
    with running(server):
        yield server


def _from_npm(package: str, version: str, member: str, sha256: str) -> Path:
    kept = CACHE / f"{Path(member).name}-{version}"
    if not (kept.is_file() and hashlib.sha256(kept.read_bytes()).hexdigest() == sha256):
        CACHE.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            ["npm", "pack", "--json", f"{package}@{version}"], cwd=CACHE, check=True, capture_output=True, text=True
        )
        archive = CACHE / json.loads(done.stdout)[0]["filename"].replace("@", "").replace("/", "-")
        with tarfile.open(archive) as tar:
            file = tar.extractfile(member)
            assert file is not None
            kept.write_bytes(file.read())
        archive.unlink()
        assert hashlib.sha256(kept.read_bytes()).hexdigest() == sha256
    return kept
