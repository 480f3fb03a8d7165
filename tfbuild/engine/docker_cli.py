"""Which `docker` program to use: the SDK cannot build with BuildKit, and the first one on PATH often cannot either."""

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
# BuildKit came into the client with 18.09; since 23.0 it is reached through the buildx plugin alone
# (https://docs.docker.com/engine/release-notes/23.0/).
BUILDKIT_INSIDE = (18, 9)
BUILDX_ONLY = (23, 0)
OF_TLS = ("DOCKER_TLS", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH")
VERSION = re.compile(r"Docker version (\d+)\.(\d+)")


@dataclass(frozen=True, kw_only=True)
class Cli:
    """A `docker` program that answers for the engine; `buildx` where that plugin is its way to BuildKit."""

    path: str
    buildx: bool


def find_cli(host: str = "", *, plugin: bool = False, chosen: EngineChoice = USUAL) -> Cli:
    """The first `docker` on PATH that can build with BuildKit on the engine at `host` (default: the chosen one).

    `plugin`: by the buildx plugin alone, without which builders' names are not heeded. Raises EngineMissing where none
    can.
    """
    told = chosen.environment(os.environ)
    return _find(told.get("PATH", os.defpath), host or told.get("DOCKER_HOST", ""), plugin, chosen)


def environment(host: str = "", chosen: EngineChoice = USUAL) -> dict[str, str]:
    """The environment in which a `docker` program talks to `host`; an empty one leaves the user's choice alone."""
    told = chosen.environment(os.environ)
    if not host:
        return told
    # A context's name would only be warned of, but TLS would be tried on a socket too.
    others = {"DOCKER_CONTEXT", *(OF_TLS if host.startswith("unix://") else ())}
    return {**{name: value for name, value in told.items() if name not in others}, "DOCKER_HOST": host}


@cache
def _find(path: str, host: str, plugin: bool, chosen: EngineChoice) -> Cli:
    looked_at = []
    for program in _programs(path):
        can, why_not = _probe(program, environment(host, chosen), plugin=plugin)
        if can is not None:
            return can
        looked_at.append(f"{program} {why_not}")
    raise EngineMissing(
        f"no docker program can {'use a buildx builder' if plugin else 'build with BuildKit'} here"
        + "".join(f"\n  {line}" for line in looked_at),
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
    """The usable program, or why it is none (Podman's `docker` says "podman version")."""
    version = VERSION.match(_output([program, "--version"], env))
    if version is None:
        return None, "is not Docker's client"
    major_minor = (int(version[1]), int(version[2]))
    needs_it = plugin or major_minor >= BUILDX_ONLY
    buildx = needs_it and bool(_output([program, "buildx", "version"], env))
    if (needs_it and not buildx) or major_minor < BUILDKIT_INSIDE:
        return None, f"{version[1]}.{version[2]} has no buildx plugin"
    if not _output([program, "version", "--format", "{{.Server.Version}}"], env):
        return None, f"{version[1]}.{version[2]} gets no answer from the engine"
    return Cli(path=program, buildx=buildx), ""


def _output(command: list[str], env: dict[str, str]) -> str:
    """What a program that succeeds prints; nothing where it fails, hangs or is no program."""
    try:
        done = subprocess.run(
            command, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=PROBE_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode(errors="replace").strip()
