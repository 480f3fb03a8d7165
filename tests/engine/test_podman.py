"""Podman answers as Docker does: what works there works, and a build is refused before anything is made."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commandline import answer
from tfbuild.engine import Engine, build
from tfbuild.errors import EngineMissing

PODMAN = shutil.which("podman")
pytestmark = pytest.mark.skipif(PODMAN is None, reason="podman is not installed")


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Podman service with images of its own."""
    folder = tmp_path_factory.mktemp("podman")
    socket = folder / "podman.sock"
    # Other drivers leave a mount behind.
    places = ["--storage-driver=vfs", f"--root={folder}/root", f"--runroot={folder}/run", f"--tmpdir={folder}/tmp"]
    command = [str(PODMAN), *places, "system", "service", "--time=0", f"unix://{socket}"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as service:
        try:
            for _ in range(200):
                if socket.exists() or service.poll() is not None:
                    break
                time.sleep(0.1)
            if not socket.exists():
                pytest.skip("podman cannot run here")
            yield f"unix://{socket}"
        finally:
            service.terminate()


def test_it_is_recognised_and_lists_its_images(podman: str) -> None:
    assert Engine.connect(podman).podman
    done = answer("images", "--json", env={"DOCKER_HOST": podman})
    assert (done.returncode, done.stdout.strip()) == (0, "[]")


def test_a_build_is_refused_before_the_base_is_made(podman: str, tmp_path: Path) -> None:
    words = ("build", "--wheel", "official", "--platform", Engine.connect(podman).platform)
    done = answer(*words, cwd=tmp_path, env={"DOCKER_HOST": podman})
    assert done.returncode == EngineMissing.exit_code
    assert "error: this engine is Podman" in done.stderr
    assert "which has no BuildKit" in done.stderr
    assert "base:" not in done.stderr


def test_its_docker_command_is_not_taken_for_dockers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package podman-docker installs this script."""
    script = tmp_path / "docker"
    script.write_text(f'#!/bin/sh\nexec {PODMAN} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    monkeypatch.setattr(build, "_programs", lambda _: iter([str(script)]))
    with pytest.raises(EngineMissing, match="docker is Podman's, which has no BuildKit"):
        build.find_program(os.environ)
