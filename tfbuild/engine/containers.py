"""Running containers: the files that they get, how they end, their first process, and workers.

The first process is looked at through this machine's kernel, which the process cannot deceive. A worker answers each
line on stdin with one line on stdout.
"""

import io
import os
import subprocess
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

from tfbuild.engine.faults import AGAIN, disk_full, translated
from tfbuild.errors import Disturbed, TfbuildError
from tfbuild.util.process import Attached

KILLED = 137
# Above this, an exit code is that of a signal.
SIGNALS = 128
# The signals by which tfbuild itself stops idle workers and continues them.
RESTING = ("18", "19", "SIGCONT", "SIGSTOP")
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


class AttachedContainer:
    """A running container, and the `docker` program that is attached to its streams.

    `judged`: whether an image is judged by it, so that nobody outside of it may have disturbed it.
    """

    def __init__(self, client: Any, container: Any, attached: Attached, *, judged: bool) -> None:
        self.container = container
        self.attached = attached
        self._client = client
        self._judged = judged

    def exit_code(self) -> int:
        """Return the exit code of a container that has ended, or that the engine could not start (126 to 128).

        Raises Disturbed if somebody ended it, and DiskFull if it could not start because the engine's disk is full.
        """
        try:
            self.container.reload()
        except docker.errors.NotFound:
            self.require_undisturbed()
            raise
        state = self.container.attrs["State"]
        if full := disk_full(state["Error"]):
            raise full
        if state["Running"] or (state["Status"] == "created" and not state["Error"]):
            self.require_undisturbed()
            raise TfbuildError(
                f"the streams of container {self.container.name} were lost while it was {state['Status']}"
            )
        if int(state["ExitCode"]) > SIGNALS:
            self.require_undisturbed()
        return int(state["ExitCode"])

    def require_undisturbed(self) -> None:
        """Raise Disturbed if an image is judged by this container, and somebody outside stopped or ended it.

        Likewise for the program that is attached to it. Only the engine and the kernel are asked: nothing inside the
        container can make its own end look like that.
        """
        if self._judged:
            with translated():
                why = _end_of_client(self.attached.process) or self._end_of_container()
            if why:
                raise Disturbed(f"the image was not judged: {why}", hint=AGAIN)

    def _end_of_container(self) -> str:
        """Return what somebody did to the container, as the engine says; "" for nothing."""
        try:
            self.container.reload()
        except docker.errors.NotFound:
            return "somebody removed its container"
        if self.container.attrs["State"].get("Paused"):
            return "somebody paused its container"
        # Without an end, the engine would wait for more events.
        now = engine_time(self._client)
        filters = {"container": self.container.id, "event": ["kill", "pause"]}
        for event in self._client.api.events(since=0, until=int(now) + 1, filters=filters, decode=True) if now else ():
            signal = str((event.get("Actor") or {}).get("Attributes", {}).get("signal", ""))
            if event.get("Action") == "pause":
                return "somebody paused its container"
            if signal not in RESTING:
                return f"somebody killed its container (signal {signal[:20]})"
        return ""


def _end_of_client(program: "subprocess.Popen[bytes]") -> str:
    """Return what somebody did to the `docker` program of a container; "" for nothing."""
    who = f"the docker client of its container (process {program.pid})"
    if (code := program.poll()) is not None:
        # Nothing inside a container reaches it; what ends it in order is an exit code.
        return f"{who} was killed (signal {-code})" if code < 0 else ""
    try:
        state = Path(f"/proc/{program.pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
    return f"{who} was stopped" if state in "Tt" else ""


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


class Worker(AttachedContainer):
    """A running worker; use it as a context manager, or call close(), to remove its container."""

    def __init__(self, client: Any, container: Any, attached: Attached, *, judged: bool, cleanup: ExitStack) -> None:
        super().__init__(client, container, attached, judged=judged)
        self.name: str = container.name
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
        self.attached.send(line.encode() + b"\n")
        if not self._answers(deadline):
            self.require_undisturbed()
            self._lost = f"the worker did not answer within {timeout:g} s"
            raise TimeoutError(self._lost)
        reply, _, rest = bytes(self.attached.out).partition(b"\n")
        self.attached.out[:] = rest
        return reply.decode(errors="replace")

    def _answers(self, deadline: float) -> bool:
        """Return whether a whole line arrives before `deadline`."""
        while b"\n" not in self.attached.out:
            if not self.attached.open:
                self.attached.process.wait(timeout=END_SECONDS)
                self._fail("the worker ended before it answered", self.exit_code())
            if len(self.attached.out) > MOST_REPLY:
                self._fail(f"the worker's answer is longer than {MOST_REPLY} bytes")
            try:
                self.attached.pump(deadline)
            except TimeoutError:
                return False
            del self.attached.err[:-MOST_STDERR]
        return True

    def _fail(self, why: str, exit_code: int = -1) -> None:
        self.require_undisturbed()
        self._lost = why
        raise WorkerDied(why, exit_code=exit_code, stderr_tail=self._stderr_tail())

    def _stderr_tail(self) -> str:
        return self.attached.err[-MOST_STDERR:].decode(errors="replace").strip()

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
                self.container.kill(signal=name)
        except TfbuildError as error:
            code = -1
            with suppress(TfbuildError):
                code = self.exit_code()
            self._fail(f"the worker cannot be sent {name}: {error.reason}", code)

    def close(self) -> None:
        """Remove the container; may be called twice."""
        self._lost = self._lost or "the worker was closed"
        self._cleanup.close()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
