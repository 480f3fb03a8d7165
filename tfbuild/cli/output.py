"""What a verb prints: data to stdout, everything else to stderr."""

import json
import os
import select
import signal
import sys
from pathlib import Path

from invoke.exceptions import Exit


def out(data: object) -> None:
    """Print one JSON document to stdout."""
    print(json.dumps(data, indent=2, ensure_ascii=False))


def say(text: str) -> None:
    """Print one line to stderr."""
    print(text, file=sys.stderr)


def up_to_date(path: Path, text: str) -> bool:
    """Whether a generated file is what would be written now."""
    return path.is_file() and path.read_text(encoding="utf-8") == text


def leave_where_nobody_reads() -> None:
    """End the process where whoever read its output has gone (`| head`), as one that SIGPIPE kills ends.

    Raises Exit then, and returns where somebody still reads.
    """
    poll = select.poll()
    poll.register(sys.stdout, 0)
    if poll.poll(0):
        # Python flushes stdout once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise Exit(code=128 + signal.SIGPIPE)
