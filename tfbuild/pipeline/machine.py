"""This machine as the place of a compile without a container: what it has, and what the planned compile lacks on it."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from tfbuild.engine import daemon
from tfbuild.errors import Unsupported
from tfbuild.plan import MACHINES, Build

INSTEAD = "leave out --no-container to compile in a container, or take Debian, Ubuntu or a derivative of them"
PROGRAM = re.compile(r"(?P<compiler>(?:gcc|clang)-\d+)|python(?P<python>3\.\d+)")
# Of the planned packages, those whose program has another name.
PROGRAMS = {"xz-utils": "xz", "ca-certificates": "update-ca-certificates"}
# An interpreter's version, its own path (not that of a link or a virtual environment), and the packages that it lacks.
PYTHON = """
import importlib.util, os, sys, sysconfig
print(sys.version.split()[0], getattr(sys, "_base_executable", sys.executable))
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
    """A Debian, an Ubuntu or a derivative that compiles without a container.

    `system`: its name for people; `distribution`: its release, such as bookworm; `compilers`: paths by
    name (gcc-12); `pythons`: by version (3.11).
    """

    system: str
    distribution: str
    glibc: str
    compilers: Mapping[str, str]
    pythons: Mapping[str, Interpreter]


def interpreter(python: str) -> Interpreter | None:
    """Return the interpreter of that version (3.11) on PATH; None where there is none that runs."""
    program = shutil.which(f"python{python}")
    if program is None:
        return None
    done = subprocess.run([program, "-c", PYTHON], capture_output=True, text=True, check=False)
    if done.returncode or not done.stdout.startswith(f"{python}."):
        return None
    version, path, *lacks = done.stdout.split()
    return Interpreter(version=version, path=path, lacks=tuple(lacks))


def read_machine() -> HostSystem:
    """Return what this machine has for a compile. Raises Unsupported where it is not Debian, Ubuntu or the like."""
    system = daemon.this_system()
    name = system.get("PRETTY_NAME") or os.uname().sysname
    if not daemon.has_apt(system) or shutil.which("dpkg-query") is None:
        raise Unsupported(f"--no-container needs the packages of Debian or Ubuntu, but this is {name}", hint=INSTEAD)
    compilers: dict[str, str] = {}
    pythons: dict[str, Interpreter | None] = {}
    for folder in os.get_exec_path():
        with suppress(OSError):
            for match in filter(None, map(PROGRAM.fullmatch, os.listdir(folder))):
                if match["compiler"]:
                    compilers.setdefault(match["compiler"], f"{folder}/{match['compiler']}")
                elif match["python"] not in pythons:
                    pythons[match["python"]] = interpreter(match["python"])
    return HostSystem(
        system=name,
        distribution=system.get("VERSION_CODENAME", ""),
        glibc=(os.confstr("CS_GNU_LIBC_VERSION") or "").removeprefix("glibc "),
        compilers=compilers,
        pythons={version: row for version, row in pythons.items() if row},
    )


def require(build: Build, machine: HostSystem) -> None:
    """Raise Unsupported, with the packages to install, where the machine lacks what the compile needs."""
    assert build.toolchain is not None
    if build.platform != MACHINES.get(os.uname().machine):
        raise Unsupported(f"the plan is for {build.platform}, and this machine is {os.uname().machine}", hint=INSTEAD)
    if build.toolchain.cuda_base:
        raise Unsupported(
            f"TensorFlow {build.release} takes {build.toolchain.cuda_base} from its base image",
            hint="leave out --no-container and name a base by --base; from 2.18 on, Bazel downloads CUDA",
        )
    if packages := lacking(build, machine):
        # A compiler or a Python that its release lacks is known by apt's own words.
        hint = f"sudo apt-get install {' '.join(packages)}; --compiler or --python takes another"
        raise Unsupported(f"this machine lacks what the compile needs: {', '.join(packages)}", hint=hint)


def lacking(build: Build, machine: HostSystem) -> list[str]:
    """Return the missing packages: planned ones without a program on PATH, and those of Python."""
    assert build.toolchain is not None
    wanted = [*build.toolchain.packages, *build.toolchain.system_packages]
    show = ["dpkg-query", "--show", "--showformat", "${Package} ${db:Status-Status}\n", *wanted]
    installed = subprocess.run(show, capture_output=True, text=True, check=False).stdout.splitlines()
    name, own = f"python{build.python}", machine.pythons.get(build.python)
    python = [f"{name}-{part}" for part in own.lacks] if own else [name, f"{name}-dev", f"{name}-venv"]
    return [*(row for row in wanted if f"{row} installed" not in installed and program_of(row) is None), *python]


def program_of(package: str) -> str | None:
    """Return the path of a package's program on PATH, also where the package itself is not installed."""
    return shutil.which(PROGRAMS.get(package, package))
