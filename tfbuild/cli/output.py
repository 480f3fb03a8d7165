"""Print data to stdout, and everything else to stderr."""

import json
import os
import select
import signal
import sys
from pathlib import Path

from invoke.exceptions import Exit

from tfbuild.util.installation import as_typed


def out(data: object) -> None:
    """Print one JSON document to stdout."""
    print(json.dumps(data, indent=2, ensure_ascii=False))


def say(text: str) -> None:
    """Print one line to stderr."""
    print(as_typed(text), file=sys.stderr)


def up_to_date(path: Path, text: str) -> bool:
    """Return whether a generated file is what would be written now."""
    return path.is_file() and path.read_text(encoding="utf-8") == text


def exit_on_closed_pipe() -> None:
    """Exit as a process killed by SIGPIPE does, where the reader of stdout is gone (`| head`).

    Raises Exit then, and returns where stdout is still read.
    """
    poll = select.poll()
    poll.register(sys.stdout, 0)
    if poll.poll(0):
        # Python flushes stdout once more when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise Exit(code=128 + signal.SIGPIPE)
