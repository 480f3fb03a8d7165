"""Install the wheel of an index that suits this CPU and this environment, with pip or uv.

The rules of `pull` choose it by its features, and its sha256 is checked; then pip or uv gets it, and is trusted.
"""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote, urlsplit

import msgspec
from packaging.utils import canonicalize_name, canonicalize_version
from packaging.version import Version

from tfbuild.cpu import Cpu, isa
from tfbuild.errors import Interrupted, NothingFits, RegistryRefused, TfbuildError, UsageError, VerificationFailed
from tfbuild.facts import toolchains
from tfbuild.oci import transport
from tfbuild.oci.references import is_secure
from tfbuild.plan import MACHINES, PLATFORMS, Request, rules
from tfbuild.plan import wheel as wheels
from tfbuild.plan.request import BASES
from tfbuild.plan.source import digest
from tfbuild.publish import choose, signing, wheel_rows
from tfbuild.publish.choose import Choice
from tfbuild.publish.wheel_rows import IndexedWheel
from tfbuild.util.files import decode, temporary_folder, writing
from tfbuild.util.process import interruptible
from tfbuild.util.progress import Progress
from tfbuild.util.quantities import counted
from tfbuild.util.terminal import printable

INDEX_HINT = "check the index's address: that of the folder with choose.json, not of its SET/simple/"
NO_SPACE = "set TMPDIR to a folder with space"


# --- the environment, and the pip or uv that installs -----------------------------------------------------------------


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
    "python": "%d.%d" % sys.version_info[:2], "system": sysconfig.get_platform(),
    "kind": ("32-bit " if sys.maxsize < 1 << 32 else "")
    + ("free-threaded " if sysconfig.get_config_var("Py_GIL_DISABLED") else "") + sys.implementation.name,
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

        A folder that pip left of a removed package (~ensorflow, or one without METADATA) does not count.
        """
        found = (info.parent for folder in self.site[::-1] for info in Path(folder).glob("[!~-]*.dist-info/METADATA"))
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
        # By a name, uv would take any such Python: the one of .venv here.
        interpreter = shutil.which(interpreter) or interpreter
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
    env = os.environ | {"PYTHONSAFEPATH": "1"}  # nothing of the current folder
    # A session of its own: otherwise Ctrl-C would reach it twice, from the terminal too.
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
    if not environment.pip:
        # pip itself names the packages whose requirements are not met any more.
        subprocess.run([command[0], "pip", "check", "--python", environment.interpreter], stdout=2, check=False)


# --- the index --------------------------------------------------------------------------------------------------------


class Absent(RegistryRefused):
    """An index does not have this file."""


class WheelSource:
    """An index of wheels: at an address, or in a folder."""

    def __init__(self, address: str, ca: Path | None = None) -> None:
        self.name = address.rstrip("/")
        self._remote = "://" in address
        self._session = transport.HttpSession(ca)
        if self._remote and {*"@?#"} & {*address}:
            raise UsageError(
                "the address of the index has a login, ? or # in it",
                hint="give the address of the folder alone; put a login into ~/.netrc",
            )
        if self._remote and not is_secure(address):
            raise UsageError(
                f"{printable(address, MOST_NAME)} is not an https address: anybody on the way could send another wheel",
                hint="give https://HOST/PATH, or the path of a folder",
            )

    def address(self, path: str) -> str:
        """Return the address of a file, or its path if the index is a folder."""
        return f"{self.name}/{quote(path)}" if self._remote else os.path.join(self.name, path)

    def wheels(self, signed: str = "") -> tuple[IndexedWheel, ...]:
        """Return what the index offers, without inconsistent rows; raises RegistryRefused if it is not an index.

        `signed`: options of `cosign verify-blob`. With them it raises VerificationFailed, before it reads the list, if
        cosign does not accept the list's signature.
        """
        content = b"".join(self._read(wheel_rows.CHOICES_FILE, wheel_rows.MOST_BYTES))
        if signed:
            self._demand_signature(content, signed)
        rows = wheel_rows.read_list(content, self.address(wheel_rows.CHOICES_FILE)).wheels
        return tuple(filter(wheel_rows.is_sound, rows))

    def _demand_signature(self, content: bytes, options: str) -> None:
        name = f"{wheel_rows.CHOICES_FILE}{signing.BUNDLE}"
        try:
            signature = b"".join(self._read(name, signing.MOST_BYTES))
        except Absent as error:
            raise VerificationFailed(
                f"the index has no signature: {error.reason}",
                hint="do not use it; `invoke index --sign` signs an index",
            ) from error
        with writing(Path(tempfile.gettempdir()), NO_SPACE), temporary_folder() as scratch:
            (scratch / wheel_rows.CHOICES_FILE).write_bytes(content)
            (scratch / name).write_bytes(signature)
            signing.demand_of_file(options, scratch / wheel_rows.CHOICES_FILE, self.address(wheel_rows.CHOICES_FILE))

    def fetch(self, row: IndexedWheel, folder: Path) -> Path:
        """Download a wheel to `folder`; raises VerificationFailed if it is not the file that the index describes."""
        target, digest = folder / row.name, hashlib.sha256()
        with target.open("wb") as file:
            for chunk in self._read(row.file, row.size):
                digest.update(chunk)
                file.write(chunk)
        if digest.hexdigest() != row.sha256:
            raise VerificationFailed(
                f"{row.name} has {counted(target.stat().st_size, 'byte')} with sha256 {digest.hexdigest()[:12]}, not "
                f"{row.size} with {row.sha256[:12]}",
                hint="try again; if that does not help, tell whoever publishes the index",
            )
        return target

    def _read(self, path: str, most: int) -> Iterator[bytes]:
        address = self.address(path)
        if not self._remote:
            try:
                with open(address, "rb") as file:
                    left = most + 1
                    while left > 0 and (chunk := file.read(min(left, 1 << 20))):
                        left -= len(chunk)
                        yield chunk
            except OSError as error:
                absent = isinstance(error, FileNotFoundError)
                raise _lost(address, error.strerror or str(error), absent=absent) from error
            return
        with transport.reaching(urlsplit(address).netloc):
            answer = self._session.get(address, timeout=transport.SECONDS, stream=True)
        with answer:
            if answer.status_code != 200:
                absent = answer.status_code in (403, 404)  # a bucket without listing answers 403
                raise _lost(address, f"the server answers {answer.status_code}", absent=absent)
            yield from transport.chunks(answer, most)


def _lost(address: str, reason: str, *, absent: bool) -> RegistryRefused:
    file = address.rpartition("/")[2]
    hint = INDEX_HINT if file == wheel_rows.CHOICES_FILE else "tell whoever publishes the index"
    return (Absent if absent else RegistryRefused)(f"{address} cannot be read: {reason}", hint=hint)


# --- choosing ---------------------------------------------------------------------------------------------------------


def choose_wheel(
    rows: Iterable[IndexedWheel],
    environment: PythonEnvironment,
    host: Cpu,
    *,
    release: str = "",
    target: str = "",
) -> Choice:
    """Return the wheel for this CPU of those that this environment can install, by the rules of `pull`."""
    known = {row.published.id: row for row in rows}
    among = choose.matching([row.published for row in known.values()], release=release, target=target, python="")
    return choose.choose(
        among,
        platform=environment.platform,
        features=frozenset(isa.of_cpu(host, exact=True).features),
        misfits={name: _misfit(row, environment) for name, row in known.items()},
    )


def _misfit(row: IndexedWheel, environment: PythonEnvironment) -> str:
    """Return why an environment should not install a wheel, whatever the CPU; "" if it may."""
    if row.yanked:
        return f"it was yanked: {printable(row.yanked)}"
    if row.platform != environment.platform:
        return f"for {row.platform}"
    if environment.kind != "cpython" or row.python != environment.python:
        return f"for CPython {row.python}; this is {environment.kind} {environment.python}"
    if row.glibc and Version(row.glibc) > Version(environment.glibc or "0"):
        return f"it needs glibc {row.glibc}; this system has {environment.glibc or 'none'}"
    return ""


def chosen_row(
    rows: Iterable[IndexedWheel], choice: Choice, place: str, wanted: str = "this CPU and this environment"
) -> IndexedWheel:
    """Return the row of the choice; raises NothingFits."""
    if choice.best is not None:
        return next(row for row in rows if row.published == choice.best)
    if not choice.passed_over:
        offered = sorted({row.release for row in rows}, key=Version, reverse=True)
        raise NothingFits(
            f"{place} has no wheel of the named release, target or Python",
            hint=f"its releases: {', '.join(offered) or 'none yet'}; or compile one: invoke wheel",
        )
    why = "; ".join(choose.passed_over_lines(choice.passed_over))
    raise NothingFits(f"no wheel in {place} fits {wanted}: {why}", hint="compile one: invoke wheel --cpu host")


# --- a wheel for an image ---------------------------------------------------------------------------------------------


def request_with_wheel(
    source: WheelSource, request: Request, host: Cpu | None, folder: Path, progress: Progress
) -> tuple[Request, Choice]:
    """Download the wheel for the requested CPU (default: the host's) to `folder`, and return a request with it.

    A wheel that is there already is not downloaded again. Raises NothingFits if no wheel fits the request.
    """
    platform = rules.choose_platform(request)
    wanted = rules.requested_set(request, PLATFORMS[platform], host, exact=True)
    # The target of a wheel that tfbuild did not compile is unknown here; planning refuses one that does not fit.
    targets = ("", rules.refuse_exclusive(request))
    rows = [row for row in source.wheels() if row.target in targets and not row.yanked]
    among = choose.matching([row.published for row in rows], release=request.release, target="", python=request.python)
    misfits = {row.published.id: _lacking_glibc(row, request.base) for row in rows}
    choice = choose.choose(among, platform=platform, features=frozenset(wanted.features), misfits=misfits)
    row = chosen_row(rows, choice, source.name, "this request")
    path = _kept(source, row, folder / row.sha256, progress)
    compiled = isa.instruction_set(row.features, PLATFORMS[platform])
    return replace(request, wheel=str(path), release=row.release, python=row.python, cpu=compiled.option), choice


def _lacking_glibc(row: IndexedWheel, base: str) -> str:
    """Return why a wheel cannot run on the known base of its Python; "" if it can, or if the base is the user's own."""
    if base not in BASES or row.python not in toolchains.base_pythons():
        return ""
    own = rules.base_for_wheel(row.python).debian.glibc
    return f"it needs glibc {row.glibc}; its base has {own}" if Version(row.glibc or "0") > Version(own) else ""


def _kept(source: WheelSource, row: IndexedWheel, folder: Path, progress: Progress) -> Path:
    """Return the path of a wheel in `folder`, after downloading it if it is not there."""
    path = folder / row.name
    if path.is_file() and digest(path) == row.sha256:
        return path
    with progress.step(f"download: {row.name}"), writing(folder, "use another working folder"):
        folder.mkdir(parents=True, exist_ok=True)
        with temporary_folder(".part-", folder) as scratch:
            return source.fetch(row, scratch).replace(path)


# --- installing -------------------------------------------------------------------------------------------------------


def install(source: WheelSource, row: IndexedWheel, environment: PythonEnvironment, progress: Progress) -> str:
    """Download a wheel, compare its sha256, and hand it to pip or uv; return what was done.

    Raises UsageError before that where another TensorFlow is installed, and TfbuildError if the installer fails.
    """
    installed = environment.installed()
    if other := next((name for name in installed if name != row.project), None):
        raise UsageError(
            f"{other} is installed in this environment, and has the same files as {row.project}",
            hint=f"uninstall it first: pip uninstall {other}",
        )
    info = installed.get(row.project)
    noted = info / "direct_url.json" if info is not None else None
    if noted is not None and noted.is_file() and wheel_rows.pip_digest(noted.read_bytes()) == row.sha256:
        return f"it is installed already in {environment.interpreter}"
    program = installer(environment)
    # pip and uv keep an installed version, whichever set it is for.
    version = info.stem.partition("-")[2] if info is not None else ""
    same = canonicalize_version(version) == canonicalize_version(row.version)
    again = ["--force-reinstall", "--no-deps"] if same else []
    with writing(Path(tempfile.gettempdir()), NO_SPACE), temporary_folder() as scratch:
        with progress.step(f"download: {row.name}"):
            wheel = source.fetch(row, scratch)
        run_installer([*program, *again, str(wheel)], row.project, environment)
    return f"installed in {environment.interpreter}"
