"""Find a `docker` program that builds with BuildKit: the SDK cannot, and the first one on PATH often cannot either."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tfbuild.engine.selection import USUAL, EngineChoice
from tfbuild.errors import EngineMissing

PROBE_SECONDS = 20.0
# The client can use BuildKit since 18.09; since 23.0, only through the buildx plugin
# (https://docs.docker.com/engine/release-notes/23.0/).
BUILDKIT_INSIDE = (18, 9)
BUILDX_ONLY = (23, 0)
TLS_VARIABLES = ("DOCKER_TLS", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH")
VERSION = re.compile(r"Docker version (\d+)\.(\d+)")


@dataclass(frozen=True, kw_only=True)
class Cli:
    """A `docker` program that reaches the engine; `buildx`: whether it uses BuildKit through that plugin."""

    path: str
    buildx: bool


def find_cli(host: str = "", *, plugin: bool = False, chosen: EngineChoice = USUAL) -> Cli:
    """Return the first `docker` on PATH that can build with BuildKit on the engine at `host` (default: the chosen one).

    `plugin`: require the buildx plugin, without which the name of a builder is ignored. Raises EngineMissing where
    none can.
    """
    environ = chosen.environment(os.environ)
    return _find(environ.get("PATH", os.defpath), host or environ.get("DOCKER_HOST", ""), plugin, chosen)


def environment(host: str = "", chosen: EngineChoice = USUAL) -> dict[str, str]:
    """Return the environment in which a `docker` program talks to `host`; without one, to what is `chosen`."""
    environ = chosen.environment(os.environ)
    if not host:
        return environ
    # The client only warns about a context's name, but it would try TLS on a socket.
    dropped = {"DOCKER_CONTEXT", *(TLS_VARIABLES if host.startswith("unix://") else ())}
    return {**{name: value for name, value in environ.items() if name not in dropped}, "DOCKER_HOST": host}


@cache
def _find(path: str, host: str, plugin: bool, chosen: EngineChoice) -> Cli:
    refused = []
    for program in _programs(path):
        cli, why_not = _probe(program, environment(host, chosen), plugin=plugin)
        if cli is not None:
            return cli
        refused.append(f"{program} {why_not}")
    raise EngineMissing(
        f"no docker program can {'use a buildx builder' if plugin else 'build with BuildKit'} here"
        + "".join(f"\n  {line}" for line in refused),
        hint="install the package docker-buildx (Debian 13, Ubuntu) or docker-buildx-plugin (Docker's own repository)"
        + ("" if plugin else ", or docker.io (Debian 12)"),
    )


def _programs(path: str) -> Iterator[str]:
    seen = set()
    for folder in path.split(os.pathsep):
        program = shutil.which("docker", path=folder) if folder else None
        if program and Path(program).resolve() not in seen:
            seen.add(Path(program).resolve())
            yield program


def _probe(program: str, env: dict[str, str], *, plugin: bool) -> tuple[Cli | None, str]:
    """Return the program, or why it cannot be used (Podman's `docker` prints "podman version")."""
    printed = _output([program, "--version"], env)
    version = VERSION.match(printed)
    if version is None:
        podman = printed.lower().startswith("podman")
        return None, "is Podman's, which has no BuildKit" if podman else "is not Docker's client"
    major_minor = (int(version[1]), int(version[2]))
    needs_buildx = plugin or major_minor >= BUILDX_ONLY
    buildx = needs_buildx and bool(_output([program, "buildx", "version"], env))
    if (needs_buildx and not buildx) or major_minor < BUILDKIT_INSIDE:
        return None, f"{version[1]}.{version[2]} has no buildx plugin"
    if not _output([program, "version", "--format", "{{.Server.Version}}"], env):
        return None, f"{version[1]}.{version[2]} gets no answer from the engine"
    return Cli(path=program, buildx=buildx), ""


def _output(command: list[str], env: dict[str, str]) -> str:
    """Return what a program prints; "" where it fails, hangs or cannot be executed."""
    try:
        completed = subprocess.run(
            command, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=PROBE_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return completed.stdout.decode(errors="replace").strip()
