"""Start and stop tfbuild's own engine, by engine.sh, on a machine without one; or say what the user must do."""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from tfbuild.engine import connection
from tfbuild.engine.client import Engine
from tfbuild.engine.faults import DENIED_HINT, unanswered
from tfbuild.errors import EngineMissing
from tfbuild.util.progress import Progress

SCRIPT = Path(__file__).with_name("engine.sh")
FOLDER = Path("/var/lib/tfbuild/engine")
# The script's exit code where no engine of ours runs.
NOT_RUNNING = 3


def this_system() -> dict[str, str]:
    """Return what this machine's os-release says; an empty dict where there is none (macOS)."""
    try:
        return platform.freedesktop_os_release()
    except (OSError, ValueError):
        return {}


def has_apt(system: dict[str, str]) -> bool:
    """Return whether the system is Debian, Ubuntu or a derivative of them."""
    return not {"debian", "ubuntu"}.isdisjoint([system.get("ID", ""), *system.get("ID_LIKE", "").split()])


def advice(cause: BaseException, named: str, *, system: str, apt: bool, root: bool, dockerd: bool) -> str:
    """Return what the user must do, as a hint; "" if tfbuild can install and start an engine itself.

    `cause`: why no engine answers; `named`: the other engine that the user named; `dockerd`: whether one is installed.
    """
    rows: tuple[tuple[bool, str], ...] = (
        (bool(named), f"{named} is named by DOCKER_HOST or a context: start that engine, or use this machine's"),
        (system != "linux", "start Docker Desktop, or: brew install colima docker && colima start"),
        (unanswered(cause) == DENIED_HINT, DENIED_HINT),
        (root and apt, ""),
        (dockerd, "the engine is installed but down: sudo systemctl start docker, or (rootless) "
         "systemctl --user start docker"),
        (apt, "sudo apt-get install docker.io; or run this command with sudo, which does that; without root: "
         "rootless Docker (https://docs.docker.com/engine/security/rootless/)"),
    )  # fmt: skip
    install = "install Docker (https://docs.docker.com/engine/install/) and start it: systemctl start docker"
    return next((hint for holds, hint in rows if holds), install)


def ensure(progress: Progress) -> Engine:
    """Return an engine that answers; as root on Debian or Ubuntu, install and start one if none does.

    Raises EngineMissing with what to do.
    """
    address = connection.endpoint(os.environ).address
    try:
        return Engine.connect()
    except EngineMissing as error:
        named = "" if address == connection.SOCKET else address
        apt, root = has_apt(this_system()), os.geteuid() == 0
        dockerd = shutil.which("dockerd") is not None
        if hint := advice(error, named, system=sys.platform, apt=apt, root=root, dockerd=dockerd):
            raise EngineMissing(error.reason, hint=hint) from error
    with progress.step("engine: start"):
        _script("start")
    return Engine.connect()


def running_containers() -> int:
    """Return how many containers run on the engine that tfbuild started; 0 if it does not run."""
    return int(_script("count").stdout) if FOLDER.is_dir() else 0


def stop(progress: Progress) -> bool:
    """Stop the engine that tfbuild started, and no other; return False if it does not run.

    Its images, containers and caches stay.
    """
    if not FOLDER.is_dir():
        return False
    with progress.step("engine: stop") as step:
        stopped = _script("stop").returncode == 0
        step.outcome = "done" if stopped else "skip"
    return stopped


def _script(what: str) -> "subprocess.CompletedProcess[str]":
    """Run the script. Raises EngineMissing with what it prints to stderr."""
    command = ["sh", str(SCRIPT), what, str(FOLDER), connection.SOCKET.removeprefix("unix://")]
    done = subprocess.run(command, text=True, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode not in (0, NOT_RUNNING):
        raise EngineMissing(done.stderr.strip())
    return done
