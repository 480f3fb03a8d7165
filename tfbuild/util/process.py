"""Processes with bounded pipes, and an end that leaves nothing running."""

import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

CHUNK = 64 * 1024


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM inside the block is a KeyboardInterrupt, so that all is cleaned up (signals: in the main thread only)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def stop_group(process: subprocess.Popen[bytes], *, first: int = signal.SIGINT, grace: float = 20) -> None:
    """Ends the process group that `process` leads: first by `first`, after `grace` seconds by SIGKILL."""
    try:
        with suppress(subprocess.TimeoutExpired):
            if process.poll() is None:
                os.killpg(process.pid, first)
            process.wait(timeout=grace)
    finally:
        # Also where a second Ctrl-C ends the wait.
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def logged(
    command: Sequence[str],
    env: Mapping[str, str],
    log: Path,
    each: Callable[[str], None] = lambda _: None,
    seconds: float | None = None,
) -> int:
    """Runs a long command to its exit code; what it prints goes to `log` (appended), and line by line to `each`.

    After `seconds` it is ended as by Ctrl-C, and TimeoutError raised.

    Ctrl-C or SIGTERM: the command gets SIGINT, its whole group SIGKILL if that does not end it; then KeyboardInterrupt.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with (
        interruptible(),
        log.open("ab") as file,
        subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # A group of its own: Ctrl-C reaches this process alone, which then ends the command in good order.
            start_new_session=True,
        ) as process,
    ):
        try:
            with _ended_after(seconds, process) as over:
                for line in process.stdout or ():
                    file.write(line)
                    file.flush()
                    each(line.decode(errors="replace"))
                code = process.wait()
            if over.is_set():
                raise TimeoutError
            return code
        except BaseException:
            stop_group(process)
            raise


@contextmanager
def _ended_after(seconds: float | None, process: subprocess.Popen[bytes]) -> Iterator[threading.Event]:
    """Ends the process when the time is up; the event is set then."""
    over = threading.Event()

    def end() -> None:
        over.set()
        stop_group(process)

    timer = threading.Timer(0 if seconds is None else max(0.0, seconds), end)
    if seconds is not None:
        timer.start()
    try:
        yield over
    finally:
        timer.cancel()


def last_lines(log: Path, count: int = 10, most: int = 64 * 1024) -> str:
    """The end of a log, indented, for an error message; empty where there is no log."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - most))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return ""
    return "".join(f"\n  {line.rstrip()}" for line in [line for line in lines if line.strip()][-count:])


class Attached:
    """A program with its three pipes, moved by one selector in the caller's thread.

    Nothing is read between two calls of `pump`, so a program that floods its pipes stops by itself.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        # A group of its own: Ctrl-C at the terminal must not reach it before its container is taken down.
        self.process = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        assert self.process.stdin is not None
        self.stdin = self.process.stdin
        self.out, self.err = bytearray(), bytearray()
        self._unsent = bytearray()
        self._close_when_sent = False
        self._selector = selectors.DefaultSelector()
        for pipe, buffer in ((self.process.stdout, self.out), (self.process.stderr, self.err)):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(pipe, selectors.EVENT_READ, buffer)
        os.set_blocking(self.stdin.fileno(), False)

    def send(self, data: bytes, *, close: bool = False) -> None:
        """Queues `data` for the program's stdin; `pump` writes it."""
        self._unsent += data
        self._close_when_sent = close
        if self._unsent and not self.stdin.closed and self.stdin not in self._selector.get_map():
            self._selector.register(self.stdin, selectors.EVENT_WRITE)
        elif close and not self._unsent:
            self.stdin.close()

    @property
    def open(self) -> bool:
        """True until the program has closed its stdout and its stderr."""
        return any(key.data is not None for key in self._selector.get_map().values())

    def pump(self, deadline: float) -> None:
        """Moves what the pipes have ready; TimeoutError once time.monotonic() has passed `deadline`."""
        events = self._selector.select(max(0.0, deadline - time.monotonic()))
        if not events and time.monotonic() >= deadline:
            raise TimeoutError
        for key, _ in events:
            if key.data is None:
                self._write()
            elif chunk := os.read(key.fd, CHUNK):
                key.data.extend(chunk)
            else:
                self._selector.unregister(key.fileobj)

    def _write(self) -> None:
        try:
            del self._unsent[: os.write(self.stdin.fileno(), self._unsent[:CHUNK])]
        except BrokenPipeError:
            self._unsent.clear()
            self._close_when_sent = True
        if not self._unsent:
            self._selector.unregister(self.stdin)
            if self._close_when_sent:
                self.stdin.close()

    def close(self) -> None:
        """Ends the program and its pipes; at once, for nothing of it is worth waiting for."""
        stop_group(self.process, first=signal.SIGKILL)
        self._selector.close()
        for pipe in (self.stdin, self.process.stdout, self.process.stderr):
            if pipe:
                pipe.close()
