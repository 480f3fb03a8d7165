"""Bad requests are refused before an engine is contacted, with what to do."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli import hostile
from tests.commandline import ROOT, invoke
from tests.rows import each

# An engine that does not answer: a verb that gets as far as connecting exits with code 20.
NO_ENGINE = {"DOCKER_HOST": "unix:///nonexistent/docker.sock"}


# A path longer than a file's name may be, and more digits than Python reads as a number.
LONG = "x" * 300
DIGITS = "1" * 5000
PLAN = ("plan", "--target", "cpu")
DRY_RUN = ("build", "--target", "cpu", "--cpu", "x86-64-v3", "--dry-run")


def refusal(*words: str, code: int, cwd: Path = ROOT) -> str:
    """The one message that a command ends in: no traceback, nothing that a terminal obeys, and no long value whole."""
    # Invoke looks for its settings at home, which another user may not read.
    done = invoke(*words, env={**NO_ENGINE, "HOME": "/nonexistent"}, code=code, cwd=cwd)
    assert done.stdout == ""
    message = done.stderr[done.stderr.index("error: ") :]
    assert message.count("error: ") == message.count("\nhint: ") == 1
    assert [line for line in message.splitlines() if not (line.isprintable() and len(line) < 800)] == []
    return message


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        ((*DRY_RUN, "--ca-cert", LONG), 2, f"no CA certificates at {LONG}: File name too long"),
        ((*DRY_RUN, "--ca-cert", "."), 2, "no CA certificates at .: not a file"),
        ((*DRY_RUN, "--mirror", LONG), 2, f"--mirror '{LONG}' is neither a file nor "),
        ((*DRY_RUN, "--mirror", "http://[::1"), 2, "--mirror 'http://[::1' is not a valid address"),
        ((*DRY_RUN, "--mirror", "http://a/$(id)"), 2, "--mirror 'http://a/$(id)' is not a valid address"),
        ((*DRY_RUN, "--mirror", "http://a/\tb"), 2, "--mirror has control characters in it: 'http://a/\\tb'"),
        ((*PLAN, "--source", LONG), 16, f"no source at {LONG}: File name too long"),
        ((*PLAN, "--override-repository", f"x={LONG}"), 16, f"--override-repository x: no folder at {LONG}: File"),
        ((*PLAN, "--release", f"2.{DIGITS}"), 12, "unknown TensorFlow release '2.111"),
        ((*PLAN, "--bazel", "７.4.1"), 2, "'７.4.1', which is '\\uff17.4.1',"),
        ((*DRY_RUN, "--ca-cert", "ca.pem\xa0"), 2, "no CA certificates at ca.pem\\xa0"),
        (("verify", "x" * 100_000), 20, "no container engine answers"),
        (("inspect", "tfbuild:x", "--engine", "\udcff"), 20, "there is no Docker context '\\udcff'"),
        (("fleet", "\n" * 100_000), 2, "\n"),
        ((*PLAN, "--system-lib", "cur\N{LATIN SMALL LETTER LONG S}=libx1"), 2, "--system-lib 'cur"),
    ],
)
def test_a_value_that_cannot_be_used_ends_in_one_short_message(words: tuple[str, ...], code: int, error: str) -> None:
    assert refusal(*words, code=code).startswith(f"error: {error}")


@each(
    "words, code, error",
    [
        (("matrix", "--fleet", "{pipe}"), 2, "{pipe} does not hold a fleet: a pipe that nobody writes to"),
        (("detect", "--cpuinfo", "{pipe}"), 12, "cannot read {pipe}: a pipe that nobody writes to"),
        ((*PLAN, "--options", "{pipe}"), 2, "cannot read {pipe}: a pipe that nobody writes to"),
        ((*PLAN, "--options", "/dev/zero"), 2, "cannot read /dev/zero: more than"),
        ((*PLAN, "--patch", "{pipe}"), 16, "--patch {pipe}: not a regular file"),
        (
            (*DRY_RUN, "--remote-cache", "grpc://a:1", "--remote-header-file", "{pipe}"),
            2, "cannot read --remote-header-file {pipe}",
        ),
        (
            (*DRY_RUN, "--remote-cache", "grpcs://a:1", "--remote-client-cert", "{pipe}",
             "--remote-client-key", "{pipe}"),
            2, "--remote-client-cert {pipe} is not a PEM file",
        ),
    ],
)  # fmt: skip
def test_nothing_is_waited_for_that_never_comes(words: tuple[str, ...], code: int, error: str, here: Path) -> None:
    pipe = here / "pipe"
    if not pipe.exists():
        os.mkfifo(pipe)
    with hostile.limited(hostile.SECONDS):
        message = refusal(*(word.format(pipe=pipe) for word in words), code=code, cwd=here)
    assert message.startswith(f"error: {error.format(pipe=pipe)}")


MODEL = "Foo\u00ae \x1b[2J\x07Bar \U0001f600" + 200 * "x"


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """A machine whose model has a name with commands to a terminal, and is longer than any."""
    path = tmp_path / "machine"
    path.write_text(f"vendor_id : A\x1b]0;x\x07\nmodel name : {MODEL}\nflags : lm sse sse2 fpu\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("words", [("detect",), ("copts", "--explain", "--platform", "linux/amd64")])
def test_a_recording_cannot_command_a_terminal(words: tuple[str, ...], recording: Path) -> None:
    done = invoke(*words, "--cpuinfo", recording)
    assert [line for line in (done.stdout + done.stderr).splitlines() if not line.isprintable()] == []
    assert "x" * 120 not in done.stdout


def detect(recording: Path, stdout: str, **env: str) -> "subprocess.CompletedProcess[bytes]":
    """`invoke detect --json` in a shell, with its stdout redirected."""
    words = [sys.executable, "-m", "invoke", "detect", "--json", "--cpuinfo", str(recording)]
    command = f"{shlex.join(words)} {stdout}"
    return subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, check=False, env={**os.environ, **env})


def test_stdout_in_ascii_still_gets_all_of_the_json(recording: Path) -> None:
    done = detect(recording, "", PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.decode("ascii"))["model"].startswith("Foo\u00ae  [2J Bar \U0001f600")


@pytest.mark.parametrize(("unbuffered", "where"), [("", "standard output"), ("1", "or standard output")])
def test_a_full_stdout_is_told_as_one(recording: Path, unbuffered: str, where: str) -> None:
    done = detect(recording, ">/dev/full", PYTHONUNBUFFERED=unbuffered)
    assert (done.returncode, done.stdout) == (21, b"")
    assert done.stderr.startswith(b"error: cannot write to ")
    assert f"{where}: No space left on device\nhint: free".encode() in done.stderr
    assert b"Exception ignored" not in done.stderr


def test_a_closed_stdout_is_refused(recording: Path) -> None:
    done = detect(recording, ">&-")
    assert done.returncode == 2
    assert done.stderr.startswith(b"error: standard output is closed\nhint: ")


def test_a_closed_stderr_leaves_stdout_to_the_data(recording: Path) -> None:
    done = detect(recording, "2>&-")
    assert done.returncode == 0
    assert json.loads(done.stdout)["arch"] == "x86_64"
