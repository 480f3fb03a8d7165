"""Build with BuildKit through the `docker` program: the SDK has only the classic builder.

Recorded samples of its output: tests/data/buildkit.
"""

import os
import re
import shutil
import textwrap
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tfbuild.engine import connection
from tfbuild.engine.faults import PRUNE
from tfbuild.errors import BuildFailed, DiskFull, EngineMissing, TfbuildError
from tfbuild.util import process
from tfbuild.util.progress import Progress, Step

# --- the program ------------------------------------------------------------------------------------------------------

# The client can use BuildKit since 18.09; since 23.0, only through the buildx plugin
# (https://docs.docker.com/engine/release-notes/23.0/).
BUILDKIT_INSIDE = (18, 9)
BUILDX_ONLY = (23, 0)
VERSION = re.compile(r"Docker version (\d+)\.(\d+)")
CLIENTS = (
    "install the package docker-buildx (Debian 13, Ubuntu), docker-buildx-plugin (Docker's own repository) or "
    "docker.io (Debian 12)"
)


def find_program(environ: Mapping[str, str]) -> tuple[str, bool]:
    """Return the first `docker` on PATH that can build with BuildKit on the engine that this environment names.

    And whether it does so through its plugin buildx, or BuildKit is inside. Raises EngineMissing if there is none.
    """
    return _find_program(frozenset(environ.items()))


@cache
def _find_program(environ: frozenset[tuple[str, str]]) -> tuple[str, bool]:
    env, refused = dict(environ), []
    folders = env.get("PATH", os.defpath).split(os.pathsep)
    for path in filter(None, (shutil.which("docker", path=folder) for folder in folders)):
        said = process.printed([path, "--version"], env)
        version = VERSION.match(said)
        if version is None:  # such as the one of podman-docker
            what = (said.splitlines() or ["it prints no version"])[0][:80]
            refused.append(f"{path} is not Docker's ({what})")
            continue
        major_minor = (int(version[1]), int(version[2]))
        buildx = major_minor >= BUILDX_ONLY
        if major_minor < BUILDKIT_INSIDE or (buildx and not process.printed([path, "buildx", "version"], env)):
            refused.append(f"{path} {'.'.join(map(str, major_minor))} has no buildx plugin")
        elif not process.printed([path, "version", "--format", "{{.Server.Version}}"], env):
            refused.append(f"{path} gets no answer from the engine (docker version says why)")
        else:
            return path, buildx
    why = ", ".join(refused) or "there is no docker program on PATH"
    raise EngineMissing(f"no docker program can build with BuildKit here: {why}", hint=CLIENTS)


# --- its output -------------------------------------------------------------------------------------------------------

STEP_LINE = re.compile(r"#(?P<step>\d{1,9}) (?P<rest>.*)")
TIMED_LINE = re.compile(r"\d+\.\d+(?: (.*))?")
ENDED = re.compile(r"(?:(?P<done>DONE) \d+(?:\.\d+)?s|(?P<cached>CACHED)|(?P<canceled>CANCELED)|ERROR: (?P<error>.*))$")
# "[wheel 2/5] RUN ...", "[2/5] RUN ..." and, where several platforms are built, "[linux/amd64 wheel 2/5] RUN ...".
INSTRUCTION = re.compile(r"\[(?:(?P<stage>[^\]]*?) )?(?P<index>\d{1,9})/(?P<count>\d{1,9})\] (?P<text>.*)")
# Terminal control sequences, and all control characters except tab, in the output of a build step.
CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\x00-\x08\x0a-\x1f\x7f]")
UNNAMED_STAGE = "image"
TAIL_LINES = 20
# Progress shows an instruction on one line of at most this width, without its mounts.
MOUNTS = re.compile(r"--mount=\S+\s*")
DETAIL_WIDTH = 60
# Takes each line that a step prints, and shows in the step what is to be seen of it.
Watch = Callable[[Step, str], None]


@dataclass(frozen=True, kw_only=True)
class Event:
    """`kind`: "start" (title in `text`), "output", "done", "cached", "canceled", "error"; "text" belongs to no step."""

    kind: str
    step: int
    text: str


def parse(line: str) -> Event | None:
    """Return the event of one line; None for a line without information (blank, a digest, a switch between steps)."""
    # A progress bar redraws its line by carriage returns.
    line = CONTROL.sub("", line.rstrip("\r\n").partition("\r")[0]).rstrip()
    match = STEP_LINE.fullmatch(line)
    if match is None:
        # Skip rules, the title above the last lines of a failed step, which BuildKit repeats, and Docker Desktop's link
        # to the build, which its client prints below the reason (docker/buildx, util/desktop/desktop.go).
        skipped = not line.strip("- ") or line.startswith((" > [", "View build details: "))
        return None if skipped else Event(kind="text", step=0, text=line)
    step, rest = int(match["step"]), match["rest"].strip()
    if not rest or rest == "..." or rest.startswith("sha256:"):
        return None
    if ended := ENDED.fullmatch(rest):
        kind = next(name for name, value in ended.groupdict().items() if value is not None)
        return Event(kind=kind, step=step, text=ended["error"] or "")
    if timed := TIMED_LINE.fullmatch(rest):
        return Event(kind="output", step=step, text=timed[1] or "")
    kind = "start" if rest.startswith(("[", "exporting")) else "output"
    return Event(kind=kind, step=step, text=rest)


class Stages:
    """Shows BuildKit's events in `progress`, one step per stage, and keeps what explains a failure."""

    def __init__(self, progress: Progress, watch: Watch = lambda *_: None) -> None:
        self._progress = progress
        self._watch = watch
        self._titles: dict[int, str] = {}
        self._running: dict[str, Step] = {}
        self._worked: set[str] = set()
        self._finished: set[str] = set()
        self._output: dict[int, deque[str]] = {}
        self._failed: list[int] = []
        self._text: deque[str] = deque(maxlen=TAIL_LINES)

    def add(self, event: Event) -> None:
        """Show what the event changes, and remember what may explain a failure."""
        if event.kind == "output":
            self._output.setdefault(event.step, deque(maxlen=TAIL_LINES)).append(event.text)
        elif event.kind == "error":
            self._failed.append(event.step)
        elif event.kind in ("done", "cached"):
            self._output.pop(event.step, None)
        elif event.kind == "text":
            self._text.append(event.text)
        self._show(event)

    def last_lines(self) -> list[str]:
        """Return the lines that explain a failure: the output of the failed steps, then the client's last line."""
        printed = [line for step in self._failed for line in self._output.get(step, ()) if line.strip()]
        texts = list(self._text)[-1:] if printed else list(self._text)
        return [*printed[-TAIL_LINES:], *texts]

    def _show(self, event: Event) -> None:
        if event.kind == "start":
            self._titles[event.step] = event.text
        stage, detail, last = parse_title(self._titles.get(event.step, ""))
        if not stage or stage in self._finished:
            return
        if stage not in self._running:
            self._running[stage] = self._progress.start(f"build: {stage}")
        step = self._running[stage]
        if event.kind == "start":
            step.detail = detail
        elif event.kind == "output" and event.text:
            self._watch(step, event.text)
        elif event.kind in ("error", "canceled"):
            self._end(stage, "failed" if event.kind == "error" else "canceled")
        elif event.kind in ("done", "cached"):
            if event.kind == "done":
                self._worked.add(stage)
            # The next instruction may have to wait for another stage.
            step.detail = ""
            if last:
                self._end(stage, "done" if stage in self._worked else "cached")

    def _end(self, stage: str, outcome: str) -> None:
        self._finished.add(stage)
        self._progress.finish(self._running.pop(stage), outcome)

    def end(self, outcome: str) -> None:
        """End the stages that still run."""
        for stage in list(self._running):
            self._end(stage, outcome)


def parse_title(title: str) -> tuple[str, str, bool]:
    """Return a step's stage, what it does, and whether it is the stage's last; BuildKit's internal steps have no stage.

    A FROM step belongs to "base", which all stages share: in concurrent builds, BuildKit gives it the name of another
    build's stage.
    """
    if title.startswith("exporting"):
        return "export", "", True
    match = INSTRUCTION.fullmatch(title)
    if match is None:
        return "", "", False
    if match["text"].startswith("FROM "):
        return "base", match["text"], True
    stage = (match["stage"] or "").split(" ")[-1] or UNNAMED_STAGE
    text = textwrap.shorten(MOUNTS.sub("", match["text"]), DETAIL_WIDTH, placeholder=" ...")
    return stage, f"{match['index']}/{match['count']} {text}", int(match["index"]) == int(match["count"])


# --- a build ----------------------------------------------------------------------------------------------------------

# Docker predefines these build arguments: they reach RUN and stay out of the image's history.
# https://docs.docker.com/build/building/variables/#pre-defined-build-arguments
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY")
PROXIES = (*_PROXIES, *map(str.lower, _PROXIES))
# As the kernel, a quota and apt say it; apt also calls repositories unsigned, because it cannot check them.
NO_SPACE = re.compile(
    r"no space left on device|disk quota exceeded|couldn't create temporary file|you don't have enough free space", re.I
)


@dataclass(frozen=True, kw_only=True)
class BuildSettings:
    """Settings of a build beside its context; see Engine.build.

    `tag`: the image's name; `stage`: what is built ("" for the last stage); `output`: a folder that gets its files, in
    place of an image. `labels`: added to those of the Dockerfile; they leave no step in the image's history.
    `seconds`: the time limit; None for no limit.
    """

    log: Path
    progress: Progress
    tag: str = ""
    stage: str = ""
    output: Path | None = None
    build_args: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, Path] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    network: str = ""
    no_cache: bool = False
    watch: Watch = lambda *_: None
    seconds: float | None = None


def build(context: Path, environ: Mapping[str, str], settings: BuildSettings) -> None:
    """Build `context` on the engine that `environ` names; see Engine.build."""
    command = [*_client(environ, load=settings.output is None), *_options(settings), str(context)]
    # With attestations, an image's id would be that of an index, which holds a time.
    env = {**environ, "DOCKER_BUILDKIT": "1", "BUILDX_NO_DEFAULT_ATTESTATIONS": "1"}
    env.pop("DOCKER_DEFAULT_PLATFORM", None)  # the plan decides
    process.discard(settings.log)
    _run(command, env, settings)


def _client(environ: Mapping[str, str], *, load: bool) -> list[str]:
    program, buildx = find_program(environ)
    if not buildx:
        return [program, "build"]
    # The engine's own builder, whichever is current: it has the bases that were made here, and keeps the image.
    name = connection.endpoint(environ).context or connection.DEFAULT
    return [program, "buildx", "build", *(["--load"] if load else []), f"--builder={name}"]


def _options(settings: BuildSettings) -> list[str]:
    return [
        "--output=type=local," + csv("dest", settings.output) if settings.output else f"--tag={settings.tag}",
        *([f"--target={settings.stage}"] if settings.stage else []),
        "--progress=plain",
        *(["--no-cache"] if settings.no_cache else []),
        *([f"--network={settings.network}"] if settings.network else []),
        # By their names alone, because a value may hold a password.
        *(f"--build-arg={name}" for name in PROXIES if os.environ.get(name)),
        *(f"--build-arg={name}={value}" for name, value in settings.build_args.items()),
        *(f"--label={name}={value}" for name, value in settings.labels.items()),
        *(f"--secret=id={name},{csv('src', path)}" for name, path in settings.secrets.items()),
    ]


def csv(name: str, path: Path) -> str:
    """Return `"NAME=PATH"` as a field of CSV, which the client reads: a path may have commas and quotes."""
    quoted = str(path).replace('"', '""')
    return f'"{name}={quoted}"'


def _run(command: list[str], env: Mapping[str, str], settings: BuildSettings) -> None:
    """Run the client. Raises the failure() of a build."""
    stages = Stages(settings.progress, settings.watch)

    def read(line: str) -> None:
        if event := parse(line):
            stages.add(event)

    try:
        # On SIGINT the client cancels the build in BuildKit, which kills the processes of its steps.
        code = process.logged(command, env, settings.log, read, settings.seconds)
    except BaseException as error:
        stages.end("interrupted" if isinstance(error, KeyboardInterrupt) else "failed")
        raise
    stages.end("done" if code == 0 else "failed")
    if code:
        raise failure(stages.last_lines(), settings.log)


def failure(
    lines: list[str], log: Path, *, what: str = "the image could not be built", free: str = PRUNE
) -> TfbuildError:
    """Return the error for a failed build with these last lines; `free`: what to do about a full disk."""
    text = "".join(f"\n  {line}" for line in lines)
    if any(NO_SPACE.search(line) for line in lines):
        return DiskFull(f"the build ran out of disk space{text}", hint=f"{free}; the full log: {log}")
    return BuildFailed(f"{what}{text}", hint=f"the full log: {log}")
