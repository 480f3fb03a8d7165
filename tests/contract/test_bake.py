"""The real `docker buildx bake` reads what `invoke matrix --format bake` writes. It is Debian's, by its digest."""

import hashlib
import json
import os
import subprocess
import tempfile
import urllib.request
from pathlib import Path

import pytest

from tests.contract import archive
from tfbuild import matrix

PACKAGE = "https://deb.debian.org/debian/pool/main/d/docker-buildx/docker-buildx_0.13.1+ds1-3_amd64.deb"
SHA256 = "fcf8c48204d1603c8f209451d7827eb91bf30759578baf7704e9e1a87e5f1d7f"
PROGRAM = "usr/libexec/docker/cli-plugins/docker-buildx"


@pytest.fixture(scope="module")
def buildx(tmp_path_factory: pytest.TempPathFactory) -> Path:
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
    folder = tmp_path_factory.mktemp("buildx")
    subprocess.run(["dpkg", "--extract", kept, folder], check=True)
    return folder / PROGRAM


def test_bake_reads_every_row(buildx: Path, tmp_path: Path) -> None:
    rows = matrix.select(matrix.Asked())
    file = tmp_path / "docker-bake.hcl"
    file.write_text(matrix.to_bake(rows, tmp_path / "${contexts}"))
    done = subprocess.run(
        [buildx, "bake", "--file", file, "--print"], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    names = [matrix.target_name(build.id) for build in rows.rows]
    assert told["group"]["default"]["targets"] == names
    for name, build in zip(names, rows.rows, strict=True):
        assert told["target"][name] == {
            "context": str(tmp_path / "${contexts}" / build.id),
            "dockerfile": "Dockerfile",
            "tags": [f"tfbuild:{build.id}-unverified"],
            "target": "runtime",
            "platforms": [build.platform],
        }
