"""The command line without a process of its own, which takes longer to start than most verbs take to answer."""

import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

from invoke.program import Program

from tests.terminal import Terminal, plain

ROOT = Path(__file__).parent.parent


def invoke(
    *words: str | Path, cwd: Path = ROOT, code: int = 0, env: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """What `invoke WORDS...` prints and leaves with, which must be `code`."""
    done = answer(*words, cwd=cwd, env=env)
    assert done.returncode == code, done.stderr
    return done


def answer(
    *words: str | Path,
    cwd: Path = ROOT,
    env: Mapping[str, str] | None = None,
    terminal: bool = False,
    root: Path = ROOT,
    run: Callable[[list[str]], None] | None = None,
) -> "subprocess.CompletedProcess[str]":
    """What `invoke WORDS...` prints and leaves with, whatever that is.

    `terminal`: stdout and stderr are one of eighty columns.
    `root`: the clone whose tasks.py it is.
    `run`: what runs the words in place of Invoke.

    tasks.py is read anew, as by a new process.
    """
    settings = {"COLUMNS": "80", "TERM": "xterm"} if terminal else {}
    typed = [*map(str, words)]
    command = ["invoke", "--search-root", str(root), *typed]
    made = Terminal if terminal else io.StringIO
    stdout, stderr = made(), made()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    known = sys.modules.get("tasks")
    with (
        patch.dict(os.environ, {**settings, **(env or {})}),
        patch.multiple(sys, argv=command, path=list(sys.path), dont_write_bytecode=sys.dont_write_bytecode),
        chdir(cwd),
        redirect_stdout(stdout),
        redirect_stderr(stderr),
    ):
        try:
            left = _left(run, typed) if run else _left(Program(name="Invoke", binary_names=["invoke"]).run, command)
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
            sys.modules.pop("tasks", None)
            if known is not None:
                sys.modules["tasks"] = known
    return subprocess.CompletedProcess(command, left, plain(stdout.getvalue()), plain(stderr.getvalue()))


def executable(path: Path, script: str) -> Path:
    """A shell script in the place of a program."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def tool(name: str, *words: object) -> "subprocess.CompletedProcess[str]":
    """What a program beside the Python of the tests makes of these words."""
    program = Path(sys.executable).with_name(name)
    return subprocess.run([program, *map(str, words)], cwd=ROOT, capture_output=True, text=True, check=False)


def _left(run: Callable[[list[str]], None], words: list[str]) -> int:
    try:
        run(words)
    except SystemExit as end:
        return int(end.code or 0)
    return 0
