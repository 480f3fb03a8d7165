"""Build with BuildKit through the `docker` program: the SDK has only the classic builder.

The first `docker` on PATH often cannot use BuildKit either.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tfbuild.engine import connection
from tfbuild.engine.buildkit_log import LogWatch, Stages, Tail, parse
from tfbuild.errors import BuildFailed, DiskFull, EngineMissing, TfbuildError
from tfbuild.util import files, process
from tfbuild.util.progress import Progress

# --- the program ------------------------------------------------------------------------------------------------------

PROBE_SECONDS = 20.0
# The client can use BuildKit since 18.09; since 23.0, only through the buildx plugin
# (https://docs.docker.com/engine/release-notes/23.0/).
BUILDKIT_INSIDE = (18, 9)
BUILDX_ONLY = (23, 0)
VERSION = re.compile(r"Docker version (\d+)\.(\d+)")


@dataclass(frozen=True, kw_only=True)
class DockerProgram:
    """A `docker` program that reaches the engine; `buildx`: whether it uses BuildKit through that plugin."""

    path: str
    buildx: bool


def find_program(environ: Mapping[str, str]) -> DockerProgram:
    """Return the first `docker` on PATH that can build with BuildKit on the engine that this environment names.

    Raises EngineMissing if there is none.
    """
    return _find(frozenset(environ.items()))


@cache
def _find(environ: frozenset[tuple[str, str]]) -> DockerProgram:
    env = dict(environ)
    refused = []
    for path in _programs(env.get("PATH", os.defpath)):
        program, why_not = _probe(path, env)
        if program is not None:
            return program
        refused.append(f"{path} {why_not}")
    raise EngineMissing(
        "no docker program can build with BuildKit here" + "".join(f"\n  {line}" for line in refused),
        hint="install the package docker-buildx (Debian 13, Ubuntu), docker-buildx-plugin (Docker's own repository) or "
        "docker.io (Debian 12)",
    )


def _programs(path: str) -> Iterator[str]:
    seen = set()
    for folder in path.split(os.pathsep):
        program = shutil.which("docker", path=folder) if folder else None
        if program and Path(program).resolve() not in seen:
            seen.add(Path(program).resolve())
            yield program


def _probe(path: str, env: Mapping[str, str]) -> tuple[DockerProgram | None, str]:
    """Return the program, or why it cannot be used."""
    version = VERSION.match(_output([path, "--version"], env))
    if version is None:
        return None, "is not Docker's client"
    major_minor = (int(version[1]), int(version[2]))
    needs_buildx = major_minor >= BUILDX_ONLY
    buildx = needs_buildx and bool(_output([path, "buildx", "version"], env))
    if (needs_buildx and not buildx) or major_minor < BUILDKIT_INSIDE:
        return None, f"{version[1]}.{version[2]} has no buildx plugin"
    if not _output([path, "version", "--format", "{{.Server.Version}}"], env):
        return None, f"{version[1]}.{version[2]} gets no answer from the engine"
    return DockerProgram(path=path, buildx=buildx), ""


def _output(command: list[str], env: Mapping[str, str]) -> str:
    """Return what a program prints; "" if it fails, hangs or cannot be executed."""
    try:
        completed = subprocess.run(
            command, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=PROBE_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return completed.stdout.decode(errors="replace").strip()


# --- a build ----------------------------------------------------------------------------------------------------------

# Docker predefines these build arguments: they reach RUN and stay out of the image's history.
# https://docs.docker.com/build/building/variables/#pre-defined-build-arguments
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY")
# As the kernel, a quota and apt say it; apt also calls repositories unsigned, because it cannot check them.
NO_SPACE = re.compile(
    r"no space left on device|disk quota exceeded|couldn't create temporary file|you don't have enough free space", re.I
)
# The client did not answer the engine in time, which a busy machine or little memory brings about; what was built is
# kept, and a second run goes through (https://github.com/moby/buildkit/issues/6422, issues/2691).
LOST_SESSION = re.compile(r"no active session for \w+: context deadline exceeded$")


@dataclass(frozen=True, kw_only=True)
class BuildSettings:
    """What the builder gets beside its context; see Engine.build.

    `labels`: added to those of the Dockerfile; they leave no step in the image's history.
    `seconds`: the time limit; None for no limit.
    """

    log: Path
    progress: Progress
    build_args: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, Path] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    network: str = ""
    no_cache: bool = False
    watch: LogWatch | None = None
    seconds: float | None = None


def build(
    context: Path,
    environ: Mapping[str, str],
    settings: BuildSettings,
    *,
    tag: str = "",
    stage: str = "",
    output: Path | None = None,
) -> str:
    """Build `context` on the engine that `environ` names; see Engine.build and Engine.export.

    Returns the id of the image `tag`; with `output`, writes the files of `stage` there, and returns "".
    """
    with files.temporary_folder() as folder:
        command = [
            *_client(environ, load=output is None),
            *(["--output=type=local," + csv("dest", output)] if output else [f"--iidfile={folder}/id", f"--tag={tag}"]),
            *([f"--target={stage}"] if stage else []),
            *_options(settings),
            str(context),
        ]
        # With attestations, an image's id would be that of an index, which holds a time.
        env = {**environ, "DOCKER_BUILDKIT": "1", "BUILDX_NO_DEFAULT_ATTESTATIONS": "1"}
        process.discard(settings.log)
        lines = _run(command, env, settings)
        if lines and LOST_SESSION.search(lines[-1]):
            settings.progress("the engine lost its connection to the client; the build continues from there")
            lines = _run(command, env, settings)
        if lines is not None:
            raise failure(lines, settings.log)
        return "" if output else (folder / "id").read_text().strip()


def _client(environ: Mapping[str, str], *, load: bool) -> list[str]:
    program = find_program(environ)
    if not program.buildx:
        return [program.path, "build"]
    # The engine's own builder, whichever is current: it has the bases that were made here, and keeps the image.
    name = connection.endpoint(environ).context or "default"
    return [program.path, "buildx", "build", *(["--load"] if load else []), f"--builder={name}"]


def _options(settings: BuildSettings) -> list[str]:
    return [
        "--progress=plain",
        *(["--no-cache"] if settings.no_cache else []),
        *([f"--network={settings.network}"] if settings.network else []),
        *proxy_options(os.environ),
        *(f"--build-arg={name}={value}" for name, value in settings.build_args.items()),
        *(f"--label={name}={value}" for name, value in settings.labels.items()),
        *(f"--secret=id={name},{csv('src', path)}" for name, path in settings.secrets.items()),
    ]


def proxy_options(environ: Mapping[str, str]) -> list[str]:
    """Return build arguments for the proxy variables that are set: names only, because a value may hold a password."""
    names = (variable for name in PROXIES for variable in (name, name.lower()))
    return [f"--build-arg={name}" for name in names if environ.get(name)]


def csv(name: str, path: Path) -> str:
    """Return a field of an option that the client reads as a line of CSV: a path may hold commas and quotes."""
    quoted = str(path).replace('"', '""')
    return f'"{name}={quoted}"'


def _run(command: list[str], env: Mapping[str, str], settings: BuildSettings) -> list[str] | None:
    """Run the client; return the last lines of a build that failed, else None."""
    stages, tail = Stages(settings.progress, settings.watch), Tail()

    def show(line: str) -> None:
        if event := parse(line):
            stages.add(event)
            tail.add(event)

    try:
        # On SIGINT the client cancels the build in BuildKit, which kills the processes of its steps.
        code = process.logged(command, env, settings.log, show, settings.seconds)
    except BaseException as error:
        stages.end("interrupted" if isinstance(error, KeyboardInterrupt) else "failed")
        raise
    stages.end("done" if code == 0 else "failed")
    return tail.lines() if code else None


def failure(lines: list[str], log: Path) -> TfbuildError:
    """Return the error for a failed build with these last lines."""
    text = "".join(f"\n  {line}" for line in lines)
    if any(NO_SPACE.search(line) for line in lines):
        return DiskFull(f"the build ran out of disk space{text}", hint=f"docker builder prune; the full log: {log}")
    return BuildFailed(f"the image could not be built{text}", hint=f"the full log: {log}")
