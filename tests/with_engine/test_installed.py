"""The wheel, installed with each Python that is here, builds the official wheel's image from an empty folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.with_engine.conftest import ROOT
from tfbuild.engine import Engine

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.nightly]
PYTHONS = ("python3.11", "python3.12", "python3.13", "python3.14")


def runs(python: str) -> bool:
    """Whether it is here, and makes environments."""
    try:
        return subprocess.run([python, "-c", "import ensurepip"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def test_the_installed_command_builds_and_verifies_from_an_empty_folder(engine: Engine, tmp_path: Path) -> None:
    build = f"from hatchling import build; print(build.build_wheel({str(tmp_path)!r}))"
    subprocess.run([sys.executable, "-c", build], cwd=ROOT, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    pythons = [name for name in PYTHONS if runs(name)]
    assert pythons
    for name in pythons:
        subprocess.run(["ci/try.sh", wheel, "build"], cwd=ROOT, env={**os.environ, "PYTHON": name}, check=True)
