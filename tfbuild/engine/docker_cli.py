"""The `docker` program that builds with BuildKit, and the buildx builder that the user named.

The SDK cannot build with BuildKit, and the first program on PATH often cannot either.
"""

import errno
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tfbuild.engine import selection
from tfbuild.engine.selection import USUAL, EngineChoice
from tfbuild.errors import EngineMissing, LimitReached, limit_reached

PROBE_SECONDS = 20.0
# The client can use BuildKit since 18.09; since 23.0, only through the buildx plugin
# (https://docs.docker.com/engine/release-notes/23.0/).
BUILDKIT_INSIDE = (18, 9)
BUILDX_ONLY = (23, 0)
TLS_VARIABLES = ("DOCKER_TLS", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH")
# What Go's runtime and its standard library print.
LIMITED = {
    errno.EAGAIN: (b"failed to create new OS thread", b"resource temporarily unavailable", b"pthread_create failed"),
    errno.EMFILE: (b"too many open files",),
}
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
    """Return what a program prints; "" where it fails, hangs or cannot be executed. Raises LimitReached."""
    try:
        completed = subprocess.run(
            command, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=PROBE_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        if limit := limit_reached(error) or _limit_of(command[0], getattr(error, "stderr", None) or b""):
            raise limit from error
        return ""
    return completed.stdout.decode(errors="replace").strip()


def _limit_of(program: str, errors: bytes) -> LimitReached | None:
    """Return the error for a limit of processes or files that a program written in Go met, by what it printed."""
    for number, texts in LIMITED.items():
        if any(text in errors for text in texts):
            return limit_reached(OSError(number, os.strerror(number)), program)
    return None


# --- buildx builders -------------------------------------------------------------------------------------------------


FIELD = re.compile(r"^(Driver|Endpoint): *(\S*)$", re.MULTILINE)
# The driver of an engine's own BuildKit; buildx names that builder after the engine's context.
INSIDE = "docker"
INSPECT_SECONDS = 60.0
# Starting one may mean pulling an image and starting a container or pod.
START_SECONDS = 600.0


@dataclass(frozen=True, kw_only=True)
class Builder:
    """`driver`: docker-container, kubernetes or remote. Such a builder does not see the engine's images."""

    name: str
    driver: str

    def __str__(self) -> str:
        return f"the builder {self.name} ({self.driver})"


def own_builder(environ: Mapping[str, str]) -> str:
    """Return buildx's name of the engine's own builder; "default" is the one behind DOCKER_HOST."""
    return selection.endpoint(environ).context or selection.DEFAULT


def named_builder(environ: Mapping[str, str]) -> str:
    """Return the builder that the user named; "" for none, and for the engine's own."""
    name = environ.get("BUILDX_BUILDER", "")
    return "" if name == own_builder(environ) else name


def find_builder(name: str, program: str, environ: Mapping[str, str]) -> Builder:
    """Return the builder `name`, started if necessary. Raises EngineMissing where the engine cannot use it."""
    code, out, errors = _buildx(program, environ, INSPECT_SECONDS, "inspect", name)
    fields = dict(reversed(FIELD.findall(out)))  # the first of several nodes
    driver = fields.get("Driver", "")
    if code != 0 or not driver:
        raise EngineMissing(
            f"the buildx builder {name!r} cannot be used: {_reason(errors or out)}", hint="docker buildx ls"
        )
    if driver == INSIDE:
        raise EngineMissing(
            f"the builder {name} is another engine's own, in which the image would stay",
            hint=f"--engine {fields.get('Endpoint') or name} builds and verifies there",
        )
    builder = Builder(name=name, driver=driver)
    code, out, errors = _buildx(program, environ, START_SECONDS, "inspect", "--bootstrap", name)
    if code != 0:
        raise EngineMissing(
            f"{builder} does not answer: {_reason(errors or out)}", hint=f"docker buildx inspect --bootstrap {name}"
        )
    return builder


def _buildx(program: str, environ: Mapping[str, str], seconds: float, *arguments: str) -> tuple[int, str, str]:
    try:
        done = subprocess.run(
            [program, "buildx", *arguments],
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 1, "", f"no answer within {seconds:g} s"
    return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")


def _reason(output: str) -> str:
    """Return the last line, which is the reason; the lines above it are progress."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1].removeprefix("ERROR: ").removeprefix("Error: ").strip() if lines else "buildx printed no reason"
