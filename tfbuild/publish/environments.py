"""A Python environment: what is installed in it and whether that is whole, and the pip or uv that installs."""

import base64
import csv
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
from packaging.utils import canonicalize_name

from tfbuild.binary.inspector import open_archive, text_in
from tfbuild.errors import DiskFull, Interrupted, TfbuildError, UsageError
from tfbuild.plan import MACHINES
from tfbuild.plan import wheel as wheels
from tfbuild.plan.source import digest
from tfbuild.util.files import decode
from tfbuild.util.process import interruptible
from tfbuild.util.terminal import printable

MOST_NAME = 128
RECORD = re.compile(r"[^/]+\.dist-info/RECORD")
# Runs in the environment's Python, which may be an old one, and imports nothing from the current folder.
PROBE = """
import sys
sys.path[:] = filter(None, sys.path)
import importlib.machinery, importlib.util, json, os, site, sysconfig
try:
    glibc = os.confstr("CS_GNU_LIBC_VERSION").split()[-1]
except (AttributeError, OSError, ValueError):
    glibc = ""
paths = sysconfig.get_paths()
folders = [paths["purelib"], paths["platlib"]]
fixed = [*folders, paths["scripts"]] if sys.prefix != sys.base_prefix else []
if not fixed and site.ENABLE_USER_SITE:
    # Where pip installs if the system's folder is not writable.
    folders.insert(0, site.getusersitepackages())
own, first = [os.path.realpath(folder) for folder in folders], []
for folder in sys.path:
    if os.path.realpath(folder) in own:
        break
    first.append(folder)
hiding = importlib.machinery.PathFinder.find_spec("tensorflow", first)
print(json.dumps({
    "python": "%d.%d" % sys.version_info[:2], "kind": sys.implementation.name, "system": sysconfig.get_platform(),
    "glibc": glibc, "site": list(dict.fromkeys(folders)), "fixed": fixed, "hiding": hiding and hiding.origin or "",
    "pip": importlib.util.find_spec("pip") is not None,
}))
"""


class PythonEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """A Python environment. `system`: as in "linux-x86_64"; `glibc`: "" without one.

    `site`: the folders of packages, in the order in which Python imports from them. `fixed`: those of a virtual
    environment, and that of its scripts. `hiding`: a TensorFlow that Python finds before these.
    """

    python: str
    kind: str
    system: str
    glibc: str
    site: tuple[str, ...]
    fixed: tuple[str, ...]
    hiding: str
    pip: bool
    interpreter: str = ""

    @property
    def platform(self) -> str:
        return MACHINES.get(self.system.removeprefix("linux-"), self.system)

    def installed(self) -> dict[str, Path]:
        """Return the folder with the metadata of each package of TensorFlow's that Python would import.

        Raises UsageError where a package has two, since its version is then whichever a tool finds first.
        """
        known, installed = wheels.projects(), dict[str, Path]()
        for folder in self.site:
            here = dict[str, Path]()
            for info in sorted(Path(folder).glob("*.dist-info")):
                name = canonicalize_name(info.stem.partition("-")[0])
                if name in known and here.setdefault(name, info) != info:
                    raise UsageError(
                        f"{name} has two folders of metadata in {folder}: {here[name].name} and {info.name}",
                        hint=f"remove the one that is left over, or run pip uninstall {name} until it finds none",
                    )
            installed = here | installed
        return installed


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


# --- what is installed ------------------------------------------------------------------------------------------------


def has_files_of(wheel: Path, info: Path) -> bool:
    """Return whether the package with the metadata in `info` has all files of a wheel, by the digests in their RECORDs.

    uv does not note which file it installed. Installers move some files, add their own, and change scripts.
    """
    with open_archive(wheel) as archive:
        record = text_in(archive, next(filter(RECORD.fullmatch, archive.namelist())))
    try:
        wanted, installed = _digests(record), _digests(content_of(info / "RECORD"))
    except ValueError:
        return False
    kept = {digest for name, digest in wanted.items() if ".data/scripts/" not in name}
    return bool(kept) and kept <= {*installed.values()}


def damaged_file(info: Path) -> str:
    """Return a file of an installed package that is not as its RECORD says, or its RECORD; "" if all are."""
    try:
        recorded = _digests(content_of(info / "RECORD"))
        for name, expected in recorded.items():
            kind, _, letters = expected.partition("=")
            path = info.parent / name
            if kind == "sha256" and not (path.is_file() and digest(path) == _hexadecimal(letters)):
                return name
    except (OSError, ValueError):
        recorded = {}
    return "" if recorded else f"{info.name}/RECORD"


def _digests(record: bytes) -> dict[str, str]:
    """Return the digests of the files in a RECORD, which has none of itself; raises ValueError if it is not one."""
    try:
        return {name: recorded for name, recorded, _ in csv.reader(record.decode().splitlines()) if recorded}
    except csv.Error as error:
        raise ValueError(str(error)) from error


def _hexadecimal(recorded: str) -> str:
    """Return a digest of a RECORD, which is base64 without its "=", as others write it."""
    return base64.urlsafe_b64decode(f"{recorded}=").hex()


def content_of(path: Path) -> bytes:
    """Return what is in a file; nothing if there is none."""
    return path.read_bytes() if path.is_file() else b""


# --- installers -------------------------------------------------------------------------------------------------------

# Whatever pip's own settings say, it installs, and for this Python.
SETTINGS = {"PIP_PYTHON": "", "PIP_DRY_RUN": "0", "PIP_IGNORE_INSTALLED": "0"}


def installer(environment: PythonEnvironment) -> list[str]:
    """Return the command that installs: the environment's pip, else uv.

    Raises UsageError where there is neither, and where the environment cannot be written to.
    """
    if refused := next(
        (folder for folder in environment.fixed if not os.access(folder, os.W_OK, effective_ids=True)), ""
    ):
        raise UsageError(f"cannot write to {refused}", hint="run as its owner, or --python with another environment")
    if environment.pip:
        # And in this environment; elsewhere `--root` would keep it from installing for the user alone.
        here = ["--target=", f"--prefix={Path(environment.fixed[-1]).parent}", "--root=/"] if environment.fixed else []
        return [environment.interpreter, "-m", "pip", "install", *here]
    if (uv := shutil.which("uv")) is not None:
        return [uv, "pip", "install", "--python", environment.interpreter]
    raise UsageError(f"{environment.interpreter} has no pip, and there is no uv", hint="install uv, or pip in there")


def demand_space(environment: PythonEnvironment, wheel: Path) -> None:
    """Raise DiskFull if the files of a wheel have no room in a virtual environment."""
    with open_archive(wheel) as archive:
        needed = sum(member.file_size for member in archive.infolist())
    for folder in environment.fixed[:1]:
        if (free := shutil.disk_usage(folder).free) < needed:
            raise DiskFull(
                f"{wheel.name} takes {needed / 1e6:,.0f} MB in {folder}, which has {free / 1e6:,.0f} MB left",
                hint="free some space there",
            )


def run_installer(command: Sequence[str], project: str, environment: PythonEnvironment) -> None:
    """Run pip or uv to its end, also if it is interrupted: killed, it would leave more of its work half done."""
    # A session of its own: otherwise Ctrl-C would reach it twice, from the terminal too.
    env = {**os.environ, **SETTINGS}
    with interruptible(), subprocess.Popen(command, stdout=2, env=env, start_new_session=True) as process:
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
