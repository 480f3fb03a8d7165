"""Start and stop tfbuild's own engine on a machine without one: Debian's docker.io, with a data folder of its own.

Its build cache policy removes layers long before Bazel's cache mounts. Debian's 20.10 keeps everything until the disk
is full (60 GB in a day of tests). Docker's default policy does not help if it is enabled: it first removes
cache mounts that were unused for two days, from which an interrupted compile would resume (docs.docker.com, build
garbage collection, "default policies").
"""

import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docker.context.config import get_current_context_name

from tfbuild.engine import debian
from tfbuild.engine.client import Engine
from tfbuild.engine.faults import DENIED, translated, unanswered
from tfbuild.errors import EngineMissing
from tfbuild.util import process
from tfbuild.util.files import decode, locked, replace_file
from tfbuild.util.process import interruptible, last_lines
from tfbuild.util.progress import Progress
from tfbuild.util.terminal import cause

# iptables and tini come with it; without ca-certificates no registry's certificate is trusted.
PACKAGES = ("docker.io", "ca-certificates")
# Since Debian 13 the client and its BuildKit plugin are packages of their own, which Debian 12 does not have.
CLIENT_PACKAGES = ("docker-cli", "docker-buildx")
CGROUP_MOUNTER = "cgroupfs-mount"
# dockerd starts in seconds, but on a busy machine in minutes: its own service has no limit (TimeoutSec=0 in github.com/
# moby/moby, contrib/init/systemd/docker.service). After START_SECONDS a note says what is waited for; if the package
# starts a service, that has as long to answer. A dockerd that has written nothing to its log for SILENT_SECONDS hangs.
START_SECONDS = 60.0
SILENT_SECONDS = 300.0
# dockerd gives its containers 15 s to end before it exits.
STOP_SECONDS = 40.0
SOCKET = Path("/var/run/docker.sock")
FOLDER = Path("/var/lib/tfbuild/engine")


@dataclass(frozen=True, kw_only=True)
class DaemonPlace:
    """Where an engine of tfbuild's own lives: its socket, and a folder for its data, log and pid file.

    Keep the folder's path short: the kernel limits a socket's path to 107 bytes, and containerd's sockets are three
    levels down.
    """

    socket: Path = SOCKET
    folder: Path = FOLDER
    # The size of the disk in bytes, for the limits of the build cache; 0: ask the disk itself.
    disk: int = 0

    @property
    def host(self) -> str:
        return f"unix://{self.socket}"

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def exec_root(self) -> Path:
        return self.folder / "exec"

    @property
    def pid_file(self) -> Path:
        return self.folder / "dockerd.pid"

    @property
    def log(self) -> Path:
        return self.folder / "dockerd.log"


def advice(cause: BaseException, named: str, *, system: str, apt: bool, root: bool, dockerd: bool) -> str:
    """Return what the user must do, as a hint; "" if tfbuild can install and start an engine itself.

    `cause`: why no engine answers; `named`: how the user named another engine; `dockerd`: whether one is installed.
    """
    rows: tuple[tuple[bool, str], ...] = (
        (bool(named), f"{named} names that engine: start it, or use this machine's engine"),
        (system == "darwin", "start Docker Desktop, or: brew install colima docker && colima start"),
        (system != "linux", "start Docker Desktop"),
        (unanswered(cause) == DENIED, DENIED),
        (root and apt, ""),
        (dockerd and root, "the engine is installed but down: systemctl start docker"),
        (dockerd, "the engine is installed but down: sudo systemctl start docker, or (rootless) "
         "systemctl --user start docker"),
        (apt, "sudo apt-get install docker.io; or run this command with sudo, which does that; without root: "
         "rootless Docker (https://docs.docker.com/engine/security/rootless/)"),
    )  # fmt: skip
    install = "install Docker (https://docs.docker.com/engine/install/) and start it: systemctl start docker"
    return next((hint for holds, hint in rows if holds), install)


def named_host(environ: Mapping[str, str], own: str) -> str:
    """Return how the user named an engine other than that at `own`; "" if none is named."""
    if host := environ.get("DOCKER_HOST"):
        return "" if host == own else f"DOCKER_HOST={host}"
    context = environ.get("DOCKER_CONTEXT") or get_current_context_name()
    return "" if context == "default" else f"Docker's context {context}"


def ensure(progress: Progress, place: DaemonPlace | None = None) -> Engine:
    """Return an engine that answers; as root on Debian or Ubuntu, install and start one if none does.

    `place`: tfbuild's own engine at another place than the default one. Raises EngineMissing with what to do.
    """
    host, named = (place.host, "") if place else ("", named_host(os.environ, DaemonPlace().host))
    place = place or DaemonPlace()
    try:
        return Engine.connect(host)
    except EngineMissing as error:
        apt, root = debian.has_apt(debian.this_system()), os.geteuid() == 0
        dockerd = shutil.which("dockerd") is not None
        if hint := advice(error, named, system=sys.platform, apt=apt, root=root, dockerd=dockerd):
            raise EngineMissing(error.reason, hint=hint) from error
    with _locked(place, progress):
        # Another run may have started one meanwhile, and a package's service may come up by itself.
        with suppress(EngineMissing):
            return Engine.connect(host)
        if shutil.which("dockerd") is None:
            _install(place, progress)
            end = time.monotonic() + START_SECONDS
            if Path("/run/systemd/system").exists() and (engine := _poll(host, lambda: time.monotonic() < end)):
                return engine
        _refuse_beside_another(place)
        with progress.step("engine: start"), interruptible():
            return _start(place, host, progress)


def _locked(place: DaemonPlace, progress: Progress) -> AbstractContextManager[None]:
    return locked(place.folder, lambda: progress("waiting for another process that starts or stops the engine"))


def _refuse_beside_another(place: DaemonPlace) -> None:
    """Raise EngineMissing if another dockerd runs in this network namespace.

    The two would share the bridge docker0, and could cut off each other's containers.
    """
    network = os.stat("/proc/self/ns/net")
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (path / "comm").read_text().strip() == "dockerd" and os.path.samestat((path / "ns/net").stat(), network):
                raise EngineMissing(
                    f"dockerd (process {path.name}) runs already, but does not answer at {place.host}",
                    hint="set DOCKER_HOST to its socket: export DOCKER_HOST=unix:///...",
                )


def _install(place: DaemonPlace, progress: Progress) -> None:
    mounts_cgroups = () if _has_cgroups() else (CGROUP_MOUNTER,)
    try:
        debian.install([*PACKAGES, *mounts_cgroups], place.folder / "apt.log", progress, if_known=CLIENT_PACKAGES)
    except debian.AptFailed as error:
        raise EngineMissing(error.reason, hint=error.hint) from error


def _has_cgroups() -> bool:
    return Path("/run/systemd/system").exists() or any(Path("/sys/fs/cgroup").glob("*"))


def _start(place: DaemonPlace, host: str, progress: Progress) -> Engine:
    if not _has_cgroups() and (mounter := shutil.which(CGROUP_MOUNTER)):
        subprocess.run([mounter], check=False)
    pid, engine, startup = _spawn(place), None, Startup(place.log, progress)
    try:
        engine = _poll(host, lambda: os.waitpid(pid, os.WNOHANG) == (0, 0) and startup.proceeds())
    finally:
        if engine is None:
            process.end(pid, str(place.pid_file), STOP_SECONDS)
            _stop(place)
    if engine is None:
        why = f": it wrote nothing to its log for {SILENT_SECONDS:.0f} s" if startup.silent else ""
        raise EngineMissing(f"dockerd did not start{why}{last_lines(place.log)}", hint=f"the full log: {place.log}")
    return engine


class Startup:
    """Whether a starting dockerd makes progress, by its log; a start that takes long is noted once.

    `silent`: it has written nothing for so long that it must hang.
    """

    def __init__(self, log: Path, progress: Progress) -> None:
        self.silent = False
        self._log, self._progress = log, progress
        self._size, self._written = -1, time.monotonic()
        self._note_at = self._written + START_SECONDS

    def proceeds(self) -> bool:
        """Look at the log, and return whether to go on waiting."""
        now = time.monotonic()
        if (size := os.path.getsize(self._log)) != self._size:
            self._size, self._written = size, now
        if now > self._note_at:
            self._note_at = math.inf
            self._progress(f"dockerd is still starting, as it may on a busy machine; waiting for it (log: {self._log})")
        self.silent = now - self._written > SILENT_SECONDS
        return not self.silent


def _spawn(place: DaemonPlace) -> int:
    """Start dockerd in a session of its own, so that it outlives this process and its terminal."""
    # A killed dockerd leaves its pid file, and the next one takes any process with the old id for a running dockerd.
    place.pid_file.unlink(missing_ok=True)
    place.socket.parent.mkdir(parents=True, exist_ok=True)
    program = shutil.which("dockerd")
    if program is None:
        raise EngineMissing("docker.io is installed, but dockerd is not on PATH", hint="add /usr/sbin to PATH")
    disk = place.disk or shutil.disk_usage(place.folder).total
    configuration = write_configuration(place.folder / "daemon.json", disk)
    command = [
        program,
        f"--config-file={configuration}",
        f"--host={place.host}",
        f"--data-root={place.data}",
        f"--exec-root={place.exec_root}",
        f"--pidfile={place.pid_file}",
    ]
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    streams = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(place.log), flags, 0o644),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    return os.posix_spawn(program, command, os.environ, file_actions=streams, setsid=True)


def _poll(host: str, waits: Callable[[], bool]) -> Engine | None:
    """Return the engine as soon as it answers; None once `waits` returns False."""
    while waits():
        with suppress(EngineMissing):
            return Engine.connect(host)
        time.sleep(0.2)
    return None


def running_containers() -> int:
    """Return how many containers run on the engine that tfbuild started; 0 if it does not run."""
    place = DaemonPlace()
    if not place.folder.is_dir() or running(place.pid_file, str(place.pid_file)) is None:
        return 0
    engine = Engine.connect(place.host)
    with translated():
        return len(engine.client.api.containers())


def stop(progress: Progress, place: DaemonPlace | None = None) -> bool:
    """Stop the engine that tfbuild started, and no other; return False if it does not run.

    Its images, containers and caches stay. Raises EngineMissing if it cannot be stopped.
    """
    place = place or DaemonPlace()
    if not place.folder.is_dir():
        return False
    with _locked(place, progress):
        if running(place.pid_file, str(place.pid_file)) is None:
            return False
        with progress.step("engine: stop"):
            _stop(place)
    return True


def _stop(place: DaemonPlace) -> None:
    """End dockerd, then its containerd if that is left."""
    containerd = place.exec_root / "containerd" / "containerd.pid"
    for pid_file, mark in ((place.pid_file, place.pid_file), (containerd, place.exec_root)):
        pid = running(pid_file, str(mark))
        if pid is not None and not process.end(pid, str(mark), STOP_SECONDS):
            raise EngineMissing(f"process {pid} of the engine does not end", hint=f"the full log: {place.log}")
    place.pid_file.unlink(missing_ok=True)


def running(pid_file: Path, mark: str) -> int | None:
    """Return the process id in a pid file if that process runs and its command line contains `mark`.

    The id alone proves nothing: ids are reused after a reboot.
    """
    try:
        pid = int(pid_file.read_text())
    except (OSError, ValueError):
        return None
    return pid if pid > 0 and process.runs(pid, mark) else None


# --- its build cache --------------------------------------------------------------------------------------------------

# The configuration of the machine's own engine, if any: its mirrors and proxies apply to ours too.
SYSTEM = Path("/etc/docker/daemon.json")
# Limits of the whole build cache, as shares of the disk: beyond the first, layers and sources are removed, least
# recently used first; beyond the second, everything is.
LAYERS_SHARE, ALL_SHARE = 0.2, 0.5
# BuildKit's types of the records that a build recreates in minutes.
CHEAP = ("regular", "source.local", "source.git.checkout", "internal")


def cache_policy(disk: int) -> dict[str, Any]:
    """Return the value of "builder" in daemon.json for a disk of `disk` bytes. Sizes there have no decimal units."""
    layers, everything = (str(int(disk * share)) for share in (LAYERS_SHARE, ALL_SHARE))
    rules = [{"keepStorage": layers, "filter": [f"type={kind}"]} for kind in CHEAP]
    return {"gc": {"enabled": True, "policy": [*rules, {"keepStorage": everything, "all": True}]}}


def write_configuration(path: Path, disk: int, system: Path = SYSTEM) -> Path:
    """Write the engine's configuration to `path`: the machine's own, plus the policy if that sets none.

    Raises EngineMissing if the machine's own is unreadable, as dockerd would refuse it too.
    """
    try:
        machine = decode(system.read_bytes(), dict[str, Any]) if system.is_file() else {}
        configuration = {"builder": cache_policy(disk), **machine}
    except (OSError, ValueError) as error:
        raise EngineMissing(f"{system} cannot be read: {cause(error)}", hint="correct it, or move it away") from None
    return replace_file(path, json.dumps(configuration, indent=2) + "\n")
