"""`tfbuild` and `python -m tfbuild` run the verbs without Invoke, with the values that Invoke would give them."""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from invoke.parser import Parser
from invoke.program import Program

from tests.commandline import invoke
from tfbuild import __version__
from tfbuild.cli import VERBS, command_line
from tfbuild.cli.tasks import collection
from tools import verbs as development

ROOT = Path(__file__).parents[2]
EVERY = {**VERBS, **development.VERBS}
MORE = (
    "invoke plan --target=cpu --json --config a --config=b plan --target mkl",
    "invoke build --bazel-flag --copt=-O3 --bazel-flag --config=opt --no-cache",
    "invoke matrix --only *-mkl-* --only *-cpu-* --format json detect",
    "invoke verify tfbuild:x --json",
    "invoke bench --json tfbuild:x",
)


def typed() -> Iterator[str]:
    yield from MORE
    for verb in EVERY.values():
        for example in verb.examples:
            yield example.partition(" >")[0]


def by_invoke(words: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
    contexts = collection(VERBS, development.VERBS).to_contexts()
    parsed = Parser(contexts=contexts, initial=Program().initial_context).parse_argv(list(words))
    return [
        (str(context.name), {name.replace("-", "_"): arg.value for name, arg in context.args.items()})
        for context in parsed
        if context.name
    ]


@pytest.mark.parametrize("line", sorted({*typed()}))
def test_a_command_line_means_what_it_means_to_invoke(line: str) -> None:
    _, *words = shlex.split(line, comments=True)
    calls = command_line.handle(["tfbuild", *words], EVERY)
    assert calls is not None
    assert [(call.verb.name, dict(call.values)) for call in calls] == by_invoke(words)


def run(*words: str, code: int = 0) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "tfbuild", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return done


def test_a_clone_has_the_verbs_as_a_module_too() -> None:
    for words, code in ((("plan", "--json"), 0), (("plan", "--target", "mlk"), 2), (("--help", "plan"), 0)):
        one, other = run(*words, code=code), invoke(*words, code=code)
        assert (one.stdout, one.stderr) == (other.stdout, other.stderr)


def test_only_completion_is_left_to_invoke() -> None:
    assert run("--version").stdout == f"tfbuild {__version__}\n"
    assert "complete" in run("--print-completion-script", "bash").stdout
    assert {"plan", "build"} <= {*run("--complete", "--", "tfbuild").stdout.split()}


@pytest.mark.parametrize(
    "words", ["-D x", "-T 3s plan", "-f x plan", "-F x --list", "--echo detect", "-c x", "--list -D x"]
)
def test_options_of_invoke_itself_are_none_of_the_installed_command(words: str) -> None:
    assert run(*words.split(), code=2).stderr.startswith("error: ")


def test_a_list_format_that_invoke_lacks_is_refused() -> None:
    done = invoke("-F", "x", "--list", code=2)
    assert done.stderr == "error: -F has no format 'x'\nhint: one of flat, nested, json\n"


# A command line of a shell with {} for the command; how it ends, and what it says.
STRANGE = (
    ("{} --version | true", 141, ""),
    ("{} --print-completion-script bash | true", 141, ""),
    ("{} --version >/dev/full", 21, "error: cannot write to "),
    ("{} --complete >/dev/full", 21, "error: cannot write to "),
    ("{} --print-completion-script bash >/dev/full", 21, "error: cannot write to "),
    ("PYTHONOPTIMIZE=2 {} --list >/dev/null", 0, ""),
    ("PYTHONOPTIMIZE=2 {} --help build >/dev/null", 0, ""),
    (
        "ulimit -f 1; {} plan >file",
        35,
        "error: no larger file can be written: File too large; ulimit -f allows 1,024\nhint: ",
    ),
    ("ulimit -f 1; {} dockerfile --output new", 35, "error: no larger file can be written for "),
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
