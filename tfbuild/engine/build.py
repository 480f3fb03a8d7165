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
from tfbuild.errors import BuildFailed, DiskFull, EngineMissing, TfbuildError, limit_printed, limit_reached
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


def find_program(environ: Mapping[str, str], *, plugin: bool = False) -> DockerProgram:
    """Return the first `docker` on PATH that can build with BuildKit on the engine that this environment names.

    `plugin`: require the buildx plugin, without which the name of a builder is ignored. Raises EngineMissing if there
    is none.
    """
    return _find(frozenset(environ.items()), plugin)


@cache
def _find(environ: frozenset[tuple[str, str]], plugin: bool) -> DockerProgram:
    env = dict(environ)
    refused = []
    for path in _programs(env.get("PATH", os.defpath)):
        program, why_not = _probe(path, env, plugin=plugin)
        if program is not None:
            return program
        refused.append(f"{path} {why_not}")
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


def _probe(path: str, env: Mapping[str, str], *, plugin: bool) -> tuple[DockerProgram | None, str]:
    """Return the program, or why it cannot be used (Podman's `docker` prints "podman version")."""
    printed = _output([path, "--version"], env)
    version = VERSION.match(printed)
    if version is None:
        podman = printed.lower().startswith("podman")
        return None, "is Podman's, which has no BuildKit" if podman else "is not Docker's client"
    major_minor = (int(version[1]), int(version[2]))
    needs_buildx = plugin or major_minor >= BUILDX_ONLY
    buildx = needs_buildx and bool(_output([path, "buildx", "version"], env))
    if (needs_buildx and not buildx) or major_minor < BUILDKIT_INSIDE:
        return None, f"{version[1]}.{version[2]} has no buildx plugin"
    if not _output([path, "version", "--format", "{{.Server.Version}}"], env):
        return None, f"{version[1]}.{version[2]} gets no answer from the engine"
    return DockerProgram(path=path, buildx=buildx), ""


def _output(command: list[str], env: Mapping[str, str]) -> str:
    """Return what a program prints; "" if it fails, hangs or cannot be executed. Raises Disturbed."""
    try:
        completed = subprocess.run(
            command, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=PROBE_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        if limit := limit_reached(error) or limit_printed(command[0], getattr(error, "stderr", None) or b""):
            raise limit from error
        return ""
    return completed.stdout.decode(errors="replace").strip()


# --- the builder ------------------------------------------------------------------------------------------------------

FIELD = re.compile(r"^(Driver|Endpoint): *(\S*)$", re.MULTILINE)
# The driver of an engine's own BuildKit; buildx names that builder after the engine's context.
INSIDE = "docker"
INSPECT_SECONDS = 60.0
# Starting one may mean pulling an image and starting a container or pod.
START_SECONDS = 600.0


@dataclass(frozen=True, kw_only=True)
class Builder:
    """A buildx builder of the driver docker-container, kubernetes or remote: it does not see the engine's images."""

    name: str
    driver: str

    def __str__(self) -> str:
        return f"the builder {self.name} ({self.driver})"


def own_builder(environ: Mapping[str, str]) -> str:
    """Return buildx's name of the engine's own builder; "default" is the one behind DOCKER_HOST."""
    return connection.endpoint(environ).context or connection.DEFAULT


def named_builder(environ: Mapping[str, str]) -> str:
    """Return the builder that the user named; "" for none, and for the engine's own."""
    name = environ.get("BUILDX_BUILDER", "")
    return "" if name == own_builder(environ) else name


def find_builder(name: str, environ: Mapping[str, str]) -> Builder:
    """Return the builder `name`, started if necessary. Raises EngineMissing if the engine cannot use it."""
    program = find_program(environ, plugin=True).path
    code, printed = _buildx(program, environ, INSPECT_SECONDS, "inspect", name)
    fields = dict(reversed(FIELD.findall(printed)))  # the first of several nodes
    driver = fields.get("Driver", "")
    if code != 0 or not driver:
        raise EngineMissing(f"the buildx builder {name!r} cannot be used: {_reason(printed)}", hint="docker buildx ls")
    if driver == INSIDE:
        raise EngineMissing(
            f"the builder {name} belongs to another engine, and the image would stay there",
            hint=f"--engine {fields.get('Endpoint') or name} builds and verifies there",
        )
    builder = Builder(name=name, driver=driver)
    code, printed = _buildx(program, environ, START_SECONDS, "inspect", "--bootstrap", name)
    if code != 0:
        raise EngineMissing(
            f"{builder} does not answer: {_reason(printed)}", hint=f"docker buildx inspect --bootstrap {name}"
        )
    return builder


def _buildx(program: str, environ: Mapping[str, str], seconds: float, *arguments: str) -> tuple[int, str]:
    """Return buildx's exit code and its output: that of a failure is its errors."""
    command = [program, "buildx", *arguments]
    try:
        done = subprocess.run(
            command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return 1, f"no answer within {seconds:g} s"
    printed = done.stderr if done.returncode and done.stderr else done.stdout
    return done.returncode, printed.decode(errors="replace")


def _reason(output: str) -> str:
    """Return the last line, which is the reason; the lines above it are progress."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1].removeprefix("ERROR: ").removeprefix("Error: ").strip() if lines else "buildx printed no reason"


# --- a build ----------------------------------------------------------------------------------------------------------

# Docker predefines these build arguments: they reach RUN and stay out of the image's history.
# https://docs.docker.com/build/building/variables/#pre-defined-build-arguments
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY")
# The client's last line if its connection to the engine broke off.
LOST = re.compile(
    r"^(?:ERROR: )?(?:error during connect|Cannot connect to the Docker daemon|failed to receive status: .*Unavailable)"
    r"|code = Unavailable .*(?:EOF|transport|connection)|server did not provide an image ID"
)
# As the kernel, a quota and apt say it; apt also calls repositories unsigned, because it cannot check them.
NO_SPACE = re.compile(
    r"no space left on device|disk quota exceeded|couldn't create temporary file|you don't have enough free space", re.I
)
NO_ID = "because server did not provide an image ID"
# The client did not answer the engine in time, which a busy machine or little memory brings about; what was built is
# kept, and a second run goes through (https://github.com/moby/buildkit/issues/6422, issues/2691).
LOST_SESSION = re.compile(r"no active session for \w+: context deadline exceeded$")


@dataclass(frozen=True, kw_only=True)
class BuildSettings:
    """What the builder gets beside its context; see Engine.build.

    `contexts`: replacements of images, by the name in FROM; only buildx supports them. `labels`: added to those of the
    Dockerfile; they leave no step in the image's history.
    `seconds`: the time limit; None for no limit.
    """

    log: Path
    progress: Progress
    build_args: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, Path] = field(default_factory=dict)
    contexts: Mapping[str, str] = field(default_factory=dict)
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
    builder: Builder | None = None,
    tag: str = "",
    stage: str = "",
    output: Path | None = None,
) -> str:
    """Build `context` on the engine that `environ` names, or in `builder`; see Engine.build and Engine.export.

    Returns the id of the image `tag`; with `output`, writes the files of `stage` there, and returns "".
    """
    with files.temporary_folder() as folder:
        command = [
            *_client(environ, builder, settings, load=output is None),
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


def _client(environ: Mapping[str, str], builder: Builder | None, settings: BuildSettings, *, load: bool) -> list[str]:
    program = find_program(environ, plugin=builder is not None)
    if not program.buildx:
        return [program.path, "build"]
    # By default the engine's own builder: it finds bases that were made here, and leaves the image in this engine.
    name = builder.name if builder else own_builder(environ)
    # The engine's own builder needs no permission.
    allowed = ["--allow=network.host"] if builder and settings.network == "host" else []
    return [program.path, "buildx", "build", *(["--load"] if load else []), f"--builder={name}", *allowed]


def _options(settings: BuildSettings) -> list[str]:
    return [
        "--progress=plain",
        *(["--no-cache"] if settings.no_cache else []),
        *([f"--network={settings.network}"] if settings.network else []),
        *proxy_options(os.environ),
        *(f"--build-context={name}={value}" for name, value in settings.contexts.items()),
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
    # The client's own complaint about a file is not the cause.
    text = "".join(f"\n  {line}" for line in lines if NO_ID not in line)
    if lines and LOST.search(lines[-1]):
        return EngineMissing(
            f"the container engine ended during the build{text}",
            hint=f"what was built is kept: the same command continues from there; the full log: {log}",
        )
    if any(NO_SPACE.search(line) for line in lines):
        return DiskFull(f"the build ran out of disk space{text}", hint=f"docker builder prune; the full log: {log}")
    return BuildFailed(f"the image could not be built{text}", hint=f"the full log: {log}")
