"""What only a real builder can find out about a request: each ends in one error with a hint, and no traceback."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.with_engine.conftest import ROOT
from tfbuild.cli.options import certificates
from tfbuild.engine import Engine
from tfbuild.pipeline import base_image
from tfbuild.util.progress import Progress

DOUBLE = ROOT / "tests" / "data" / "double"
Invoke = Callable[..., "subprocess.CompletedProcess[str]"]


def refused(invoke: Invoke, code: int, *options: str) -> str:
    """The error that `invoke wheel` of the double ends in."""
    start = ("wheel", "--target", "cpu", "--cpu", "x86-64-v2", "--bazel", "7.7.1", "--source", str(DOUBLE))
    return only_error(invoke(*start, *options, "--need-disk", "1", code=code))


def only_error(done: "subprocess.CompletedProcess[str]") -> str:
    """All that a command says in the end: one error with one hint."""
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    error = done.stderr[done.stderr.index("error: ") :]
    assert error.count("error: ") == error.count("\nhint: ") == 1
    return error


def debian(engine: Engine, folder: Path) -> str:
    ca = certificates("")
    return base_image.bootstrap(engine, "bookworm", progress=Progress(), log=folder / "log", ca_cert=ca).reference


def test_a_base_that_is_not_made_of_debian(
    invoke: Invoke, engine: Engine, derived: Callable[..., str], tmp_path: Path
) -> None:
    ref = derived(debian(engine, tmp_path), "RUN rm /usr/bin/apt-get")
    assert refused(invoke, 12, "--base", ref).startswith("error: the base image has no apt-get")


def test_a_python_that_the_base_cannot_have(invoke: Invoke, engine: Engine, tmp_path: Path) -> None:
    options: dict[str, Any] = {"--base": debian(engine, tmp_path), "--python": "3.12"}
    error = refused(invoke, 12, *(word for pair in options.items() for word in pair))
    assert error.startswith("error: neither the base image nor its distribution has Python 3.12\nhint: --base with")
