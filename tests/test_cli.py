"""The command line as a process: what its reader and its caller see."""

import os
import subprocess
import sys
from inspect import signature
from pathlib import Path

import pytest
from invoke.tasks import Task

import tasks
from tfbuild import cli

ROOT = Path(__file__).parent.parent


def test_a_reader_that_went_away_is_no_error() -> None:
    end, pipe = os.pipe()
    os.close(end)
    with os.fdopen(pipe, "w") as stdout:
        done = subprocess.run(
            [sys.executable, "-m", "invoke", "plan", "--release", "2.20.0", "--cpu", "avx"],
            cwd=ROOT, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (141, "")


VERBS = {name: verb for name, verb in vars(tasks).items() if isinstance(verb, Task)}


@pytest.mark.parametrize("name", sorted(VERBS))
def test_every_verb_takes_the_options_that_it_offers(name: str) -> None:
    offered = [
        parameter.name for parameter in signature(VERBS[name].body).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.name not in ("engine", "builder")
    ]  # fmt: skip
    body = signature(getattr(cli, name))
    words = [one for one in body.parameters.values() if one.kind is one.POSITIONAL_OR_KEYWORD]
    body.bind(*words, **dict.fromkeys(offered))
