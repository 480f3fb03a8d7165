"""This machine as the place of a compile without a container: what it has, and what the planned compile lacks on it."""

import os
import platform
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from tfbuild.engine import daemon
from tfbuild.errors import Unsupported
from tfbuild.plan import MACHINES, Build, Request
from tfbuild.plan.rules import choose_here
from tfbuild.util.process import printed

INSTEAD = "leave out --no-container to compile in a container"
PROGRAM = re.compile(r"(?P<compiler>gcc|clang)(?:-(?P<version>\d+))?|python(?P<python>3\.\d+)")
# Of the planned packages, those whose program has another name.
PROGRAMS = {"xz-utils": "xz", "ca-certificates": "update-ca-certificates"}
# Of the programs that are asked for where apt is not, those whose package has another name for dnf (Fedora, RHEL).
DNF = {"g++": "gcc-c++", "ld.lld": "lld"}
# An interpreter's version, its own path (not that of a link or a virtual environment), and the packages that it lacks.
PYTHON = """
import importlib.util, os, shlex, sys, sysconfig
print(sys.version.split()[0], shlex.quote(getattr(sys, "_base_executable", sys.executable)))
print("" if os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")) else "dev")
print("" if importlib.util.find_spec("ensurepip") else "venv")
"""


@dataclass(frozen=True, kw_only=True)
class Interpreter:
    """A Python of this machine: its path, and which of its packages are missing (dev, venv)."""

    version: str
    path: str
    lacks: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class HostSystem:
    """A Linux that compiles without a container.

    `system`: its name for people; `distribution`: its release, such as bookworm; `compilers`: paths by
    name (gcc-12); `pythons`: by version (3.11); `apt`: whether it has Debian's packages.
    """

    system: str
    distribution: str
    glibc: str
    compilers: Mapping[str, str]
    pythons: Mapping[str, Interpreter]
    apt: bool = True


def interpreter(python: str) -> Interpreter | None:
    """Return the first interpreter of that version (3.11) on PATH that runs; None where there is none."""
    # pyenv, asdf and mise have a shim for each version that they know, which fails unless that version is chosen.
    for program in filter(None, (shutil.which(f"python{python}", path=folder) for folder in os.get_exec_path())):
        said = printed([program, "-I", "-c", PYTHON])  # nothing of the current folder
        if said.startswith(f"{python}."):
            version, path, *lacks = shlex.split(said)
            return Interpreter(version=version, path=path, lacks=tuple(lacks))
    return None


def read_machine() -> HostSystem:
    """Return what this machine has for a compile. Raises Unsupported if it is no Linux with glibc."""
    system = daemon.this_system()
    if os.uname().sysname != "Linux":
        raise Unsupported(f"--no-container compiles on Linux, and this is {os.uname().sysname}", hint=INSTEAD)
    libc, glibc = platform.libc_ver()
    if libc != "glibc":
        raise Unsupported("--no-container needs glibc, which this system does not have", hint=INSTEAD)
    compilers: dict[str, str] = {}
    pythons: dict[str, Interpreter | None] = {}
    for folder in os.get_exec_path():
        with suppress(OSError):
            # Backwards: gcc-12 before gcc, which may be the same.
            for match in filter(None, map(PROGRAM.fullmatch, sorted(os.listdir(folder))[::-1])):
                path = f"{folder}/{match[0]}"
                # Not ccache's links, first on Fedora's PATH: Bazel's sandbox lets it write nowhere (bazel issue 12124).
                if not os.access(path, os.X_OK) or os.path.realpath(path).endswith("/ccache"):
                    continue
                if match["compiler"]:
                    major = match["version"] or printed([path, "-dumpversion"]).partition(".")[0]
                    compilers.setdefault(f"{match['compiler']}-{major or 0}", path)
                elif match["python"] not in pythons:
                    pythons[match["python"]] = interpreter(match["python"])
    return HostSystem(
        system=system.get("PRETTY_NAME") or "Linux",
        distribution=system.get("VERSION_CODENAME", ""),
        glibc=glibc,
        compilers=compilers,
        pythons={version: row for version, row in pythons.items() if row},
        apt=daemon.has_apt(system) and shutil.which("dpkg-query") is not None,
    )


def choose(request: Request, machine: HostSystem, select: Callable[[Request], Build]) -> Build:
    """Return the plan of `select` with what the machine has of what the user does not name (see choose_here)."""
    build = choose_here(request, machine.compilers, machine.pythons, select)
    tried = () if machine.apt else (f"tried only on Debian and Ubuntu, and this is {machine.system}",)
    return replace(build, notes=(*tried, *build.notes))


def require(build: Build, machine: HostSystem) -> None:
    """Raise Unsupported, with the packages to install, where the machine lacks what the compile needs."""
    assert build.toolchain is not None
    if build.platform != MACHINES.get(os.uname().machine):
        raise Unsupported(f"the plan is for {build.platform}, and this machine is {os.uname().machine}", hint=INSTEAD)
    if build.toolchain.cuda_base:
        why = f"TensorFlow {build.release} takes {build.toolchain.cuda_base} from its base image"
        hint = "leave out --no-container and name a base by --base; from 2.18 on, Bazel downloads CUDA"
        raise Unsupported(why, hint=hint)
    for option, packages in (("--bolt", build.toolchain.bolt), ("--system-lib", build.toolchain.system_packages)):
        if packages and not machine.apt:
            raise Unsupported(f"{option} needs Debian's packages, and this is {machine.system}", hint="leave it out")
    missing = lacking(build, machine) if machine.apt else _lacking_programs(build, machine)
    if missing:
        # A compiler or a Python that its release lacks is known by apt's own words.
        install = "apt-get install" if machine.apt else "dnf install"
        packages = " ".join(DNF.get(row, row) for row in missing)
        hint = f"sudo {install} {packages}; --compiler or --python takes another"
        raise Unsupported(f"this machine lacks what the compile needs: {', '.join(missing)}", hint=hint)


def _lacking_programs(build: Build, machine: HostSystem) -> list[str]:
    """Return the programs that are not on PATH, and the packages of the compiler and of Python, as dnf names them."""
    assert build.toolchain is not None
    family, _, version = build.compiler.partition("-")
    # Certificates are on every such system.
    tools = [row for row in build.toolchain.packages if not row.endswith((f"-{version}", "certificates"))]
    missing = [PROGRAMS.get(row, row) for row in tools if program_of(row) is None]
    path = machine.compilers.get(build.compiler)
    missing += [family] if path is None else []
    missing += [] if path and printed([path, "-xc++", "-E", "-"], stdin=b"#include <string>\n") else ["g++"]
    missing += ["ld.lld"] if family == "clang" and program_of("ld.lld") is None else []
    name, own = f"python{build.python}", machine.pythons.get(build.python)
    return [*missing, *([f"{name}-devel"] if own and "dev" in own.lacks else [] if own else [name, f"{name}-devel"])]


def lacking(build: Build, machine: HostSystem) -> list[str]:
    """Return the missing packages: planned ones without a program on PATH, and those of Python."""
    assert build.toolchain is not None
    wanted = [*build.toolchain.packages, *build.toolchain.system_packages, *filter(None, [build.toolchain.bolt])]
    show = ["dpkg-query", "--show", "--showformat", "${Package} ${db:Status-Status}\n", *wanted]
    installed = subprocess.run(show, capture_output=True, text=True, check=False).stdout.splitlines()
    name, own = f"python{build.python}", machine.pythons.get(build.python)
    python = [f"{name}-{part}" for part in own.lacks] if own else [name, f"{name}-dev", f"{name}-venv"]
    return [*(row for row in wanted if f"{row} installed" not in installed and program_of(row) is None), *python]


def program_of(package: str) -> str | None:
    """Return the path of a package's program on PATH, also where the package itself is not installed."""
    return shutil.which(PROGRAMS.get(package, package))
