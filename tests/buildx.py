"""The real `docker buildx`, which engines may lack: Debian's, by its digest."""

import hashlib
import os
import subprocess
import tempfile
import urllib.request
from pathlib import Path

import pytest

from tests.contract import archive

PACKAGE = "https://deb.debian.org/debian/pool/main/d/docker-buildx/docker-buildx_0.13.1+ds1-3_amd64.deb"
SHA256 = "fcf8c48204d1603c8f209451d7827eb91bf30759578baf7704e9e1a87e5f1d7f"
PROGRAM = "usr/libexec/docker/cli-plugins/docker-buildx"


def unpack(folder: Path) -> Path:
    """Puts the program into `folder`; its path."""
    kept = archive.cache() / "docker-buildx.deb"
    if not (kept.is_file() and hashlib.sha256(kept.read_bytes()).hexdigest() == SHA256):
        kept.parent.mkdir(parents=True, exist_ok=True)
        try:
            with urllib.request.urlopen(PACKAGE, timeout=300) as answer:
                content = answer.read()
        except OSError as error:
            if os.environ.get("CI"):
                raise
            pytest.skip(f"docker-buildx cannot be had: {error}")
        assert hashlib.sha256(content).hexdigest() == SHA256
        with tempfile.NamedTemporaryFile(dir=kept.parent, delete=False) as file:
            file.write(content)
        Path(file.name).replace(kept)
    subprocess.run(["dpkg", "--extract", kept, folder], check=True)
    return folder / PROGRAM
