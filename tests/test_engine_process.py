"""A long command's end: by itself, or by a time limit that leaves nothing running."""

import os
import time
from pathlib import Path

import pytest

from tfbuild.engine import process


def test_a_command_that_ends_in_time_gives_its_code_and_its_lines(tmp_path: Path) -> None:
    seen: list[str] = []
    code = process.logged(["sh", "-c", "echo one; exit 3"], dict(os.environ), tmp_path / "log", seen.append, 30)
    assert (code, seen) == (3, ["one\n"])


def test_at_the_limit_it_is_interrupted_and_its_last_words_are_kept(tmp_path: Path) -> None:
    script = "trap 'echo last words; exit 0' INT; echo ready; while :; do sleep 0.1; done"
    start = time.monotonic()
    with pytest.raises(TimeoutError):
        process.logged(["sh", "-c", script], dict(os.environ), tmp_path / "log", seconds=1)
    assert time.monotonic() - start < 15
    assert (tmp_path / "log").read_text() == "ready\nlast words\n"
