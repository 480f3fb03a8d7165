"""Running containers: the files that they get, how they end, what killed runs leave, and workers."""

import io
import os
import re
import tarfile
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import docker

from tfbuild.engine.faults import disk_full, translated
from tfbuild.errors import TfbuildError
from tfbuild.util.process import Attached

KILLED, NOT_STARTED = 137, 128
# How the `docker` program begins what an engine refuses, and lines of its own log, which may come first: it also waits
# for the container that did not start, and now and then that is what fails first.
REFUSED = "Error response from daemon: "
LOG_LINES = re.compile(r'\A(time="[^\n]*\n)+')
# How long the attached program may take to end after the container's streams have.
END_SECONDS = 10


@dataclass(frozen=True, kw_only=True)
class ContainerRun:
    """A finished container; `truncated` if a stream was cut at its limit."""

    exit_code: int
    stdout: str
    stderr: str
    truncated: bool


def archive(files: Mapping[str, bytes]) -> bytes:
    """Pack `files` (absolute path: content) into a reproducible tar; the engine creates missing folders."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path, content in sorted(files.items()):
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.size, entry.mode = len(content), 0o755
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def exit_code(program: Attached) -> int:
    """Return the exit code of a container by that of the `docker` program that was attached to it, which has ended.

    128 if the engine could not start it. Raises DiskFull if that was because the engine's disk is full.
    """
    code = program.process.wait(END_SECONDS)
    message = LOG_LINES.sub("", program.err.decode(errors="replace"))
    if code == 0 or not message.startswith(REFUSED):
        return code
    if full := disk_full(message.removeprefix(REFUSED).strip()):
        raise full
    return NOT_STARTED


def engine_time(client: Any) -> float | None:
    """Return the time of the engine's machine, in seconds since the epoch; None if it cannot be read."""
    try:
        return datetime.fromisoformat(str(client.info().get("SystemTime"))).timestamp()
    except ValueError:
        return None


# --- what killed runs leave -------------------------------------------------------------------------------------------

# Containers carry the process that made them, as this label's value, and have names that begin with NAME. Images made
# of such a container inherit the label, but containers of those have other names.
LABEL = "io.tfbuild.container"
NAME = "tfbuild-"


@cache
def this_process() -> str:
    """Return the boot, the namespace of process ids, the user, the id and the start of this process.

    "" if the system does not say (macOS).
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
    return f"{boot} {namespace} {os.geteuid()} {os.getpid()} {_start_of(os.getpid())}"


def _start_of(pid: int) -> str:
    """Return when a process began, in clock ticks since the boot (proc(5), field 22 of stat); "" for none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return ""
    # The name before the last parenthesis may hold anything.
    return stat.rpartition(")")[2].split()[19]


def has_ended(process: str) -> bool:
    """Return whether a process is known to have ended: one of this boot, namespace and user, which /proc shows."""
    own, other = this_process().split(), process.split()
    return len(other) == 5 and own[:3] == other[:3] and other[3].isdecimal() and _start_of(int(other[3])) != other[4]


def sweep(client: Any) -> None:
    """Remove the containers whose process has ended. A failure is left to the next run."""
    with suppress(TfbuildError), translated():
        for row in client.api.containers(all=True, filters={"label": LABEL}):
            named = any(name.startswith(f"/{NAME}") for name in row.get("Names") or ())
            if named and has_ended(row["Labels"][LABEL]):
                discard(client, row["Id"])


def discard(client: Any, name: str) -> None:
    """Remove a container with its volumes, running or not."""
    try:
        client.api.remove_container(name, force=True, v=True)
    except docker.errors.APIError as error:
        # Somebody else has removed it, or is about to.
        if error.status_code not in (404, 409):
            raise


# --- workers ----------------------------------------------------------------------------------------------------------

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

    def __init__(self, container: Any, attached: Attached, cleanup: ExitStack) -> None:
        self.name: str = container.name
        self._container, self._attached, self._cleanup = container, attached, cleanup
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
            if not self._attached.open:
                self._fail("the worker ended before it answered", exit_code(self._attached))
            if len(self._attached.out) > MOST_REPLY:
                self._fail(f"the worker's answer is longer than {MOST_REPLY} bytes")
            try:
                self._attached.pump(deadline)
            except TimeoutError:
                self._lost = f"the worker did not answer within {timeout:g} s"
                raise TimeoutError(self._lost) from None
            del self._attached.err[:-MOST_STDERR]
        reply, _, rest = bytes(self._attached.out).partition(b"\n")
        self._attached.out[:] = rest
        return reply.decode(errors="replace")

    def _fail(self, why: str, code: int = -1) -> None:
        self._lost = why
        raise WorkerDied(why, exit_code=code, stderr_tail=self._stderr_tail())

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
            code = self._attached.process.poll()
            self._fail(f"the worker cannot be sent {name}: {error.reason}", -1 if code is None else code)

    def close(self) -> None:
        """Remove the container; may be called twice."""
        self._lost = self._lost or "the worker was closed"
        self._cleanup.close()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
