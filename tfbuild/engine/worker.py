"""A container that answers each line on stdin with one line on stdout."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any

from tfbuild.engine.sdk_errors import translated
from tfbuild.errors import TfbuildError
from tfbuild.util.process import Attached

MOST_REPLY = 1024 * 1024
MOST_STDERR = 64 * 1024


class WorkerDied(TfbuildError):
    """The process in the container ended (with `worker_exit_code`) or broke the protocol (-1) instead of answering."""

    def __init__(self, why: str, *, exit_code: int, stderr_tail: str) -> None:
        self.worker_exit_code = exit_code
        self.stderr_tail = stderr_tail
        super().__init__(why + (f":\n{stderr_tail}" if stderr_tail else ""))


class Worker:
    """A running worker; use it as a context manager, or call close(), to remove its container."""

    def __init__(self, container: Any, attached: Attached, exit_code: Callable[[], int], cleanup: ExitStack) -> None:
        self.name: str = container.name
        self._container = container
        self._attached = attached
        self._exit_code = exit_code
        self._cleanup = cleanup
        self._lost = ""

    def ask(self, line: str, timeout: float) -> str:
        """Send `line` and return the line that answers it, within `timeout` seconds.

        Raises TimeoutError, or WorkerDied with the exit code and the end of stderr. After either the worker is lost:
        a late answer would be taken for that of the next line.
        """
        if self._lost:
            raise WorkerDied(self._lost, exit_code=-1, stderr_tail=self._stderr_tail())
        deadline = time.monotonic() + timeout
        self._attached.send(line.encode() + b"\n")
        while b"\n" not in self._attached.out:
            self._wait(deadline, timeout)
        reply, _, rest = bytes(self._attached.out).partition(b"\n")
        self._attached.out[:] = rest
        return reply.decode(errors="replace")

    def _wait(self, deadline: float, timeout: float) -> None:
        if not self._attached.open:
            self._fail("the worker ended before it answered", self._exit_code())
        if len(self._attached.out) > MOST_REPLY:
            self._fail(f"the worker's answer is longer than {MOST_REPLY} bytes")
        try:
            self._attached.pump(deadline)
        except TimeoutError:
            self._lost = f"the worker did not answer within {timeout:g} s"
            raise TimeoutError(self._lost) from None
        del self._attached.err[:-MOST_STDERR]

    def _fail(self, why: str, exit_code: int = -1) -> None:
        self._lost = why
        raise WorkerDied(why, exit_code=exit_code, stderr_tail=self._stderr_tail())

    def _stderr_tail(self) -> str:
        return self._attached.err[-MOST_STDERR:].decode(errors="replace").strip()

    def pause(self) -> None:
        """Stop the worker's process with all its threads, so that idle threads do not spin. Raises WorkerDied.

        Uses a signal, not the engine's freezer: under load the freezer of older runc fails ("unable to freeze").
        """
        self._signal("SIGSTOP")

    def resume(self) -> None:
        """Resume a paused worker."""
        self._signal("SIGCONT")

    def _signal(self, name: str) -> None:
        try:
            with translated():
                self._container.kill(signal=name)
        except TfbuildError as error:
            self._fail(f"the worker cannot be sent {name}: {error.reason}")

    def close(self) -> None:
        """Remove the container; may be called twice."""
        self._lost = self._lost or "the worker was closed"
        self._cleanup.close()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
