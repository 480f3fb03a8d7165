"""`tfbuild` and `python -m tfbuild` run the verbs without Invoke, with the values that Invoke would give them."""

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


def test_what_only_invoke_can_do_is_left_to_it() -> None:
    assert run("--version").stdout.startswith("tfbuild ")
    assert "plan" in run("--list-format", "nested").stdout
    assert "complete" in run("--print-completion-script", "bash").stdout
    assert run("--echo", "detect", "--json").stdout == invoke("detect", "--json").stdout
