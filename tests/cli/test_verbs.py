"""The command line as its users see it."""

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.commandline import ROOT, invoke
from tests.pipeline.test_no_container import BOOKWORM
from tests.rows import each
from tests.verify.test_report import check, report
from tfbuild import __version__
from tfbuild.cli import building, command_line, help_pages
from tfbuild.cli.verbs import VERBS
from tfbuild.engine import daemon
from tfbuild.errors import EngineMissing, RegistryRefused, VerificationFailed
from tfbuild.measure import records
from tfbuild.pipeline import build_context
from tfbuild.pipeline import machine as machines
from tfbuild.pipeline.maker import Maker
from tools import verbs as development

EVERY = {**VERBS, **development.VERBS}


def dry_run(folder: Path, *arguments: str, **env: str) -> str:
    """Return what `invoke build --dry-run` prints to stderr."""
    return str(invoke("build", "--dry-run", "--platform", "linux/amd64", *arguments, cwd=folder, env=env).stderr)


def test_ignored_compile_options_are_noted_where_nothing_is_compiled(tmp_path: Path) -> None:
    shared = ("--release", "2.20.0", "--remote-cache", "grpc://cache:9092", "--jobs", "2", "--time-limit", "5h",
              "--need-disk", "9", "--no-cache")  # fmt: skip
    output = dry_run(tmp_path, "--wheel", "official", *shared)
    assert "note: --jobs, --time-limit, --remote-cache: ignored, because --wheel official compiles nothing" in output
    assert "ignored" not in dry_run(tmp_path, "--cpu", "x86-64-v3", *shared)
    output = dry_run(tmp_path, "--cpu", "x86-64-v3", "--reuse", "x.whl", *shared)
    assert "note: --jobs, --time-limit, --remote-cache: ignored, because --reuse compiles nothing" in output


def test_the_glibc_that_a_wheel_may_need_is_told_before_it_is_compiled(tmp_path: Path) -> None:
    words = ("wheel", "--release", "2.21.0", "--cpu", "avx2", "--platform", "linux/amd64")
    said = invoke(*words, code=EngineMissing.exit_code, cwd=tmp_path, env={"DOCKER_HOST": "unix:///none"}).stderr
    assert "the wheel may need its base's glibc, 2.41" in said


@pytest.mark.parametrize("verb", sorted(EVERY))
def test_the_help_of_a_verb_has_its_words_and_options_and_examples_that_can_be_typed(verb: str) -> None:
    shown = invoke("--help", verb).stdout
    for words in ((verb, "--help"), (verb, "-h"), (f"--help={verb}",), (verb, "--json", "--help")):
        assert invoke(*words).stdout == shown
    assert max(map(len, shown.splitlines())) <= 80
    assert set(re.findall(r"^  --([\w-]+)", shown, re.MULTILINE)) == set(EVERY[verb].options)
    assert [row for row in EVERY[verb].positional if f"\n  {row.name.upper()}" not in shown] == []
    for example in EVERY[verb].examples:
        assert command_line.calls(shlex.split(example.partition(" >")[0], comments=True)[1:], EVERY)


def test_the_whole_help_has_all_verbs_in_groups() -> None:
    shown = invoke().stdout
    assert shown == invoke("--list").stdout == invoke("-l").stdout
    assert shown.startswith(f"Usage: invoke VERB [--options]\n\ntfbuild {__version__}: TensorFlow images")
    assert max(map(len, shown.splitlines())) <= 80
    assert set(re.findall(r"^  ([\w-]+)  +[A-Z]", shown, re.MULTILINE)) == set(EVERY)
    assert re.findall(r"^(\w.*):$", shown, re.MULTILINE) == list(help_pages.VERB_GROUPS.values())


def _ended(process: subprocess.Popen[str]) -> str:
    """End a process and return its stderr. A signal between two of its instructions is seen after the read: repeat."""
    for _ in range(60):
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=1)[1]
    raise TimeoutError("the process did not end")


def test_an_engine_with_containers_is_stopped_only_if_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "running_containers", lambda: 2)
    refused = invoke("engine", "--stop", code=2).stderr
    assert refused == "error: this would also stop 2 containers\nhint: invoke engine --stop --yes\n"


def test_a_plan_without_a_container_is_that_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "read_machine", lambda: BOOKWORM)
    words = ("--no-container", "--release", "2.13.1", "--cpu", "x86-64-v3", "--platform", "linux/amd64", "--json")
    (planned,) = json.loads(invoke("plan", *words).stdout)
    # It has gcc-12 alone.
    assert (planned["python"], planned["compiler"]) == ("3.11", "gcc-12")
    assert planned["notes"][0].startswith("this machine chose gcc-12 and Python 3.11; ")
    monkeypatch.setattr(machines, "lacking", lambda *_: ["gcc-12", "zip"])
    (planned,) = json.loads(invoke("plan", *words).stdout)
    lacks = "this machine lacks what the compile needs: gcc-12, zip: sudo apt-get install gcc-12 zip"
    assert planned["notes"][-1].startswith(lacks)


@each(
    "words, said, printed",
    [
        (("--stop", "--yes"), "stopped the engine that tfbuild had started\n", None),
        (("--json",), "", {"version": "28.1", "platform": "linux/amd64"}),
    ],
)
def test_what_was_done_to_the_engine_is_said(
    words: tuple[str, ...], said: str, printed: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "running_containers", lambda: 2)
    monkeypatch.setattr(daemon, "stop", lambda _: True)
    monkeypatch.setattr(daemon, "ensure", lambda _: SimpleNamespace(version="28.1", platform="linux/amd64"))
    done = invoke("engine", *words)
    assert (json.loads(done.stdout or "null"), done.stderr) == (printed, said)


ID = "2.20.0-mkl-py3.11-x86-64-v3"


@each(
    "words, printed, said, document",
    [
        (("build",), "tfbuild:x\n", "", {"image": "tfbuild:x", "verified": False}),
        (("wheel",), "dist/x.whl\n", "", {"id": ID, "wheel": "dist/x.whl", "sidecar": "dist/x.json", "sha256": "00"}),
        (("dockerfile",), "context\n", "", {"id": ID, "folder": "context", "digest": "00"}),
        (
            ("bundle", "--wheel-only"),
            "bundle.tar\n",
            "0.00 GB; `--mirror bundle.tar` builds from it without a network\n",
            {"file": "bundle.tar", "builds": [ID], "bytes": 1000},
        ),
    ],
)
def test_what_was_made_is_printed(
    words: tuple[str, ...], printed: str, said: str, document: object, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No engine is in reach: what it would make is given."""
    wheel = SimpleNamespace(wheel=Path("dist/x.whl"), sidecar=Path("dist/x.json"), sha256="00", library=None)
    monkeypatch.setattr(Maker, "build", lambda *_: SimpleNamespace(report=None, image="tfbuild:x"))
    monkeypatch.setattr(Maker, "wheel", lambda *_: wheel)
    monkeypatch.setattr(build_context, "write_context", lambda *_, **__: SimpleNamespace(folder="context", digest="00"))
    monkeypatch.setattr(Maker, "bundle", lambda _, __, path, **___: path.write_bytes(bytes(1000)))
    request = ("--release", "2.20.0", "--python", "3.11", "--cpu", "x86-64-v3", "--platform", "linux/amd64")
    done = invoke(*words, *request, cwd=tmp_path)
    assert (done.stdout, done.stderr.endswith(said)) == (printed, True)
    assert done.stderr.startswith(f"{ID}: TensorFlow 2.20.0, ")
    assert "\nnote: " in done.stderr
    assert json.loads(invoke(*words, *request, "--json", cwd=tmp_path).stdout) == document


def test_a_verb_ends_with_the_outcome_of_the_verification(capsys: pytest.CaptureFixture[str]) -> None:
    building.finish(report(), "tfbuild:x", json=True)
    assert capsys.readouterr() == (records.to_json(report()), "")
    with pytest.raises(VerificationFailed):
        building.finish(report("fail", check("isa", "fail")), "tfbuild:x", json=False)
    output, errors = capsys.readouterr()
    assert "isa" in output
    assert errors == f"image tfbuild:x, report reports/{report().id}-failed.html\n"


def test_free_text_and_names_of_files_may_look_like_a_login(tmp_path: Path) -> None:
    text = "https://u:word@host/x"
    invoke("dockerfile", "--wheel", "official", "--output", "u:word@host/x", cwd=tmp_path)
    name = "2.21.0-mkl-py3.11-f16c"
    invoke("push", name, "--registry", "127.0.0.1:1/us/x", "--yank", text, code=RegistryRefused.exit_code)


def test_sigterm_ends_a_verb_as_ctrl_c_does(tmp_path: Path) -> None:
    """The verb waits for a pipe that nobody writes to."""
    waiting = tmp_path / "cpuinfo"
    os.mkfifo(waiting)
    command = [sys.executable, "-m", "invoke", "detect", "--cpuinfo", str(waiting)]
    with (
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process,
        waiting.open("w"),  # it reads
    ):
        errors = _ended(process)
    assert (process.returncode, errors.splitlines()[:1]) == (
        130,
        ["error: interrupted; everything that ran was stopped and cleaned up"],
    )


def test_a_second_signal_does_not_end_what_python_does_at_its_exit() -> None:
    """There the tunnel to an engine is closed, and temporary folders are removed."""
    program = """
import atexit, signal, sys
from tfbuild.cli import command_line

number = signal.Signals(int(sys.argv[1]))
atexit.register(lambda: print("cleaned up, from now on", signal.getsignal(number).name))
atexit.register(signal.raise_signal, number)
with command_line.ending():
    signal.raise_signal(number)
"""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        done = subprocess.run(
            [sys.executable, "-c", program, str(int(number))], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout) == (130, "cleaned up, from now on SIG_IGN\n"), done.stderr
        assert done.stderr == "error: interrupted; everything that ran was stopped and cleaned up\n"
