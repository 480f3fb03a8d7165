"""A mirror on loopback, made beforehand: Bazelisk and Bazel from npm's packages of their binaries, wheels from PyPI.

Its folders are named as `--mirror` asks for them: HOST/PATH.
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
        _from_npm("@bazel/bazel-linux_x64", BAZEL, f"package/bazel-{BAZEL}-linux-x86_64", sha256),
        github / f"bazel/releases/download/{BAZEL}/bazel-{BAZEL}-linux-x86_64",
    )
    _wheels(folder / "pypi.org" / "simple", requirements)


@contextlib.contextmanager
def serve(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Serves `folder` on loopback: the URL, and the list of paths asked for, which grows."""
    asked: list[str] = []

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            asked.append(self.path)

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()


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
    target.parent.mkdir(parents=True)
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
