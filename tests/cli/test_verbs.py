"""The command line as its users see it."""

import contextlib
import json
import os
import platform
import re
import shlex
import subprocess
import sys
from inspect import signature
from pathlib import Path

import pytest

from tests.commandline import invoke
from tests.pipeline.test_no_container import BOOKWORM
from tests.rows import each
from tests.terminal import Terminal
from tfbuild.cli import command_line, help_pages
from tfbuild.cli.verbs import VERBS
from tfbuild.engine import daemon
from tfbuild.errors import Interrupted
from tfbuild.pipeline import machine as machines
from tfbuild.util.progress import Progress
from tools import verbs as development

ROOT = Path(__file__).parents[2]
EVERY = {**VERBS, **development.VERBS}


@pytest.mark.parametrize("words", [["plan", "--release", "2.20.0", "--cpu", "avx"], ["--list"], ["--help", "plan"]])
def test_a_closed_pipe_is_no_error(words: list[str]) -> None:
    end, pipe = os.pipe()
    os.close(end)
    with os.fdopen(pipe, "w") as stdout:
        done = subprocess.run(
            [sys.executable, "-m", "invoke", *words],
            cwd=ROOT, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (141, "")


def test_the_command_line_starts_without_what_only_some_verbs_use() -> None:
    rooms = ("bench", "ci", "context", "engine", "fleet", "measure", "pipeline", "publish", "verify")
    code = "import sys, tfbuild.cli; print(*sys.modules, sep='\\n')"
    loaded = set(subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True).split())
    assert "tfbuild.cli.planning" in loaded
    libraries = {"auditwheel", "capstone", "cyclonedx", "docker", "elftools", "invoke", "jinja2", "requests", "rich"}
    assert loaded & {*libraries, *(f"tfbuild.{room}" for room in rooms)} == set()


@pytest.mark.parametrize("name", sorted(EVERY))
def test_every_verb_takes_the_options_that_it_offers(name: str) -> None:
    body = signature(EVERY[name].body)
    positional = [
        parameter for parameter in body.parameters.values() if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
    offered = (option.replace("-", "_") for option in EVERY[name].options)
    body.bind(*positional, **dict.fromkeys(offered))


def dry_run(folder: Path, *arguments: str, **env: str) -> str:
    """Return what `invoke build --dry-run` prints to stderr."""
    return str(invoke("build", "--dry-run", "--platform", "linux/amd64", *arguments, cwd=folder, env=env).stderr)


def test_ignored_compile_options_are_noted_where_nothing_is_compiled(tmp_path: Path) -> None:
    shared = ("--release", "2.20.0", "--remote-cache", "grpc://cache:9092", "--jobs", "2")
    output = dry_run(tmp_path, "--wheel", "official", *shared)
    assert "note: --jobs, --remote-cache: ignored, because --wheel official compiles nothing" in output
    assert "ignored" not in dry_run(tmp_path, "--cpu", "x86-64-v3", *shared)


def test_credentials_from_a_pipe_are_read_once_whatever_the_engine(tmp_path: Path) -> None:
    end, pipe = os.pipe()
    with os.fdopen(pipe, "w") as headers:
        headers.write("Authorization=Bearer x\n")
    shared = ("--release", "2.20.0", "--remote-cache", "grpc://cache:9092", "--remote-header-file", f"/dev/fd/{end}")
    output = dry_run(tmp_path, "--cpu", "x86-64-v3", *shared, DOCKER_HOST="tcp://127.0.0.1:1")
    assert "nothing was started" in output
    os.close(end)


def test_copts_of_a_release_are_those_of_its_own_compiler_as_plan_gives_them() -> None:
    arguments = ("--cpu", "sapphirerapids", "--release", "2.9.0", "--platform", "linux/amd64", "--json")
    copts, (plan,) = json.loads(invoke("copts", *arguments).stdout), json.loads(invoke("plan", *arguments).stdout)
    for key in ("compiler", "instruction_set", "copts"):
        assert copts[key] == plan[key]


def test_the_host_is_not_of_another_platform() -> None:
    own, other = ("linux/amd64", "linux/arm64") if platform.machine() == "x86_64" else ("linux/arm64", "linux/amd64")
    for arguments in (("copts", "--cpu", "host"), ("copts",), ("plan",)):
        errors = invoke(*arguments, "--platform", other, code=12).stderr
        assert f"the requested platform is {other}" in errors
        assert f"or --platform {own}" in errors


@pytest.mark.parametrize("verb", sorted(EVERY))
def test_the_help_of_a_verb_has_its_words_and_options_and_examples_that_can_be_typed(verb: str) -> None:
    shown = invoke("--help", verb).stdout
    for words in ((verb, "--help"), (verb, "-h"), (f"--help={verb}",), (verb, "--json", "--help")):
        assert invoke(*words).stdout == shown
    assert max(map(len, shown.splitlines())) <= 80
    assert set(re.findall(r"^  --([\w-]+)", shown, re.MULTILINE)) == set(EVERY[verb].options)
    assert all(f"\n  {word}" in shown for word in help_pages.placeholders(EVERY[verb]))
    for example in EVERY[verb].examples:
        assert command_line.calls(shlex.split(example.partition(" >")[0], comments=True)[1:], EVERY)


def test_the_help_begins_with_what_people_need_most() -> None:
    shown = invoke("--help", "build").stdout
    titles = re.findall(r"^(\w.*):$", shown, re.MULTILINE)
    assert titles[:3] == ["Examples", "Common options", "Compiler and flags"]
    assert len(EVERY["build"].examples) == 3
    assert re.findall(r"^  --([\w-]+)", shown, re.MULTILINE)[:5] == ["target", "release", "python", "platform", "cpu"]


def test_build_has_few_options_of_its_own() -> None:
    assert len(EVERY["build"].options) <= 36


def test_the_whole_help_has_all_verbs_in_groups() -> None:
    shown = invoke().stdout
    assert shown == invoke("--list").stdout
    assert max(map(len, shown.splitlines())) <= 80
    assert set(re.findall(r"^  ([\w-]+)  +[A-Z]", shown, re.MULTILINE)) == set(EVERY)
    assert re.findall(r"^(\w.*):$", shown, re.MULTILINE) == list(help_pages.VERB_GROUPS.values())


def test_verbs_may_follow_each_other() -> None:
    done = invoke("copts", "--cpu", "haswell", "--platform", "linux/amd64", "bench", "x", "--dry-run", "--only", "jpeg")
    assert "-march=x86-64-v3" in done.stdout
    assert "decode_and_crop_jpeg" in done.stdout


def test_what_can_be_measured_is_listed_without_an_image() -> None:
    assert "decode_and_crop_jpeg" in invoke("bench", "x", "--dry-run", "--only", "jpeg").stdout
    assert "of 80 s: jpeg 80 s" in invoke("bench", "IMAGE", "--quick", "--dry-run", "--only", "jpeg").stderr
    assert invoke("bench", "--only", "jpeg", code=2).stderr.startswith("error: bench needs IMAGE\n")
    assert "is not a valid name" in invoke("bench", "x", "--name", "../x", code=2).stderr


def _ended(process: subprocess.Popen[str]) -> str:
    """End a process and return its stderr. A signal between two of its instructions is seen after the read: repeat."""
    for _ in range(60):
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=1)[1]
    raise TimeoutError("the process did not end")


@each("typed, stops", [("y\n", True), (" Yes\n", True), ("\n", False), ("n\n", False), ("yesterday\n", False)])
def test_an_engine_with_containers_is_stopped_only_on_a_yes(
    typed: str, stops: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped: list[Progress] = []
    monkeypatch.setattr(daemon, "running_containers", lambda: 2)
    monkeypatch.setattr(daemon, "stop", stopped.append)
    monkeypatch.setattr(sys, "stdin", Terminal(typed))
    stop = command_line.calls(["engine", "--stop"], EVERY)[0]
    with contextlib.nullcontext() if stops else pytest.raises(Interrupted, match="the engine was not stopped"):
        stop.run()
    assert bool(stopped) == stops
    assert capsys.readouterr().err.startswith("stop the engine and 2 running containers? [y/N]\n")


def test_a_plan_without_a_container_is_that_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "read", lambda: BOOKWORM)
    words = ("--no-container", "--release", "2.13.1", "--cpu", "x86-64-v3", "--platform", "linux/amd64", "--json")
    (planned,) = json.loads(invoke("plan", *words).stdout)
    assert (planned["python"], planned["compiler"]) == ("3.11", "gcc-12")


def test_sigterm_ends_a_verb_as_ctrl_c_does(tmp_path: Path) -> None:
    """The verb waits for a pipe that nobody writes to."""
    waiting = tmp_path / "cpuinfo"
    os.mkfifo(waiting)
    command = [sys.executable, "-m", "invoke", "explain", "--cpuinfo", str(waiting)]
    with (
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process,
        waiting.open("w"),  # it reads
    ):
        errors = _ended(process)
    assert (process.returncode, errors.splitlines()[:1]) == (
        130,
        ["error: interrupted; everything that ran was stopped and cleaned up"],
    )
