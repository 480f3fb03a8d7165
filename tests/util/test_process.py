"""A long command ends by itself, or at a time limit that leaves nothing running."""

import os
import signal
import threading
from pathlib import Path

import pytest

from tfbuild.util import process


def test_a_command_that_ends_in_time_returns_its_exit_code_and_lines(tmp_path: Path) -> None:
    seen: list[str] = []
    code = process.logged(["sh", "-c", "echo one; exit 3"], dict(os.environ), tmp_path / "log", seen.append, 300)
    assert (code, seen) == (3, ["one\n"])


def test_at_the_limit_a_command_is_interrupted_and_its_last_output_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit comes when the command says that it is ready, however long that takes here."""
    ready, timeouts, sent = threading.Event(), list[float](), list[int]()

    class AtReady(threading.Timer):
        def run(self) -> None:
            timeouts.append(self.interval)
            if ready.wait(300):
                self.function()

    def killpg(group: int, number: int) -> None:
        sent.append(number)
        kill(group, number)

    kill = os.killpg
    monkeypatch.setattr(threading, "Timer", AtReady)
    monkeypatch.setattr(os, "killpg", killpg)
    script = "trap 'echo last words; exit 0' INT; echo ready; while :; do sleep 0.1; done"
    with pytest.raises(TimeoutError):
        process.logged(["sh", "-c", script], dict(os.environ), tmp_path / "log", lambda _: ready.set(), seconds=7)
    assert timeouts == [7]
    assert set(sent) == {signal.SIGINT}, "it ended by itself, not by SIGKILL"
    assert (tmp_path / "log").read_text() == "ready\nlast words\n"
