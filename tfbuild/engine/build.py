"""Images out of build contexts: BuildKit through the `docker` program; the SDK's own builder is the classic one."""

import os
import re
import tempfile
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tfbuild.engine import buildkit_log, docker_cli
from tfbuild.engine import buildx as builders
from tfbuild.engine.buildx import Builder
from tfbuild.engine.selection import USUAL, EngineChoice
from tfbuild.errors import BuildFailed, DiskFull, TfbuildError
from tfbuild.util import process
from tfbuild.util.progress import Progress, Step

# Docker predefines these build arguments: they reach RUN and stay out of the image's history.
# https://docs.docker.com/build/building/variables/#pre-defined-build-arguments
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY")

# What an instruction does is told in one line, without what it is given.
MOUNTS = re.compile(r"--mount=\S+\s*")
WIDTH = 60


class LogWatch(Protocol):
    """Takes each line that a step prints, and gives what to show of it ("": the line); `share`: how far the step is."""

    share: float | None

    def __call__(self, line: str) -> str: ...


class Unwatched:
    """Shows each line as it is."""

    share: float | None = None

    def __call__(self, _: str) -> str:
        return ""


@dataclass(frozen=True, kw_only=True)
class BuildSettings:
    """What a run of the builder gets beside its context; see Engine.build.

    `contexts`: what takes an image's place, by the name that FROM has; only buildx knows them.
    `seconds`: None for as long as it takes.
    """

    log: Path
    progress: Progress
    build_args: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, Path] = field(default_factory=dict)
    contexts: Mapping[str, str] = field(default_factory=dict)
    network: str = ""
    no_cache: bool = False
    watch: LogWatch | None = None
    seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class BuildPlace:
    """Where a build runs: by the client that is told `host`, in `builder` where that is not the engine's own."""

    host: str
    builder: Builder | None = None
    chosen: EngineChoice = USUAL

    def environment(self) -> dict[str, str]:
        """Return the environment in which Docker's client goes there."""
        return docker_cli.environment(self.host, self.chosen)


def build(context: Path, place: BuildPlace, settings: BuildSettings, *, tag: str) -> str:
    """Builds `context` and gives the image's id; see Engine.build."""
    with tempfile.TemporaryDirectory(prefix="tfbuild-") as folder:
        id_file = Path(folder, "id")
        _run(context, place, settings, [f"--iidfile={id_file}", f"--tag={tag}"], load=True)
        return id_file.read_text().strip()


def export(context: Path, place: BuildPlace, settings: BuildSettings, *, stage: str, output: Path) -> None:
    """Builds `context` up to `stage` and writes its files to the folder `output`; see Engine.export."""
    _run(context, place, settings, [f"--target={stage}", f"--output={destination(output)}"], load=False)


def _options(settings: BuildSettings) -> list[str]:
    return [
        "--progress=plain",
        *(["--no-cache"] if settings.no_cache else []),
        *([f"--network={settings.network}"] if settings.network else []),
        *proxy_options(os.environ),
        *(f"--build-context={name}={value}" for name, value in settings.contexts.items()),
        *(f"--build-arg={name}={value}" for name, value in settings.build_args.items()),
        *(f"--secret={secret(name, path)}" for name, path in settings.secrets.items()),
    ]


def _start(program: docker_cli.Cli, place: BuildPlace, settings: BuildSettings, *, load: bool) -> list[str]:
    if not program.buildx:
        return [program.path, "build"]
    # The image must land in this engine, and a base made here be found: the builder inside it, unless the user says.
    name = place.builder.name if place.builder else builders.own(place.environment())
    # The engine's own builder asks nobody.
    allowed = ["--allow=network.host"] if place.builder and settings.network == "host" else []
    return [program.path, "buildx", "build", *(["--load"] if load else []), f"--builder={name}", *allowed]


def _environment(place: BuildPlace) -> dict[str, str]:
    # Without attestations an image's id is its own, not that of an index that carries a time.
    return {**place.environment(), "DOCKER_BUILDKIT": "1", "BUILDX_NO_DEFAULT_ATTESTATIONS": "1"}


def proxy_options(environ: Mapping[str, str]) -> list[str]:
    """Build arguments for the proxy variables that are set; by name alone, since a value may hold a password."""
    names = (spelled for name in PROXIES for spelled in (name, name.lower()))
    return [f"--build-arg={name}" for name in names if environ.get(name)]


def secret(name: str, path: Path) -> str:
    """The client reads this as a line of CSV, so that a path may hold a comma."""
    quoted = str(path).replace('"', '""')
    return f'id={name},"src={quoted}"'


def destination(folder: Path) -> str:
    """A line of CSV too."""
    quoted = str(folder).replace('"', '""')
    return f'type=local,"dest={quoted}"'


def _run(context: Path, place: BuildPlace, settings: BuildSettings, outcome: list[str], *, load: bool) -> None:
    program = docker_cli.find_cli(place.host, plugin=place.builder is not None, chosen=place.chosen)
    command = [*_start(program, place, settings, load=load), *outcome, *_options(settings), str(context)]
    stages, tail = Stages(settings.progress, settings.watch), buildkit_log.Tail()

    def each(line: str) -> None:
        if event := buildkit_log.parse(line):
            stages.add(event)
            tail.add(event)

    log = settings.log
    log.unlink(missing_ok=True)
    try:
        # The client cancels the build in BuildKit on SIGINT, which kills the processes of its steps.
        code = process.logged(command, _environment(place), log, each, settings.seconds)
    except BaseException as error:
        stages.end("interrupted" if isinstance(error, KeyboardInterrupt) else "failed")
        raise
    stages.end("done" if code == 0 else "failed")
    if code != 0:
        raise failure(tail.lines(), log)


def failure(lines: list[str], log: Path) -> TfbuildError:
    """The error that a failed build's last lines tell."""
    text = "".join(f"\n  {line}" for line in lines)
    if any("no space left on device" in line.lower() for line in lines):
        return DiskFull(f"the build ran out of disk space{text}", hint=f"docker builder prune; the full log: {log}")
    return BuildFailed(f"the image could not be built{text}", hint=f"the full log: {log}")


class Stages:
    """Tells `progress` of a Dockerfile's stages, out of BuildKit's events: one step a stage, not one an instruction."""

    def __init__(self, progress: Progress, watch: LogWatch | None = None) -> None:
        self._progress = progress
        self._watch = watch or Unwatched()
        self._titles: dict[int, str] = {}
        self._running: dict[str, Step] = {}
        # A stage's time is what BuildKit says of its instructions: it prints parallel stages one after the other.
        self._seconds: dict[str, float] = {}
        self._over: set[str] = set()

    def add(self, event: buildkit_log.Event) -> None:
        if event.kind == "start":
            self._titles[event.step] = event.text
        stage, detail, last = _place(self._titles.get(event.step, ""))
        if not stage or stage in self._over:
            return
        if stage not in self._running:
            self._running[stage] = self._progress.start(f"build: {stage}")
        if event.kind == "start":
            self._running[stage].detail = detail
        elif event.kind == "output" and event.text:
            self._printed(self._running[stage], event.text)
        elif event.kind == "done":
            self._seconds[stage] = self._seconds.get(stage, 0.0) + event.seconds
        elif event.kind in ("error", "canceled"):
            self._end(stage, "failed" if event.kind == "error" else "canceled")
        if event.kind in ("done", "cached"):
            self._past(stage, last)

    def _past(self, stage: str, last: bool) -> None:
        # Its next instruction can wait for another stage.
        self._running[stage].detail = ""
        if last:
            self._end(stage, "done" if stage in self._seconds else "cached")

    def _printed(self, step: Step, line: str) -> None:
        if shown := self._watch(line):
            # Of the stage that said so alone: what comes after a compile is not as far as that was.
            step.detail, step.share = shown, self._watch.share
        elif step.share is None:
            # A compiler's warnings do not take the place of how far the compile is.
            step.detail = line

    def _end(self, stage: str, outcome: str) -> None:
        if step := self._running.pop(stage, None):
            self._over.add(stage)
            took = self._seconds.get(stage, 0.0)
            self._progress.finish(step, outcome, took if outcome in ("done", "cached") else None)

    def end(self, outcome: str) -> None:
        """Ends what still runs."""
        for stage in list(self._running):
            self._end(stage, outcome)


def _place(title: str) -> tuple[str, str, bool]:
    """The stage that a step belongs to, what it does there, and whether it is the stage's last; no stage: internal."""
    if title.startswith("exporting"):
        return "export", "", True
    found = buildkit_log.instruction(title)
    if found is None:
        return "", "", False
    if found.text.startswith("FROM "):
        # All stages share it, and under concurrent builds BuildKit even gives it another build's stage name.
        return "base", found.text, True
    shown = textwrap.shorten(MOUNTS.sub("", found.text), WIDTH, placeholder=" ...")
    return found.stage, f"{found.index}/{found.count} {shown}", found.index == found.count
