"""`invoke test`: what it runs, what it reports of missing programs, and one line for each file."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commandline import ROOT, executable
from tfbuild.engine import daemon
from tfbuild.errors import UsageError
from tfbuild.util.progress import Progress
from tools import testing

THOROUGH = "--hypothesis-profile=thorough"


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Record the commands that are run, without the interpreter; each succeeds."""
    commands: list[list[str]] = []

    def run(command: list[str], env: dict[str, str], **_: object) -> "subprocess.CompletedProcess[str]":
        assert command[:2] == [sys.executable, "-m"]
        # Where tests need no engine, they do not download TensorFlow either.
        assert ("pytest" in command and selected(command[2:]) != testing.PURE) == (testing.MAKES_TENSORFLOW in env)
        commands.append(command[2:])
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.delenv(testing.MAKES_TENSORFLOW, raising=False)  # of the run that this test is part of
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(testing, "missing", lambda: ())
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    return commands


def selected(command: list[str]) -> str:
    return command[command.index("-m") + 1] if "-m" in command else ""


def test_all_that_is_checked_without_an_engine(steps: list[list[str]]) -> None:
    testing.run(ROOT, path="", pure=True, nightly=False)
    assert [row[0] for row in steps[:2]] == ["ruff", "ruff"]
    assert sorted(row[0] for row in steps[2:]) == ["invoke", "mypy", "pytest"]
    (tests,) = (row for row in steps if row[0] == "pytest")
    assert selected(tests) == testing.PURE
    assert "--numprocesses=4" in tests, "two more than processors"
    assert [word for word in tests if word.startswith("--ignore=")] == [
        f"--ignore={path}" for path in testing.NEVER_PURE
    ]


@pytest.mark.parametrize(
    ("path", "options", "marks", "words"),
    [
        ("tests/measure/test_probe.py", {}, "", ["tests/measure/test_probe.py"]),
        ("measure/test_probe.py::test_x[1]", {}, "", ["tests/measure/test_probe.py::test_x[1]"]),
        ("with_engine", {}, "", ["--numprocesses=4", "--no-loadscope-reorder", "tests/with_engine"]),
        ("with_engine", {"nightly": True}, testing.NIGHTLY, [THOROUGH, "tests/with_engine"]),
    ],
)
def test_a_path_is_all_that_is_run(
    path: str, options: dict[str, bool], marks: str, words: list[str], steps: list[list[str]]
) -> None:
    testing.run(ROOT, path=path, pure=False, nightly=options.get("nightly", False))
    (only,) = steps
    assert only[0] == "pytest"
    assert selected(only) == marks
    assert only[-len(words) :] == words


def test_contradicting_options_are_refused(steps: list[list[str]]) -> None:
    with pytest.raises(UsageError, match="no tests at nowhere"):
        testing.run(ROOT, path="nowhere", pure=False, nightly=False)
    with pytest.raises(UsageError, match="select different tests"):
        testing.run(ROOT, path="", pure=True, nightly=True)
    assert steps == []


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
