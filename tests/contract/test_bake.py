"""The real `docker buildx bake` reads what `invoke matrix --format bake` writes."""

import json
import subprocess
from pathlib import Path

import pytest

from tests import debian
from tfbuild.ci import formats, matrix


@pytest.fixture(scope="module")
def buildx(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return debian.buildx(tmp_path_factory.mktemp("buildx"))


def test_bake_reads_every_row(buildx: Path, tmp_path: Path) -> None:
    builds, _ = matrix.select_builds(matrix.MatrixRequest())
    file = tmp_path / "docker-bake.hcl"
    file.write_text(formats.render_rows("bake", [(build, "") for build in builds], tmp_path / "${contexts}"))
    done = subprocess.run(
        [buildx, "bake", "--file", file, "--print"], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    names = [formats.target_name(build.id) for build in builds]
    assert document["group"]["default"]["targets"] == names
    for name, build in zip(names, builds, strict=True):
        assert document["target"][name] == {
            "context": str(tmp_path / "${contexts}" / build.id),
            "dockerfile": "Dockerfile",
            "tags": [f"tfbuild:{build.id}-unverified"],
            "target": "runtime",
            "platforms": [build.platform],
        }
