"""Choosing a Docker client that can build."""

import os
import stat
from pathlib import Path

import pytest

from tfbuild.engine import build
from tfbuild.engine.build import DockerProgram
from tfbuild.errors import EngineMissing

BUILDX = 'if [ "$1" = buildx ]; then echo github.com/docker/buildx v0.12; exit; fi; '
NO_BUILDX = 'if [ "$1" = buildx ]; then echo "docker: unknown command: docker buildx" >&2; exit 1; fi; '
SERVER = 'if [ "$1" = version ]; then echo 20.10.24; exit; fi; '
NO_SERVER = 'if [ "$1" = version ]; then exit 1; fi; '


def client(folder: Path, version: str, rest: str = SERVER) -> str:
    folder.mkdir()
    program = folder / "docker"
    program.write_text(f'#!/bin/sh\nif [ "$1" = --version ]; then echo "{version}"; exit; fi; {rest}\nexit 9\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return str(folder)


NEW = "Docker version 28.2.2, build e6534b4"
OLD = "Docker version 20.10.24+dfsg1, build 297e128"
ANCIENT = "Docker version 17.12.1-ce, build 7390fc6"


@pytest.mark.parametrize(
    ("version", "rest", "buildx"),
    [
        (NEW, BUILDX + SERVER, True),
        (OLD, NO_BUILDX + SERVER, False),
        ("Docker version 18.09.1, build x", SERVER, False),
    ],
)
def test_a_client_with_buildkit_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, rest: str, buildx: bool
) -> None:
    folder = client(tmp_path / "a", version, rest)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    assert build.find_program(os.environ) == DockerProgram(path=f"{folder}/docker", buildx=buildx)


def test_clients_that_cannot_build_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [
        str(tmp_path / "missing"),
        client(tmp_path / "new", NEW, NO_BUILDX + SERVER),
        client(tmp_path / "podman", "podman version 4.3.1", BUILDX + SERVER),
        client(tmp_path / "ancient", ANCIENT, BUILDX + SERVER),
        client(tmp_path / "too-new", NEW, BUILDX + NO_SERVER),
        client(tmp_path / "old", OLD, NO_BUILDX + SERVER),
    ]
    monkeypatch.setenv("PATH", os.pathsep.join(folders))
    assert build.find_program(os.environ).path == f"{tmp_path}/old/docker"


def test_where_no_client_fits_each_reason_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [client(tmp_path / "new", NEW, NO_BUILDX), client(tmp_path / "podman", "podman version 4.3.1")]
    monkeypatch.setenv("PATH", os.pathsep.join(folders))
    with pytest.raises(EngineMissing) as caught:
        build.find_program(os.environ)
    assert "new/docker 28.2 has no buildx plugin" in str(caught.value)
    assert "podman/docker is not Docker's client" in str(caught.value)
    assert "docker-buildx" in caught.value.hint


def test_the_client_is_looked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = client(tmp_path / "a", OLD, f"echo x >> {tmp_path}/calls; {SERVER}")
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    assert build.find_program(os.environ) is build.find_program(os.environ)
    assert (tmp_path / "calls").read_text().count("x") == 1
