"""A Python environment: what it can run, what is installed in it, and the pip or uv that installs."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
from packaging.utils import canonicalize_name

from tfbuild.errors import Interrupted, TfbuildError, UsageError
from tfbuild.plan import MACHINES
from tfbuild.plan import wheel as wheels
from tfbuild.util.files import decode
from tfbuild.util.process import interruptible
from tfbuild.util.terminal import printable

MOST_NAME = 128
# Runs in the environment's Python, and imports nothing from the current folder.
PROBE = """
import sys
sys.path[:] = filter(None, sys.path)
import importlib.util, json, os, site, sysconfig
try:
    glibc = os.confstr("CS_GNU_LIBC_VERSION").split()[-1]
except (AttributeError, OSError, ValueError):
    glibc = ""
paths = sysconfig.get_paths()
folders = [paths["purelib"], paths["platlib"]]
if sys.prefix == sys.base_prefix and site.ENABLE_USER_SITE:
    # Where pip installs if the system's folder is not writable.
    folders.insert(0, site.getusersitepackages())
print(json.dumps({
    "python": "%d.%d" % sys.version_info[:2], "kind": sys.implementation.name, "system": sysconfig.get_platform(),
    "glibc": glibc, "site": list(dict.fromkeys(folders)), "pip": importlib.util.find_spec("pip") is not None,
}))
"""


class PythonEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """A Python environment. `system`: as in "linux-x86_64"; `glibc`: "" without one.

    `site`: the folders of packages, in the order in which Python imports from them.
    """

    python: str
    kind: str
    system: str
    glibc: str
    site: tuple[str, ...]
    pip: bool
    interpreter: str = ""

    @property
    def platform(self) -> str:
        return MACHINES.get(self.system.removeprefix("linux-"), self.system)

    def installed(self) -> dict[str, Path]:
        """Return the folder with the metadata of each package of TensorFlow's that Python would import.

        What pip left over of a package that it removed (~ensorflow) is none.
        """
        found = (info for folder in self.site[::-1] for info in sorted(Path(folder).glob("*.dist-info")))
        named = {canonicalize_name(info.stem.partition("-")[0]): info for info in found}
        return {name: info for name, info in named.items() if name in wheels.projects()}


def environment(python: str = "") -> PythonEnvironment:
    """Return the environment of an interpreter or in a folder, else the active one, else tfbuild's own.

    Raises UsageError.
    """
    active = next((os.environ[name] for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if os.environ.get(name)), "")
    folder = python if os.path.isdir(python) else active if not python else ""
    interpreter = os.path.join(folder, "bin", "python") if folder else python or sys.executable
    try:
        command = [interpreter, "-c", PROBE]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True)
        return msgspec.structs.replace(decode(done.stdout, PythonEnvironment), interpreter=interpreter)
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it does not run Python's own modules"
        raise UsageError(
            f"{printable(interpreter, MOST_NAME)} is not a Python interpreter: {reason}",
            hint="--python PATH: the one of the environment, such as venv/bin/python",
        ) from error


def installer(environment: PythonEnvironment) -> list[str]:
    """Return the command that installs: the environment's pip, else uv. Raises UsageError where there is neither."""
    if environment.pip:
        return [environment.interpreter, "-m", "pip", "install"]
    if (uv := shutil.which("uv")) is not None:
        return [uv, "pip", "install", "--python", environment.interpreter]
    raise UsageError(f"{environment.interpreter} has no pip, and there is no uv", hint="install uv, or pip in there")


def run_installer(command: Sequence[str], project: str, environment: PythonEnvironment) -> None:
    """Run pip or uv to its end, also if it is interrupted: killed, it would leave more of its work half done."""
    # A session of its own: otherwise Ctrl-C would reach it twice, from the terminal too.
    with interruptible(), subprocess.Popen(command, stdout=2, start_new_session=True) as process:
        try:
            code = process.wait()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            process.wait()
            raise Interrupted(
                f"interrupted; {project} in {environment.interpreter} may be incomplete",
                hint="the same command completes it",
            ) from None
    if code:
        name = "pip" if environment.pip else "uv"
        raise TfbuildError(f"{name} ended with {code}", hint="its own messages above say why")
