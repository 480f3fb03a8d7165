"""BuildKit's plain output, as recorded from real builds: tests/data/buildkit."""

import io
import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.commandline import executable
from tfbuild.engine import Engine, build
from tfbuild.engine.build import Event, Stages
from tfbuild.errors import BuildFailed, DiskFull, EngineMissing
from tfbuild.pipeline import bazel
from tfbuild.util.progress import Progress, Step

LOGS = Path(__file__).parents[1] / "data" / "buildkit"


def events(name: str) -> list[Event]:
    lines = (LOGS / f"{name}.log").read_bytes().decode().splitlines(keepends=True)
    return [event for line in lines if (event := build.parse(line))]


def shown(name: str, stream: io.StringIO | None = None) -> Stages:
    stages = Stages(Progress(stream or io.StringIO()))
    for event in events(name):
        stages.add(event)
    return stages


def progress_lines(name: str, outcome: str) -> list[str]:
    """Return what a build shows on a stream that is not a terminal, without its times."""
    stream = io.StringIO()
    shown(name, stream).end(outcome)
    return [re.sub(r" \([\d.]+ s\)", "", line) for line in stream.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("line", "event"),
    [
        ("#7 [wheel 2/5] RUN x\n", Event(kind="start", step=7, text="[wheel 2/5] RUN x")),
        ("#7 12.3 text\n", Event(kind="output", step=7, text="text")),
        ("#7 0.250   indented\n", Event(kind="output", step=7, text="  indented")),
        ("#7 0.250 \n", Event(kind="output", step=7, text="")),
        ("#7 DONE 3.4s\n", Event(kind="done", step=7, text="")),
        ("#7 CACHED\n", Event(kind="cached", step=7, text="")),
        ("#7 CANCELED\n", Event(kind="canceled", step=7, text="")),
        ("#7 ERROR: exit code: 7\n", Event(kind="error", step=7, text="exit code: 7")),
        ("#7 1.5 ERROR: a tool's own message\n", Event(kind="output", step=7, text="ERROR: a tool's own message")),
        ("#10 1.296 a\rb\rc\n", Event(kind="output", step=10, text="a")),
        ("#10 1.296 \x1b[31mred\x1b[0m\x07\n", Event(kind="output", step=10, text="red")),
        ("context canceled\n", Event(kind="text", step=0, text="context canceled")),
        ("#7 ...\n", None),
        ("#7 sha256:0123\n", None),
        ("View build details: docker-desktop://dashboard/build/default/default/t4gb7kf4\n", None),
        ("------\n", None),
        ("\n", None),
    ],
)
def test_a_line_is_read(line: str, event: Event | None) -> None:
    assert build.parse(line) == event


@pytest.mark.parametrize(
    ("title", "stage", "detail", "last"),
    [
        ("[wheel 2/5] RUN x", "wheel", "2/5 RUN x", False),
        ("[5/5] RUN [a]", "image", "5/5 RUN [a]", True),
        ("[linux/amd64 wheel 2/5] RUN x", "wheel", "2/5 RUN x", False),
        ("[wheel 1/5] FROM debian", "base", "FROM debian", True),
        ("[internal] load build context", "", "", False),
        ("exporting to image", "export", "", True),
    ],
)
def test_a_title_is_read(title: str, stage: str, detail: str, last: bool) -> None:
    assert build.parse_title(title) == (stage, detail, last)


@pytest.mark.parametrize("name", ["success", "buildx-success"])
def test_each_stage_is_shown_once(name: str) -> None:
    lines = progress_lines(name, "done")
    assert sorted(lines) == sorted(
        [f"build: {stage} ..." for stage in ("base", "runtime", "wheel", "export")]
        + ["build: base: cached", "build: runtime: done", "build: wheel: done", "build: export: done"]
    )


def test_cached_and_parallel_stages_are_shown_as_such() -> None:
    assert {"build: wheel: cached", "build: runtime: cached"} <= set(progress_lines("cached", "done"))
    assert {"build: left: done", "build: right: done"} <= set(progress_lines("parallel", "done"))


def recording(started: list[Step]) -> Progress:
    """Return a Progress that appends each step to `started` when it begins."""

    class Recording(Progress):
        def start(self, title: str) -> Step:
            started.append(super().start(title))
            return started[-1]

    return Recording(io.StringIO())


def test_a_step_shows_how_far_its_compile_is() -> None:
    started: list[Step] = []
    stages = Stages(recording(started), bazel.BazelWatch().show)
    for event in (
        Event(kind="start", step=7, text="[build 2/2] RUN sh /mnt/compile.sh"),
        Event(kind="output", step=7, text="[5,000 / 20,000] Compiling a.cc"),
        Event(kind="output", step=7, text="a.cc:1: warning: unused"),
    ):
        stages.add(event)
    assert started[0].detail.startswith("5,000 / 20,000 actions, 25 %")
    stages.add(Event(kind="start", step=8, text="[wheel 2/2] RUN pip install"))
    stages.add(Event(kind="output", step=8, text="Collecting numpy"))
    assert [step.title for step in started] == ["build: build", "build: wheel"]
    assert started[1].detail == "Collecting numpy"


@pytest.mark.parametrize("outcome", ["done", "cached"])
def test_a_long_instruction_is_shown_on_one_line_and_only_while_it_runs(outcome: str) -> None:
    started: list[Step] = []
    stages = Stages(recording(started))
    stages.add(Event(kind="start", step=7, text=f"[wheel 1/3] RUN --mount=type=tmpfs,target=/mnt apt-get {'x ' * 90}"))
    (step,) = started
    assert step.detail.startswith("1/3 RUN apt-get x x")
    assert step.detail.endswith(" ...")
    assert len(step.detail) < 70
    stages.add(Event(kind=outcome, step=7, text=""))
    assert step.detail == ""


def test_a_failed_stage_and_a_canceled_one_are_distinguished() -> None:
    lines = progress_lines("parallel-failure", "failed")
    assert "build: b: failed" in lines
    assert "build: a: canceled" in lines
    assert "build: runtime: canceled" in progress_lines("canceled", "interrupted")


@pytest.mark.parametrize("name", ["failure", "buildx-failure"])
def test_a_failure_ends_with_what_the_step_printed_and_the_reason(name: str) -> None:
    tail = shown(name)
    *printed, last = tail.last_lines()
    assert len(printed) == build.TAIL_LINES
    assert "ERROR: no matching distribution" in printed
    assert "line 30" in printed
    assert "line 1" not in printed
    assert last.endswith("exit code: 7")
    assert not any(line.startswith((" >", "---")) for line in [*printed, last])


def test_a_failure_outside_of_all_steps_is_reported() -> None:
    tail = shown("syntax")
    assert len(tail.last_lines()) == 1
    assert tail.last_lines()[0].endswith("unknown instruction: RUNX")


@pytest.mark.parametrize(
    "line",
    [
        "write /x: no space left on device",
        "tar: x: Cannot write: No space left on device",
        "OSError: [Errno 122] Disk quota exceeded",
        # apt, which then says that no repository is signed.
        "  Couldn't create temporary file /tmp/apt.conf.ovFiD6 for passing config to apt-key",
        "E: You don't have enough free space in /var/cache/apt/archives/.",
    ],
)
def test_a_full_disk_has_its_own_error(line: str) -> None:
    last = ["E: The repository 'http://x bookworm InRelease' is not signed.", "executor failed running [x]"]
    assert isinstance(build.failure([line, *last], Path("l")), DiskFull)
    other = build.failure(last, Path("/tmp/build.log"))
    assert isinstance(other, BuildFailed)
    assert last[1] in other.reason
    assert "/tmp/build.log" in other.hint


def test_proxies_are_passed_by_name_only(monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {"HTTPS_PROXY": "http://user:secret@proxy", "no_proxy": "localhost", "HTTP_PROXY": "", "PATH": "/bin"}
    monkeypatch.setattr(os, "environ", environ)
    options = build._options(build.BuildSettings(log=Path("log"), progress=Progress(io.StringIO()), tag="x"))
    assert options == ["--tag=x", "--progress=plain", "--build-arg=HTTPS_PROXY", "--build-arg=no_proxy"]


def test_a_secret_s_path_may_hold_commas_and_quotes() -> None:
    assert build.csv("src", Path('/a,b/"c"')) == '"src=/a,b/""c"""'


# --- a client that can build ------------------------------------------------------------------------------------------

BUILDX = 'if [ "$1" = buildx ]; then echo github.com/docker/buildx v0.12; exit; fi; '
NO_BUILDX = 'if [ "$1" = buildx ]; then echo "docker: unknown command: docker buildx" >&2; exit 1; fi; '
SERVER = 'if [ "$1" = version ]; then echo 20.10.24; exit; fi; '
NO_SERVER = 'if [ "$1" = version ]; then exit 1; fi; '


def client(folder: Path, version: str, rest: str = SERVER) -> str:
    executable(folder / "docker", f'if [ "$1" = --version ]; then echo "{version}"; exit; fi; {rest}\nexit 9')
    return str(folder)


def test_the_plan_decides_the_platform_and_saving_leaves_no_file_of_the_client_s_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = client(
        tmp_path,
        "Docker version 20.10.24, build x",
        f'{NO_BUILDX}{SERVER}[ "$1" != build ] || exec env; echo "$@"; exit',
    )
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("DOCKER_DEFAULT_PLATFORM", "linux/s390x")
    settings = build.BuildSettings(log=tmp_path / "log", progress=Progress(io.StringIO()), tag="x")
    build.build(tmp_path, os.environ, settings)
    assert "DOCKER_BUILDKIT=1\n" in (log := settings.log.read_text())
    assert "s390x" not in log
    Engine.save(SimpleNamespace(environ={**os.environ}), ["a", "b"], tmp_path / "saved")  # type: ignore[arg-type]
    assert (tmp_path / "saved").read_text() == "save a b\n"


NEW = "Docker version 23.0.0, build e92dd87"
OLD = "Docker version 20.10.24+dfsg1, build 297e128"
ANCIENT = "Docker version 17.12.1-ce, build 7390fc6"


@pytest.mark.parametrize(
    ("version", "rest", "buildx"),
    [
        (NEW, BUILDX + SERVER, True),
        (OLD, NO_BUILDX + SERVER, False),
        ("Docker version 18.09.1, build x", SERVER, False),
    ],
)
def test_a_client_with_buildkit_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, rest: str, buildx: bool
) -> None:
    folder = client(tmp_path / "a", version, rest)
    bare = client(tmp_path / "b", NEW, NO_BUILDX + SERVER)
    monkeypatch.setenv("PATH", f"{bare}:{folder}:/usr/bin:/bin")
    assert build.find_program(os.environ) == (f"{folder}/docker", buildx)
    commands = [build._client(os.environ, load=load) for load in (True, False)]
    assert [("--load" in command) for command in commands] == [buildx, False]
    assert [command[1:3] for command in commands] == [["buildx", "build"] if buildx else ["build"]] * 2


@pytest.mark.parametrize(
    ("version", "rest", "reason"),
    [
        (NEW, NO_BUILDX + SERVER, "23.0 has no buildx plugin"),
        ("podman version 4.3.1", BUILDX + SERVER, r"is not Docker's \(podman version 4\.3\.1\)"),
        ("$(printf '\\377')", BUILDX + SERVER, r"is not Docker's \("),
        (ANCIENT, BUILDX + SERVER, "17.12 has no buildx plugin"),
        (NEW, BUILDX + NO_SERVER, "gets no answer from the engine"),
    ],
)
def test_a_client_that_cannot_build_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, rest: str, reason: str
) -> None:
    monkeypatch.setenv("PATH", client(tmp_path / "a", version, rest) + ":/usr/bin:/bin")
    with pytest.raises(EngineMissing, match=f"a/docker {reason}") as caught:
        build.find_program(os.environ)
    assert "docker-buildx" in caught.value.hint
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineMissing, match="there is no docker program on PATH"):
        build.find_program(os.environ)
