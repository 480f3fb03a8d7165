"""Containers: what they may use and get, how they end, and those that are workers."""

import io
import re
import tarfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any, NoReturn

import docker
from docker.types import DeviceRequest, DriverConfig, Mount, Ulimit

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
# All containers carry this label, so that what a killed run leaves can be found.
LABEL = "io.tfbuild.container"


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
    """Return a container's exit code, from that of the `docker` program that was attached to it and has ended.

    128 if the engine could not start it. Raises DiskFull if that was because the engine's disk is full.
    """
    code = program.process.wait(END_SECONDS)
    message = LOG_LINES.sub("", program.err.decode(errors="replace"))
    if code == 0 or not message.startswith(REFUSED):
        return code
    if full := disk_full(message.removeprefix(REFUSED).strip()):
        raise full
    return NOT_STARTED


def discard(client: Any, name: str) -> None:
    """Remove a container with its volumes, running or not."""
    try:
        client.api.remove_container(name, force=True, v=True)
    except docker.errors.APIError as error:
        # Somebody else has removed it, or is about to.
        if error.status_code not in (404, 409):
            raise


# --- what containers may use ------------------------------------------------------------------------------------------

MIB = 1 << 20
# TensorFlow's probes and benchmarks peak below 1.5 GiB. CUDA's libraries map and pin far more than they use.
MEMORY = 4096 * MIB
GPU_MEMORY = 16384 * MIB
# The size of /tmp; what it holds counts as memory.
SCRATCH = 256 * MIB
# Threads count too: TensorFlow starts three pools with one thread per core each, NumPy and OpenMP one each.
PROCESSES = 256
PROCESSES_PER_CPU = 16
# Without a sandbox.
MOST_PROCESSES = 8192
# What `docker run --gpus all` requests. Written without access to a GPU.
GPUS = DeviceRequest(count=-1, capabilities=[["gpu"]])
# A file system of its own, since the host's belongs to root and may be elsewhere.
HUGETLBFS = DriverConfig("local", {"type": "hugetlbfs", "device": "none", "o": "mode=1777"})
HUGE_PAGES = Mount("/dev/hugepages", None, type="volume", driver_config=HUGETLBFS)


@dataclass(frozen=True, kw_only=True)
class Sandbox:
    """The limits of containers whose image nobody trusts, and the `volume` that they see read-only at `path`.

    They can write nothing but a small tmpfs, so that they cannot fill the engine's disk. Files cannot be copied into a
    container with a read-only root: they are in the volume, which belongs to a container that never starts.
    `processes`: the most that a container may have, threads included.
    """

    processes: int
    volume: str
    path: str

    def options(self, *, gpus: bool) -> dict[str, Any]:
        """Return the options with which the engine creates a container."""
        memory = GPU_MEMORY if gpus else MEMORY
        return {
            "read_only": True,
            "mem_limit": memory,
            "memswap_limit": memory,
            "pids_limit": self.processes,
            # The machine's handler of core dumps runs outside of the container.
            "ulimits": [Ulimit(name="core", soft=0, hard=0)],
            "mounts": [
                Mount(self.path, self.volume, type="volume", read_only=True, no_copy=True),
                Mount("/tmp", None, type="tmpfs", tmpfs_size=SCRATCH),
            ],
        }


def confinement(sandbox: Sandbox | None, mounts: Sequence[Mount], *, gpus: bool) -> dict[str, Any]:
    """Return the options that confine a container: those that all have, and its sandbox's or else the usual limits."""
    return {
        "stdin_open": True,
        "auto_remove": True,
        # Also where the engine's default is an init process: SIGSTOP would pause that, and not the worker below it.
        "init": False,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        # Output is read while the container runs; the engine's own copy of it would grow without limit.
        "log_config": {"Type": "none"},
        **(sandbox.options(gpus=gpus) if sandbox else {"mounts": [*mounts], "pids_limit": MOST_PROCESSES}),
    }


# --- workers ----------------------------------------------------------------------------------------------------------

MOST_REPLY = 1024 * 1024
MOST_STDERR = 64 * 1024


class WorkerDied(TfbuildError):
    """The process in the container ended, with the exit `code`, or broke the protocol instead of answering."""

    def __init__(self, message: str, *, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code


class Worker(AbstractContextManager["Worker"]):
    """A running worker; use it as a context manager, or call close(), to remove its container.

    `kill`: sends a signal to its process, by the signal's name.
    """

    def __init__(self, name: str, kill: Callable[[str], object], attached: Attached, cleanup: ExitStack) -> None:
        self.name, self._kill, self._attached, self._cleanup = name, kill, attached, cleanup
        self._lost = ""

    def ask(self, line: str, timeout: float) -> str:
        """Send `line` and return the line that answers it, within `timeout` seconds.

        Raises TimeoutError, or WorkerDied with the exit code and the end of stderr. After either the worker is lost:
        a late answer would be taken for that of the next line.
        """
        if self._lost:
            self._fail(self._lost)
        deadline = time.monotonic() + timeout
        self._attached.send(line.encode() + b"\n")
        while b"\n" not in self._attached.out:
            if not self._attached.open:
                code = exit_code(self._attached)
                self._fail(f"the worker ended with exit code {code} before it answered", code)
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

    def _fail(self, why: str, code: int | None = None) -> NoReturn:
        self._lost = why
        stderr_tail = self._attached.err[-MOST_STDERR:].decode(errors="replace").strip()
        raise WorkerDied(why + (f":\n{stderr_tail}" if stderr_tail else ""), code=code)

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
                self._kill(name)
        except TfbuildError as error:
            self._fail(f"cannot send {name} to the worker: {error.reason}")

    def close(self) -> None:
        """Remove the container; may be called twice."""
        self._lost = self._lost or "the worker was closed"
        self._cleanup.close()

    def __exit__(self, *_: object) -> None:
        self.close()
