"""Words become values of verbs, the shell completes them, and a strange environment is named without a traceback."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commandline import ROOT, invoke
from tfbuild import __version__
from tfbuild.cli import VERBS, command_line
from tools import verbs as development

EVERY = {**VERBS, **development.VERBS}
# A command line, and the values of the options that it gives, by verb.
TYPED = (
    ("plan --target=cpu --json --config a --config=b plan --target mkl",
     [("plan", {"target": "cpu", "json": True, "config": ["a", "b"]}), ("plan", {"target": "mkl"})]),
    ("build --bazel-flag=--copt=-O3 --bazel-flag=--config=opt --no-cache",
     [("build", {"bazel_flag": ["--copt=-O3", "--config=opt"], "no_cache": True})]),
    ("matrix --only *-mkl-* --only *-cpu-* --format json detect",
     [("matrix", {"only": ["*-mkl-*", "*-cpu-*"], "format": "json"}), ("detect", {})]),
    ("plan --config=-- --config=--x", [("plan", {"config": ["--", "--x"]})]),
    ("verify tfbuild:x --json", [("verify", {"image": "tfbuild:x", "json": True})]),
    ("bench --json tfbuild:x", [("bench", {"image": "tfbuild:x", "json": True})]),
    ("cpus --json zen plan --target mkl", [("cpus", {"text": "zen", "json": True}), ("plan", {"target": "mkl"})]),
    ("push --sign-options='--key x' tfbuild:x", [("push", {"image": "tfbuild:x", "sign_options": "--key x"})]),
)  # fmt: skip


@pytest.mark.parametrize(("line", "values"), TYPED)
def test_words_become_the_values_of_verbs(line: str, values: list[tuple[str, dict[str, object]]]) -> None:
    calls = command_line.calls(shlex.split(line), EVERY)
    given = [(verb.name, {name: value for name, value in typed.items() if value}) for verb, typed in calls]
    assert given == values


def run(*words: str, code: int = 0) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "tfbuild", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return done


def test_a_clone_has_the_verbs_as_a_module_too() -> None:
    for words, code in ((("plan", "--json"), 0), (("plan", "--target", "mlk"), 2), (("--help", "plan"), 0)):
        one, other = run(*words, code=code), invoke(*words, code=code)
        assert (one.stdout, one.stderr) == (other.stdout, other.stderr)


def test_a_shell_completes_verbs_and_the_options_of_a_verb() -> None:
    assert invoke("--complete", "--", "x").stdout.split() == [*EVERY]
    for completed in (run, invoke):
        for words in (("pl",), ("--help", "bu")):
            assert {"plan", "build"} <= {*completed("--complete", "--", "x", *words).stdout.split()}
        options = completed("--complete", "--", "x", "plan", "--target", "mkl", "--rel").stdout.split()
        assert options == [f"--{name}" for name in VERBS["plan"].options]
    assert "complete" in run("--print-completion-script", "bash").stdout
    assert run("-V").stdout == run("--version").stdout == f"tfbuild {__version__}\n"
    assert "bash or zsh or fish" in run("--print-completion-script", "tcsh", code=2).stderr


def test_options_of_invoke_are_none_of_tfbuild_except_where_it_finds_tasks_py() -> None:
    assert run("-f", "x", "plan", code=2).stderr.startswith("error: ")
    assert invoke("--config", "/nonexistent", "-r", str(ROOT), "cpus", "zen").stdout == invoke("cpus", "zen").stdout
    for option in ("-F", "-D", "--list-format", "--prompt-for-sudo-password", "--dry"):
        assert "hint: " in invoke(option, "1", "--list", code=2).stderr


# A command line of a shell with {} for the command; how it ends, and what it says.
STRANGE = (
    ("PYTHONUNBUFFERED= {} detect plan --target tpu | true", 2, "error: unknown target 'tpu'"),
    ("{} plan --release 2.20.0 --cpu avx | true", 141, ""),
    ("{} --print-completion-script bash | true", 141, ""),
    ("{} --complete >/dev/full", 21, "error: cannot write to "),
    ("{} --print-completion-script bash >/dev/full", 21, "error: cannot write to "),
    ("HOME=/dev/null XDG_CACHE_HOME=/dev/null {} dockerfile --wheel official >/dev/null 2>&1", 0, ""),
    ("PYTHONOPTIMIZE=2 {} --help build >/dev/null", 0, ""),
    ("ulimit -f 1; {} plan --full >file", 21, "error: cannot write to "),
    ("ulimit -f 1; {} dockerfile --output new", 2, "error: cannot write to "),
)


@pytest.mark.parametrize(("line", "code", "told"), STRANGE)
def test_a_strange_environment_is_named_without_a_traceback(line: str, code: int, told: str, tmp_path: Path) -> None:
    command = shlex.join([sys.executable, "-m", "tfbuild"])
    shell = ["bash", "-o", "pipefail", "-c", line.format(command)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "DOCKER_HOST": "unix:///nonexistent/docker.sock"}
    # Under a limit, Python would leave bytecode that is cut short in the clone.
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    done = subprocess.run(shell, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
    assert done.stderr.startswith(told) if told else not done.stderr, done.stderr
