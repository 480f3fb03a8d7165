"""A mirror on loopback, made beforehand: Bazelisk and Bazel from npm's packages of their binaries, wheels from PyPI.

Its folders are named as `--mirror` asks for them: HOST/PATH. Repositories under github.com are served by git itself.
"""

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tfbuild import toolchains

BAZEL = "0.26.1"
# Downloads outlive a test run: 60 MB, each checked by its digest.
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tfbuild-tests"


def fill(folder: Path, requirements: Path) -> None:
    """Puts into `folder` what the double's builder downloads; `requirements`: the builder's Python packages."""
    row = toolchains.table().bazelisk
    github = folder / "github.com" / "bazelbuild"
    _place(
        _from_npm("@bazel/bazelisk", row.version, "package/bazelisk-linux_amd64", row.sha256["x86_64"]),
        github / f"bazelisk/releases/download/v{row.version}/bazelisk-linux-amd64",
    )
    sha256 = toolchains.bazel_sha256(BAZEL, "x86_64")
    _place(
        _from_npm("@bazel/bazel-linux_x64", BAZEL, f"package/bazel-{BAZEL}-linux-x86_64", sha256), bazel(folder, BAZEL)
    )
    _wheels(folder / "pypi.org" / "simple", requirements)


def bazel(folder: Path, version: str) -> Path:
    """Where Bazelisk asks for that Bazel."""
    return folder / f"github.com/bazelbuild/bazel/releases/download/{version}/bazel-{version}-linux-x86_64"


@contextlib.contextmanager
def serve(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Serves `folder` on loopback: the URL, and the list of paths asked for, which grows."""
    asked: list[str] = []

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            asked.append(self.path)

        def do_GET(self) -> None:
            if "/info/refs?" in self.path:
                _git(self, folder)
            else:
                super().do_GET()

        def do_POST(self) -> None:
            _git(self, folder)

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()


def _git(request: SimpleHTTPRequestHandler, folder: Path) -> None:
    """git's own server, as any web server runs it (a shallow clone needs one)."""
    path, _, query = request.path.partition("?")
    env = os.environ | {
        "GIT_PROJECT_ROOT": str(folder),
        "GIT_HTTP_EXPORT_ALL": "1",
        "PATH_INFO": path,
        "QUERY_STRING": query,
        "REQUEST_METHOD": request.command,
        "CONTENT_TYPE": request.headers.get("Content-Type", ""),
        "HTTP_CONTENT_ENCODING": request.headers.get("Content-Encoding", ""),
        "GIT_PROTOCOL": request.headers.get("Git-Protocol", ""),
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "safe.directory",
        "GIT_CONFIG_VALUE_0": "*",
    }
    body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
    done = subprocess.run(["git", "http-backend"], env=env, input=body, capture_output=True, check=True)
    head, _, content = done.stdout.partition(b"\r\n\r\n")
    fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
    request.send_response(int(fields.pop("Status", "200").split()[0]))
    for name, value in fields.items():
        request.send_header(name, value)
    request.end_headers()
    request.wfile.write(content)


def _from_npm(package: str, version: str, member: str, sha256: str) -> Path:
    kept = CACHE / f"{Path(member).name}-{version}"
    if not (kept.is_file() and hashlib.sha256(kept.read_bytes()).hexdigest() == sha256):
        CACHE.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            ["npm", "pack", "--json", f"{package}@{version}"], cwd=CACHE, check=True, capture_output=True, text=True
        )
        archive = CACHE / json.loads(done.stdout)[0]["filename"].replace("@", "").replace("/", "-")
        with tarfile.open(archive) as tar:
            found = tar.extractfile(member)
            assert found is not None
            kept.write_bytes(found.read())
        archive.unlink()
        assert hashlib.sha256(kept.read_bytes()).hexdigest() == sha256
    return kept


def _place(file: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, target)


def _wheels(simple: Path, requirements: Path) -> None:
    """A package index of folders, as a web server lists them."""
    kept = CACHE / "wheels"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(kept), "--requirement"]
    subprocess.run([*command, str(requirements)], check=True, stdout=sys.stderr)
    for wheel in kept.iterdir():
        project = wheel.name.partition("-")[0].lower().replace("_", "-").replace(".", "-")
        (simple / project).mkdir(parents=True, exist_ok=True)
        shutil.copyfile(wheel, simple / project / wheel.name)
