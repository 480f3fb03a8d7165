"""`invoke test`: lint, types, generated files and tests, and the programs that the tests need of this machine."""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tfbuild.engine import debian
from tfbuild.errors import TfbuildError, UsageError
from tfbuild.util.progress import Progress

PURE = "not engine and not sshd and not browser and not nightly"
QUICK = "not nightly"
# What times something runs after all others, and nothing beside it.
ALONE = "alone"


@dataclass(frozen=True, kw_only=True)
class Need:
    """A program that tests look for, the package of Debian that has it, and what is skipped without it."""

    program: str
    package: str
    skipped: str


NEEDS = (
    Need(program="sshd", package="openssh-server", skipped="hosts and engines by ssh"),
    Need(program="docker-registry", package="docker-registry", skipped="pushes and pulls"),
    Need(program="aarch64-linux-gnu-as", package="binutils-aarch64-linux-gnu", skipped="aarch64's machine code"),
    Need(program="ip", package="iproute2", skipped="builds without a network"),
    Need(program="chromium", package="chromium", skipped="pages in a browser"),
)
# Where Debian keeps what is a system's own: not on every user's PATH.
SYSTEM = ("/usr/sbin", "/sbin")


def missing() -> tuple[Need, ...]:
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), *SYSTEM))
    return tuple(need for need in NEEDS if shutil.which(need.program, path=path) is None)


def provide(root: Path, progress: Progress) -> None:
    """Installs what the tests need, as root on Debian and its like; elsewhere says what is skipped without it."""
    needs = missing()
    if not needs:
        return
    packages = [need.package for need in needs]
    if os.geteuid() == 0 and debian.has_apt(debian.this_system()):
        debian.install(packages, root / "build" / "apt.log", progress)
    else:
        skipped = ", ".join(f"{need.skipped} ({need.program})" for need in needs)
        progress(f"skipped for want of a program: {skipped}; to have them: sudo apt-get install {' '.join(packages)}")


def run(root: Path, *, path: str, pure: bool, nightly: bool) -> None:
    """What is asked for, each a process of its own; the first step that fails ends it.

    Types and generated files are checked beside the first tests, which wait for downloads.
    """
    if pure and nightly:
        raise UsageError("--pure and --nightly are two sets", hint="give one of them")
    chosen = _chosen(root, path)
    if not pure:
        provide(root, Progress())
    if path or nightly:
        selected = PURE if pure else "nightly" if nightly else ""
        _pytest(root, chosen, selected=selected, parallel=(root / chosen).is_dir() and not nightly)
        return
    _step(root, "ruff", "check", ".")
    _step(root, "ruff", "format", "--check", ".")
    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(_checks, root)
        if pure:
            _pytest(root, selected=PURE)
        else:
            _pytest(root, selected=f"{QUICK} and not {ALONE}")
        beside.result()
    if not pure:
        _pytest(root, selected=f"{QUICK} and {ALONE}", parallel=False)


def _chosen(root: Path, path: str) -> str:
    """As pytest takes it; a room or a file may be named without tests/."""
    file = path.partition("::")[0]
    for prefix in ("", "tests/"):
        if (root / f"{prefix}{file}").exists():
            return f"{prefix}{path}" if path else ""
    raise UsageError(f"no tests at {path}", hint="invoke test tests/engine, or a file there")


def _checks(root: Path) -> None:
    _step(root, "mypy", quiet=True)
    _step(root, "invoke", "dockerfiles", "--check", quiet=True)
    _step(root, "invoke", "docs", "--check", quiet=True)


def _pytest(root: Path, path: str = "", *, selected: str, parallel: bool = True) -> None:
    words = ["-q", "-p", "tests.files", "-o", "console_output_style=classic", "--durations=10"]
    # In the order of the files: the long lanes of tests/lanes.py come first.
    words += ["-p", "tests.lanes", "--numprocesses=auto", "--no-loadscope-reorder"] if parallel else []
    _step(root, "pytest", *words, *(["-m", selected] if selected else []), *([path] if path else []))


def _step(root: Path, *words: str, quiet: bool = False) -> None:
    """`quiet`: its output comes in one piece, after its end, for something else prints meanwhile."""
    _say(f"$ {' '.join(words)}")
    command = [sys.executable, "-m", *words]
    stdout, stderr = (subprocess.PIPE, subprocess.STDOUT) if quiet else (None, None)
    done = subprocess.run(command, cwd=root, check=False, text=True, stdout=stdout, stderr=stderr)
    if done.stdout:
        _say(done.stdout.rstrip())
    if done.returncode:
        raise TfbuildError(f"`{' '.join(words)}` failed", hint="its output is above")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
