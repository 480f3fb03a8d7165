"""Build contexts with BuildKit through the `docker` program; the SDK has only the classic builder."""

import os
import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tfbuild.engine import buildkit_log, docker_cli
from tfbuild.engine.docker_cli import Builder
from tfbuild.engine.selection import USUAL, EngineChoice
from tfbuild.errors import BuildFailed, DiskFull, EngineMissing, TfbuildError
from tfbuild.util import files, process
from tfbuild.util.progress import Progress, Step

# Docker predefines these build arguments: they reach RUN and stay out of the image's history.
# https://docs.docker.com/build/building/variables/#pre-defined-build-arguments
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY")

# The client's last line where its connection to the engine broke off.
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
# Progress shows an instruction on one line of at most this width, without its mounts.
MOUNTS = re.compile(r"--mount=\S+\s*")
WIDTH = 60


class LogWatch(Protocol):
    """Takes each line that a step prints, and returns what to show ("": the line itself); `share`: the part done."""

    share: float | None

    def __call__(self, line: str) -> str: ...


class Unwatched:
    """Shows each line as it is."""

    share: float | None = None

    def __call__(self, _: str) -> str:
        return ""


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


@dataclass(frozen=True, kw_only=True)
class BuildPlace:
    """Where a build runs: on the engine at `host`, or in `builder` where the user named one."""

    host: str
    builder: Builder | None = None
    chosen: EngineChoice = USUAL

    def environment(self) -> dict[str, str]:
        """Return the environment in which Docker's client talks to this engine."""
        return docker_cli.environment(self.host, self.chosen)


def build(context: Path, place: BuildPlace, settings: BuildSettings, *, tag: str, stage: str = "") -> str:
    """Build `context` and return the image's id; see Engine.build."""
    until = [f"--target={stage}"] if stage else []
    with files.temporary_folder() as folder:
        id_file = folder / "id"
        _run(context, place, settings, [f"--iidfile={id_file}", f"--tag={tag}", *until], load=True)
        return id_file.read_text().strip()


def export(context: Path, place: BuildPlace, settings: BuildSettings, *, stage: str, output: Path) -> None:
    """Build `context` up to `stage` and write its files to the folder `output`; see Engine.export."""
    _run(context, place, settings, [f"--target={stage}", f"--output={destination(output)}"], load=False)


def _options(settings: BuildSettings) -> list[str]:
    return [
        "--progress=plain",
        *(["--no-cache"] if settings.no_cache else []),
        *([f"--network={settings.network}"] if settings.network else []),
        *proxy_options(os.environ),
        *(f"--build-context={name}={value}" for name, value in settings.contexts.items()),
        *(f"--build-arg={name}={value}" for name, value in settings.build_args.items()),
        *(f"--label={name}={value}" for name, value in settings.labels.items()),
        *(f"--secret={secret(name, path)}" for name, path in settings.secrets.items()),
    ]


def _program(program: docker_cli.Cli, place: BuildPlace, settings: BuildSettings, *, load: bool) -> list[str]:
    if not program.buildx:
        return [program.path, "build"]
    # By default the engine's own builder: it finds bases that were made here, and leaves the image in this engine.
    name = place.builder.name if place.builder else docker_cli.own_builder(place.environment())
    # The engine's own builder needs no permission.
    allowed = ["--allow=network.host"] if place.builder and settings.network == "host" else []
    return [program.path, "buildx", "build", *(["--load"] if load else []), f"--builder={name}", *allowed]


def _environment(place: BuildPlace) -> dict[str, str]:
    # With attestations, an image's id would be that of an index, which holds a time.
    return {**place.environment(), "DOCKER_BUILDKIT": "1", "BUILDX_NO_DEFAULT_ATTESTATIONS": "1"}


def proxy_options(environ: Mapping[str, str]) -> list[str]:
    """Return build arguments for the proxy variables that are set: names only, because a value may hold a password."""
    names = (variable for name in PROXIES for variable in (name, name.lower()))
    return [f"--build-arg={name}" for name in names if environ.get(name)]


def secret(name: str, path: Path) -> str:
    """Return the value of --secret; the client reads it as a line of CSV, so a path may hold a comma."""
    quoted = str(path).replace('"', '""')
    return f'id={name},"src={quoted}"'


def destination(folder: Path) -> str:
    """Return the value of --output, which is a line of CSV too."""
    quoted = str(folder).replace('"', '""')
    return f'type=local,"dest={quoted}"'


def _run(context: Path, place: BuildPlace, settings: BuildSettings, outcome: list[str], *, load: bool) -> None:
    program = docker_cli.find_cli(place.host, plugin=place.builder is not None, chosen=place.chosen)
    command = [*_program(program, place, settings, load=load), *outcome, *_options(settings), str(context)]
    process.discard(settings.log)
    lines = _run_once(command, place, settings)
    if lines and LOST_SESSION.search(lines[-1]):
        settings.progress("the engine lost its connection to the client; the build goes on from there")
        lines = _run_once(command, place, settings)
    if lines is not None:
        raise failure(lines, settings.log)


def _run_once(command: list[str], place: BuildPlace, settings: BuildSettings) -> list[str] | None:
    """Run the client, and return the last lines of a build that failed, or None."""
    stages, tail = Stages(settings.progress, settings.watch), buildkit_log.Tail()

    def read(line: str) -> None:
        if event := buildkit_log.parse(line):
            stages.add(event)
            tail.add(event)

    try:
        # On SIGINT the client cancels the build in BuildKit, which kills the processes of its steps.
        code = process.logged(command, _environment(place), settings.log, read, settings.seconds)
    except BaseException as error:
        stages.end("interrupted" if isinstance(error, KeyboardInterrupt) else "failed")
        raise
    stages.end("done" if code == 0 else "failed")
    return tail.lines() if code else None


def no_buildkit(version: str) -> EngineMissing:
    """Return the error for a build on Podman of that version."""
    return EngineMissing(
        f"this engine is Podman {version}, which has no BuildKit to build with",
        hint="build on Docker's engine (--engine, DOCKER_HOST); docker save | podman load moves the image",
    )


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


class Stages:
    """Shows BuildKit's events in `progress`: one step per stage, not one per instruction."""

    def __init__(self, progress: Progress, watch: LogWatch | None = None) -> None:
        self._progress = progress
        self._watch = watch or Unwatched()
        self._titles: dict[int, str] = {}
        self._running: dict[str, Step] = {}
        # A stage's time is the sum of its instructions' times: BuildKit prints parallel stages one after the other.
        self._seconds: dict[str, float] = {}
        self._finished: set[str] = set()

    def add(self, event: buildkit_log.Event) -> None:
        if event.kind == "start":
            self._titles[event.step] = event.text
        stage, detail, last = _place(self._titles.get(event.step, ""))
        if not stage or stage in self._finished:
            return
        if stage not in self._running:
            self._running[stage] = self._progress.start(f"build: {stage}")
        if event.kind == "start":
            self._running[stage].detail = detail
        elif event.kind == "output" and event.text:
            self._show(self._running[stage], event.text)
        elif event.kind == "done":
            self._seconds[stage] = self._seconds.get(stage, 0.0) + event.seconds
        elif event.kind in ("error", "canceled"):
            self._end(stage, "failed" if event.kind == "error" else "canceled")
        if event.kind in ("done", "cached"):
            self._end_instruction(stage, last)

    def _end_instruction(self, stage: str, last: bool) -> None:
        # The next instruction may have to wait for another stage.
        self._running[stage].detail = ""
        if last:
            self._end(stage, "done" if stage in self._seconds else "cached")

    def _show(self, step: Step, line: str) -> None:
        if detail := self._watch(line):
            # Only for the stage that printed it: the stages after a compile have not come as far.
            step.detail, step.share = detail, self._watch.share
        elif step.share is None:
            # A compiler's warnings do not replace the progress of the compile.
            step.detail = line

    def _end(self, stage: str, outcome: str) -> None:
        if step := self._running.pop(stage, None):
            self._finished.add(stage)
            seconds = self._seconds.get(stage, 0.0)
            self._progress.finish(step, outcome, seconds if outcome in ("done", "cached") else None)

    def end(self, outcome: str) -> None:
        """End the stages that still run."""
        for stage in list(self._running):
            self._end(stage, outcome)


def _place(title: str) -> tuple[str, str, bool]:
    """Return a step's stage, what it does, and whether it is the stage's last; steps without a stage are internal."""
    if title.startswith("exporting"):
        return "export", "", True
    instruction = buildkit_log.instruction(title)
    if instruction is None:
        return "", "", False
    if instruction.text.startswith("FROM "):
        # All stages share it, and under concurrent builds BuildKit even gives it another build's stage name.
        return "base", instruction.text, True
    text = textwrap.shorten(MOUNTS.sub("", instruction.text), WIDTH, placeholder=" ...")
    index, count = instruction.index, instruction.count
    return instruction.stage, f"{index}/{count} {text}", index == count
