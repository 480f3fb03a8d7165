"""Progress as plain lines and on a real pseudo-terminal."""

import contextlib
import io
import os
import pty
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from rich.live import _RefreshThread

from tests.rows import each
from tfbuild.util.progress import Progress, duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"), (3.4, "3.4 s"), (60, "1 min 00 s"), (125, "2 min 05 s"), (3600, "1 h 00 min"),
        (3725, "1 h 02 min"),
    ],
)  # fmt: skip
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_plain_lines_at_start_and_end() -> None:
    stream = io.StringIO()
    progress = Progress(stream)
    with progress.step("verify: numerics"):
        progress("a note")
    assert re.fullmatch(r"verify: numerics \.\.\.\na note\nverify: numerics: done \(\d+\.\d s\)\n", stream.getvalue())


def test_a_step_that_raises_has_failed() -> None:
    stream = io.StringIO()
    with pytest.raises(ZeroDivisionError), Progress(stream).step("x"):
        raise ZeroDivisionError
    assert "x: failed" in stream.getvalue()
    with pytest.raises(KeyboardInterrupt), Progress(stream).step("y"):
        raise KeyboardInterrupt
    assert "y: interrupted" in stream.getvalue()


def test_a_long_step_prints_its_progress_until_it_ends() -> None:
    stream, before = io.StringIO(), set(threading.enumerate())
    with Progress(stream, heartbeat=0.05).step("x") as step:
        step.detail = "3/5 RUN make"
        until(lambda: len(re.findall(r"x: \d+\.\d s so far, at 3/5 RUN make\n", stream.getvalue())) >= 2)
    assert re.fullmatch(r"x: done \(\d+\.\d s\)", stream.getvalue().splitlines()[-1])
    assert set(threading.enumerate()) <= before, "no thread is left to write another line"


def until(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds, however busy the machine is."""
    end = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def on_terminal(monkeypatch: pytest.MonkeyPatch, **env: str) -> str:
    """Return what a terminal receives from a step that lasts until it is shown."""
    with terminal(monkeypatch, **env) as (progress, written), progress.step("build: wheel") as step:
        step.detail = "2/5 RUN [bold]pip[/bold] " + "x" * 200
        until(lambda: b"2/5" in written)
    return written.decode()


@contextlib.contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch, **env: str) -> Iterator[tuple[Progress, bytearray]]:
    """Open a pseudo-terminal; yield its progress, and what it receives."""
    for name, value in {"TERM": "xterm-256color", "COLUMNS": "70", **env}.items():
        monkeypatch.setenv(name, value)
    master, slave = pty.openpty()
    written = bytearray()

    def read() -> None:
        # Linux ends a pseudo-terminal whose other side is closed with EIO.
        with contextlib.suppress(OSError):
            while chunk := os.read(master, 1 << 16):
                written.extend(chunk)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        with os.fdopen(slave, "w", encoding="utf-8") as stream:
            yield Progress(stream), written
    finally:
        reader.join()
        os.close(master)


def test_a_terminal_shows_a_live_line_and_keeps_the_finished_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    written = on_terminal(monkeypatch)
    live = r"\S build: wheel \x1b\[36m\d+\.\d s\x1b\[0m +\x1b\[2m2/5 RUN \[bold\]pip\[/bold\] x+…\x1b\[0m"
    erased = r"(\r|\x1b\[2K|\x1b\[\?25h)+"
    assert re.search(rf"{live}{erased}\x1b\[32m✓ \x1b\[0mbuild: wheel\x1b\[2m  \d+\.\d s\x1b\[0m\r\n$", written)


@each("outcome, mark", [("cached", "32m✓"), ("pass", "32m✓"), ("skip", "32m✓"), ("failed", "31m✗")])
def test_a_terminal_shows_how_a_step_ended(outcome: str, mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    with terminal(monkeypatch) as (progress, written):
        progress.finish(progress.start("i\x1bsa"), outcome)
    assert re.search(rf"{mark} \x1b\[0misa\x1b\[2m  \d+\.\d s \({outcome}\)", written.decode())


def test_a_note_stays_as_it_is_and_so_do_other_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    line, streams = "3 of [bold]5[/bold] host:x:1 " + "x" * 100, (sys.stdout, sys.stderr)
    with terminal(monkeypatch) as (progress, written):
        progress(line)
        assert written.decode() in ("", f"{line}\r\n")
        with progress.step("x"):
            assert (sys.stdout, sys.stderr) == streams
    assert written.decode().startswith(f"{line}\r\n")


def test_after_a_draw_nothing_is_drawn_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A drawing thread would disturb a measurement."""

    def drawing_threads() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if isinstance(thread, _RefreshThread)]

    with terminal(monkeypatch) as (progress, written):
        with progress.step("bench: jpeg") as step:
            step.detail = "round 4 of 15"
            progress.draw()
            until(lambda: not drawing_threads())
            until(lambda: b"\x1b[1A\x1b[2K" in written)  # what the thread drew is erased
            step.detail = "round 5 of 15"
            progress.draw()
            until(lambda: b"round 5 of 15" in written)
        with progress.step("bench: onednn"):
            assert not drawing_threads()
            until(lambda: b"bench: onednn" in written)


def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    written = on_terminal(monkeypatch, NO_COLOR="1")
    assert "build: wheel" in written
    assert not re.search(r"\x1b\[[\d;]*3\dm", written)
