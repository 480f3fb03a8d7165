"""`invoke test`: what it does about missing programs."""

import io
import os
from pathlib import Path

import pytest

from tests.commandline import executable
from tfbuild.engine import daemon
from tfbuild.util.progress import Progress
from tools import testing


def test_a_missing_program_is_installed_or_reported_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(testing, "SYSTEM", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    for program in ("docker-registry", "mmdebstrap", "aarch64-linux-gnu-as", "ip", "zsh"):
        executable(tmp_path / program, "")
    assert [need.program for need in testing.missing()] == ["sshd", "chromium"]
    output, installed = io.StringIO(), list[list[str]]()
    monkeypatch.setattr(testing, "install", lambda packages, log, progress: installed.append(packages))
    monkeypatch.setattr(daemon, "this_system", lambda: {"ID": "debian"})
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    testing.provide(tmp_path, Progress(output))
    assert installed == []
    assert output.getvalue() == (
        "skipped, because a program is missing: hosts and engines by ssh (sshd), pages in a browser (chromium); "
        "to run them: sudo apt-get install openssh-server chromium\n"
    )
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    testing.provide(tmp_path, Progress(output))
    assert installed == [["openssh-server", "chromium"]]
