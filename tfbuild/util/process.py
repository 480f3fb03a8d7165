"""Run processes with bounded pipes, and end them with everything that they started."""

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
from typing import IO

from tfbuild.errors import without_secrets
from tfbuild.util.files import remove, writing

PROBE_SECONDS = 20.0


def ending_signals() -> list[signal.Signals]:
    """Return the signals that end this process; one that it was started to ignore, as by nohup, is left out."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    for number in ending_signals():
        signal.signal(number, _ignore)
    raise KeyboardInterrupt


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Ignore a signal. Unlike SIG_IGN, this is not passed on to programs that are started meanwhile."""


@contextmanager
def interruptible(*, last: bool = False) -> Iterator[None]:
    """Turn the first Ctrl-C, SIGTERM or SIGHUP in the block into KeyboardInterrupt, so that it cleans up.

    Further ones are ignored until the outermost such block ends, because they would interrupt the clean-up; until the
    process ends if it is the `last` one. Does nothing in other threads than the main one.
    """
    nested = signal.getsignal(signal.SIGTERM) in (_interrupt, _ignore)
    if nested or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _interrupt) for number in ending_signals()}
    try:
        yield
    finally:
        interrupted = signal.getsignal(signal.SIGTERM) is _ignore
        for number, handler in before.items():
            # Python gives up its handlers before its process ends, but leaves SIG_IGN.
            signal.signal(number, signal.SIG_IGN if last and interrupted else handler)


def printed(command: Sequence[str], env: Mapping[str, str] | None = None, stdin: bytes = b"") -> str:
    """Return what a program prints; "" if it fails, hangs or cannot be executed."""
    try:
        done = subprocess.run(command, env=env, input=stdin, capture_output=True, timeout=PROBE_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode(errors="replace").strip()


def stop_group(process: subprocess.Popen[bytes], *, first: int = signal.SIGINT, grace: float = 20) -> None:
    """End the process group that `process` leads: with the signal `first`, and after `grace` seconds with SIGKILL."""
    if process.returncode is not None:  # reaped before: another group may have its number now
        return
    try:
        with suppress(subprocess.TimeoutExpired):
            if process.poll() is None:
                os.killpg(process.pid, first)
            process.wait(timeout=grace)
    finally:
        # Also what has outlived its leader, and would hold the output open.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def logged(
    command: Sequence[str],
    env: Mapping[str, str],
    log: Path,
    each: Callable[[str], None] = lambda _: None,
    seconds: float | None = None,
) -> int:
    """Run a long command and return its exit code; append its output to `log`, and pass each line to `each`.

    After `seconds`, or on Ctrl-C, SIGTERM or SIGHUP, the command gets SIGINT and, if that does not end it, its whole
    group SIGKILL. Then TimeoutError or KeyboardInterrupt is raised. Raises UsageError where the log cannot be written.
    """
    with writing(log.parent):
        log.parent.mkdir(parents=True, exist_ok=True)
        file = log.open("ab")
    with (
        interruptible(),
        file,
        subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # A group of its own: Ctrl-C reaches only this process, which then ends the command in order.
            start_new_session=True,
        ) as process,
    ):
        timed_out = threading.Event()

        def end() -> None:
            timed_out.set()
            stop_group(process)

        timer = threading.Timer(threading.TIMEOUT_MAX if seconds is None else seconds, end)
        timer.start()
        try:
            for line in process.stdout or ():
                text = without_secrets(line.decode(errors="surrogateescape"))
                with writing(log.parent):
                    file.write(text.encode(errors="surrogateescape"))
                    file.flush()
                each(text.encode(errors="surrogateescape").decode(errors="replace"))
            code = process.wait()
        except BaseException:
            stop_group(process)
            raise
        finally:
            timer.cancel()
        if timed_out.is_set():
            raise TimeoutError
        return code


def discard(log: Path) -> None:
    """Remove the log of an earlier run, or whatever has its name. Raises UsageError."""
    with writing(log.parent):
        remove(log)


class Attached:
    """A program whose output is served by one selector in the caller's thread.

    Nothing is read between two calls of `pump`, so a program that floods its pipes blocks. `stdin`: what it reads;
    else `send` writes to it.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str], stdin: IO[bytes] | None = None) -> None:
        # A group of its own: Ctrl-C must not reach it before its container is removed.
        self.process = subprocess.Popen(
            command,
            env=env,
            stdin=stdin or subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        self.out, self.err = bytearray(), bytearray()
        self._pumping = threading.Lock()
        self._selector = selectors.DefaultSelector()
        for pipe, buffer in ((self.process.stdout, self.out), (self.process.stderr, self.err)):
            assert pipe is not None
            self._selector.register(pipe, selectors.EVENT_READ, buffer)

    def send(self, line: bytes) -> None:
        """Write a line, of less than a pipe holds, to the program's stdin; one that has ended is not told."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(line)

    @property
    def open(self) -> bool:
        """Whether the program has not yet closed both stdout and stderr."""
        return bool(self._selector.get_map())

    def pump(self, deadline: float) -> None:
        """Read what is ready. Raises TimeoutError once time.monotonic() has passed `deadline`."""
        with self._pumping:
            events = self._selector.select(max(0.0, deadline - time.monotonic())) if self.open else []
            if not events and time.monotonic() >= deadline:
                raise TimeoutError
            for key, _ in events:
                if chunk := os.read(key.fd, 65536):
                    key.data.extend(chunk)
                else:
                    self._selector.unregister(key.fileobj)

    def close(self) -> None:
        """Kill the program at once, and close its pipes. A `pump` in another thread returns before they are closed."""
        stop_group(self.process, first=signal.SIGKILL)
        # A thread that waits for pipes is not woken if they are closed meanwhile, only by the end of their program.
        with self._pumping:
            self._selector.close()
            for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
                if pipe:
                    pipe.close()
