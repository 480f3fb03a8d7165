"""`invoke test`: lint, types, generated files and tests, and the programs that the tests need."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tfbuild.engine import daemon
from tfbuild.errors import TfbuildError, UsageError
from tfbuild.util import files
from tfbuild.util.process import logged
from tfbuild.util.progress import Progress

PURE = "not engine and not sshd and not browser and not contract and not slow and not nightly"
# Folders without a pure test. pytest imports every file that it may select from.
NEVER_PURE = ("tests/with_engine", "tests/contract")
QUICK = "not nightly"
# Property tests are in every run; at night they try more examples (tests/conftest.py).
NIGHTLY = "nightly or hypothesis"
# Nightly tests that measure time run last, with nothing beside them.
ALONE = "alone"


@dataclass(frozen=True, kw_only=True)
class Need:
    """A program that tests need, its Debian package, and what is skipped without it."""

    program: str
    package: str
    skipped: str


NEEDS = (
    Need(program="sshd", package="openssh-server", skipped="hosts and engines by ssh"),
    Need(program="docker-registry", package="docker-registry", skipped="pushes and pulls"),
    Need(program="aarch64-linux-gnu-as", package="binutils-aarch64-linux-gnu", skipped="aarch64's machine code"),
    Need(program="mmdebstrap", package="mmdebstrap", skipped="bases made of packages"),
    Need(program="ip", package="iproute2", skipped="builds without a network"),
    Need(program="chromium", package="chromium", skipped="pages in a browser"),
    Need(program="zsh", package="zsh", skipped="completion in zsh"),
)
# The Python of an environment with the TensorFlow that ci/tensorflow.txt locks. Where this variable is set, the first
# test on it makes it, or waits until it is made.
MAKES_TENSORFLOW = "TFBUILD_TEST_TENSORFLOW"
TENSORFLOW = Path(sys.prefix) / "tensorflow" / "bin" / "python"
# Debian's folders of system programs, which are not on every user's PATH.
SYSTEM = ("/usr/sbin", "/sbin")


def missing() -> tuple[Need, ...]:
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), *SYSTEM))
    return tuple(need for need in NEEDS if shutil.which(need.program, path=path) is None)


def provide(root: Path, progress: Progress) -> None:
    """Install what the tests need, as root on Debian or a derivative; elsewhere report what is skipped."""
    needs = missing()
    if not needs:
        return
    packages = [need.package for need in needs]
    if os.geteuid() == 0 and daemon.has_apt(daemon.this_system()):
        install(packages, root / "build" / "apt.log", progress)
    else:
        skipped = ", ".join(f"{need.skipped} ({need.program})" for need in needs)
        progress(
            f"skipped, because a program is missing: {skipped}; to run them: sudo apt-get install {' '.join(packages)}"
        )


def install(packages: Sequence[str], log: Path, progress: Progress) -> None:
    """Install packages without prompts or recommended packages."""
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "NEEDRESTART_SUSPEND": "1", "LC_ALL": "C.UTF-8"}
    apt = ["apt-get", "-o", "DPkg::Lock::Timeout=300"]
    with progress.step(f"apt: install {' '.join(packages)}"):
        # A broken third-party source can make the update fail; what counts is whether the packages install.
        logged([*apt, "update"], env, log)
        if logged([*apt, "install", "--yes", "--no-install-recommends", *packages], env, log) != 0:
            raise TfbuildError(f"apt could not install {' '.join(packages)}", hint=f"the full log: {log}")


def provide_tensorflow(root: Path) -> None:
    """Make the environment with TensorFlow, unless it is there; where another process makes it, wait for that one."""
    lock, environment = root / "ci" / "tensorflow.txt", TENSORFLOW.parents[1]
    installed = environment / lock.name
    with files.locked(environment.with_name("tensorflow-lock"), lambda: None):
        if installed.is_file() and installed.read_bytes() == lock.read_bytes():
            return
        pip = ("pip", "--python", str(TENSORFLOW), "install", "--quiet", "--require-hashes", "-r", str(lock))
        _step(root, "venv", "--clear", str(environment), quiet=True)
        _step(root, *pip, quiet=True)
        shutil.copy(lock, installed)


def run(root: Path, *, path: str, pure: bool, nightly: bool) -> None:
    """Run each step as a process of its own, until one fails.

    Types and generated files are checked, and the environment with TensorFlow is made, while apt installs and the first
    tests wait for downloads.
    """
    if pure and nightly:
        raise UsageError("--pure and --nightly select different tests", hint="give only one of them")
    chosen = _chosen(root, path)
    if not pure and (path or nightly):
        provide(root, Progress())
    thorough = ["--hypothesis-profile=thorough"] if nightly else []
    if path:
        selected = PURE if pure else NIGHTLY if nightly else ""
        _pytest(root, *thorough, chosen, selected=selected, parallel=(root / chosen).is_dir() and not nightly)
        return
    if nightly:
        _pytest(root, *thorough, selected=f"({NIGHTLY}) and not {ALONE}")
        _pytest(root, *thorough, selected=ALONE, parallel=False)
        return
    _step(root, "ruff", "check", ".")
    _step(root, "ruff", "format", "--check", ".")
    with ThreadPoolExecutor(2) as pool:
        beside = [pool.submit(_checks, root)]
        if pure:
            _pytest(root, *(f"--ignore={folder}" for folder in NEVER_PURE), selected=PURE)
        else:
            beside.append(pool.submit(provide_tensorflow, root))
            provide(root, Progress())
            _pytest(root, selected=QUICK)
        for step in beside:
            step.result()


def _chosen(root: Path, path: str) -> str:
    """Return the path for pytest; the user may leave out tests/."""
    file = path.partition("::")[0]
    for prefix in ("", "tests/"):
        if (root / f"{prefix}{file}").exists():
            return f"{prefix}{path}" if path else ""
    raise UsageError(f"no tests at {path}", hint="invoke test --path tests/with_engine, or a file there")


def _checks(root: Path) -> None:
    """Check types and generated files."""
    _step(root, "mypy", quiet=True)
    _step(root, "invoke", "generate", "--check", quiet=True)


def _pytest(root: Path, *more: str, selected: str, parallel: bool = True) -> None:
    arguments = ["-q", "-p", "tests.files", "-o", "console_output_style=classic", "--durations=10"]
    if parallel:
        # Two more than processors: tests wait for servers and programs, and those on an engine for disks and networks.
        workers = (os.cpu_count() or 1) + 2
        # tests/lanes.py sorts the tests; without the last option pytest-xdist would sort them again.
        arguments += ["-p", "tests.lanes", f"--numprocesses={workers}", "--no-loadscope-reorder"]
    makes = {} if selected == PURE else {MAKES_TENSORFLOW: "yes"}
    _step(root, "pytest", *arguments, *(["-m", selected] if selected else []), *filter(None, more), more=makes)


def _step(root: Path, *arguments: str, quiet: bool = False, more: Mapping[str, str] = {}) -> None:
    """Run a module with `more` in its environment.

    `quiet`: print its output when it has ended, because another step prints meanwhile.
    """
    _say(f"$ {' '.join(arguments)}")
    command = [sys.executable, "-m", *arguments]
    stdout, stderr = (subprocess.PIPE, subprocess.STDOUT) if quiet else (None, None)
    # Tests start hundreds of commands. Without byte code each would compile all of tfbuild again.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env |= more
    completed = subprocess.run(command, cwd=root, env=env, check=False, text=True, stdout=stdout, stderr=stderr)
    if completed.stdout:
        _say(completed.stdout.rstrip())
    if completed.returncode:
        raise TfbuildError(f"`{' '.join(arguments)}` failed", hint="see its output above")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
