"""A long command ends by itself, or at a time limit that leaves nothing running."""

import os
import signal
import subprocess
import threading
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest

from tests.rows import each
from tfbuild.util import process


def test_a_command_that_ends_in_time_returns_its_exit_code_and_its_log_grows_meanwhile(tmp_path: Path) -> None:
    seen, log, before = list[str](), tmp_path / "new" / "folder" / "log", {*threading.enumerate()}
    command = ["sh", "-c", "echo one; echo two; exit 3"]
    code = process.logged(command, os.environ, log, lambda _: seen.append(log.read_text()), 300)
    assert (code, seen[0], seen[-1]) == (3, "one\n", "one\ntwo\n")
    for timer in {*threading.enumerate()} - before:
        timer.join(60)
        assert not timer.is_alive(), "it would hold this process at its end"


def test_a_log_keeps_every_byte(tmp_path: Path) -> None:
    """Compilers quote sources in any encoding."""
    seen: list[str] = []
    script = r"printf 'one\n\n\377two\r\n'"
    process.logged(["sh", "-c", script], dict(os.environ), tmp_path / "log", seen.append)
    assert (tmp_path / "log").read_bytes() == b"one\n\n\xfftwo\r\n"
    assert seen == ["one\n", "\n", "\N{REPLACEMENT CHARACTER}two\r\n"]
    process.discard(tmp_path / "log")
    assert not (tmp_path / "log").exists()


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
    assert sent[0] == signal.SIGINT
    assert (tmp_path / "log").read_text() == "ready\nlast words\n"


# The second one ends, but not what it started.
@each(
    "script, code", [("trap '' INT; echo ready; sleep 999", -9), ("sleep 999 & trap 'exit 3' INT; echo ready; wait", 3)]
)
def test_a_program_that_ignores_the_signal_is_killed(script: str, code: int) -> None:
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"ready\n"
        process.stop_group(program, grace=0.1)
        assert program.returncode == code
        assert program.stdout.read() == b"", "what it started has ended too"


def serve(program: process.Attached, seconds: float) -> None:
    """Move a program's data until it ends."""
    deadline = time.monotonic() + seconds
    while program.open:
        program.pump(deadline)


def test_a_program_answers_line_by_line() -> None:
    with closing(process.Attached(["cat"], os.environ)) as program:
        for line in (b"first\n", b"x" * 4000 + b"\n"):
            program.send(line)
            while not program.out.endswith(b"\n"):
                program.pump(time.monotonic() + 60)
            assert program.out == line
            program.out.clear()
        with pytest.raises(TimeoutError):
            program.pump(time.monotonic() + 0.1)


def test_a_program_reads_a_file_and_nothing_stays_open(tmp_path: Path) -> None:
    """More than its pipes hold."""
    (tmp_path / "data").write_bytes(b"x" * (1 << 20))
    opened = os.listdir("/proc/self/fd")
    command = ["sh", "-c", "cat; echo done >&2"]
    with (tmp_path / "data").open("rb") as data, closing(process.Attached(command, os.environ, data)) as program:
        serve(program, 60)
        assert (bytes(program.out), bytes(program.err)) == (b"x" * (1 << 20), b"done\n")
    assert os.listdir("/proc/self/fd") == opened


def test_a_program_that_has_ended_is_sent_nothing() -> None:
    with closing(process.Attached(["sh", "-c", "exec 0<&-; echo done >&2"], os.environ)) as program:
        serve(program, 60)
        program.send(b"x\n")
        assert program.err == b"done\n"


def test_closing_wakes_another_thread_that_waits_for_output() -> None:
    for _ in range(20):
        program = process.Attached(["sleep", "999"], dict(os.environ))
        waiting = threading.Event()

        def wait(program: process.Attached = program, waiting: threading.Event = waiting) -> None:
            waiting.set()
            while program.open:
                program.pump(time.monotonic() + 999)

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        waiting.wait(300)
        program.close()
        thread.join(300)
        assert not thread.is_alive()


def clean_up_after(number: int, further: list[signal.Signals], cleaned: list[int]) -> None:
    """Interrupt a block by a signal, and its clean-up by further ones."""
    with process.interruptible():
        try:
            with process.interruptible():
                signal.raise_signal(number)
        finally:
            for one in further:
                signal.raise_signal(one)
            with process.interruptible():
                signal.raise_signal(number)
            cleaned.append(number)


def test_one_signal_interrupts_and_further_ones_leave_the_clean_up_alone() -> None:
    before = {number: signal.getsignal(number) for number in process.ending_signals()}
    for number in before:
        cleaned: list[int] = []
        with pytest.raises(KeyboardInterrupt):
            clean_up_after(number, [*before], cleaned)
        assert cleaned == [number]
        assert {number: signal.getsignal(number) for number in before} == before


def test_a_program_that_is_started_during_the_clean_up_can_be_interrupted() -> None:
    with suppress(KeyboardInterrupt), process.interruptible():
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            ended = subprocess.run(["sh", "-c", "kill -TERM $$"], check=False).returncode
    assert ended == -signal.SIGTERM
