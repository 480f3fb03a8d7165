"""The time limit of a compile holds whatever is done to the clock, and what else becomes of one that fails."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests import clock
from tests.clock import Stopped
from tfbuild import plan
from tfbuild.context import labels
from tfbuild.engine.build import BuildSettings
from tfbuild.engine.image import parse_image
from tfbuild.errors import BuildFailed, TimeUp
from tfbuild.pipeline import base_image, bazel, compiling
from tfbuild.pipeline.compiling import Builder, run_builder
from tfbuild.pipeline.run import Run
from tfbuild.plan import Request
from tfbuild.plan.remote_cache import Remote
from tfbuild.util.progress import Progress

LIMIT = 3600.0
HOURS = 5 * 3600.0


class Engine:
    """An engine whose builds fail, after something happened to the clock."""

    cpus, memory, local = 4, 16 << 30, True
    data_root = Path("/nonexistent")

    def __init__(self, happens: Callable[[], None]) -> None:
        self.happens = happens
        self.deadline = ""
        self.seconds: float | None = None

    def build(self, _: Path, settings: BuildSettings, *, tag: str, stage: str) -> None:
        assert tag
        assert not stage
        self.deadline = settings.secrets["deadline"].read_text()
        self.seconds = settings.seconds
        self.happens()
        raise BuildFailed("clang-16 crashed", hint="see the log")


def compile_on(engine: Any, folder: Path, mirror: str = "", remote: Remote | None = None) -> None:
    request = Request(target="cpu", release="2.13.1", cpu="x86-64-v3", platform="linux/amd64")
    settings = BuildSettings(log=folder / "log", progress=Progress())
    run = Run(seconds=LIMIT, work=folder, started=1000.0, mirror=mirror, remote=remote)
    run_builder(Builder(engine=engine), plan.select(request, None), run, folder, settings, tag="x")


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> Stopped:
    return clock.stop(monkeypatch, compiling)


@pytest.mark.parametrize("hours", [-HOURS, HOURS])
def test_a_clock_that_is_set_during_a_compile_does_not_change_its_limit(
    hours: float, stopped: Stopped, tmp_path: Path
) -> None:
    def clock_is_set() -> None:
        stopped.set_by += hours
        stopped.now += 10

    with pytest.raises(BuildFailed, match="clang-16 crashed"):
        compile_on(Engine(clock_is_set), tmp_path)

    def time_passes() -> None:
        stopped.set_by += hours
        stopped.now += LIMIT

    with pytest.raises(TimeUp, match="stopped at the time limit of 1 h 00 min"):
        compile_on(Engine(time_passes), tmp_path)


@pytest.mark.parametrize("mirror", ["", "http://127.0.0.1:1"])
def test_a_damaged_cache_is_why_a_build_failed_also_with_a_mirror(
    mirror: str, stopped: Stopped, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stopped.now
    engine = Engine(lambda: None)
    reason = "the image could not be built\n  mkdir: cannot create directory '/mnt/cache/0a': File exists"

    def failing(*_: object, **__: object) -> None:
        raise BuildFailed(reason, hint="see the log")

    monkeypatch.setattr(engine, "build", failing)
    with pytest.raises(BuildFailed) as error:
        compile_on(engine, tmp_path, mirror)
    assert error.value.reason.startswith("a cache of the builder is damaged: mkdir: ")
    assert error.value.hint == (
        "`docker builder prune --filter type=exec.cachemount` empties the builder's caches, and the same command fills "
        "them again; see the log"
    )


@pytest.mark.parametrize("stages", [["wheel", "kept"], ["fetch"]])
def test_a_run_that_only_downloads_is_not_asked_for_a_profile(
    stages: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported = []

    def export(_: Path, settings: BuildSettings, *, stage: str, output: Path) -> None:
        exported.append(stage)
        output.mkdir(parents=True)
        if settings.watch:
            settings.watch("Analyzing: target //tensorflow/tools/pip_package:build_pip_package (1 packages loaded)")

    engine = Engine(lambda: None)
    monkeypatch.setattr(engine, "export", export, raising=False)
    build = plan.select(Request(target="cpu", release="2.13.1", cpu="x86-64-v3", platform="linux/amd64"), None)
    settings, run = BuildSettings(log=tmp_path / "log", progress=Progress()), Run(work=tmp_path)
    builder = Builder(engine=cast("Any", engine))
    run_builder(builder, build, run, tmp_path, settings, stage=stages[0], output=tmp_path / "output")
    assert exported == stages


def test_a_lost_remote_cache_is_named_and_the_compile_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def build(_: Path, settings: BuildSettings, **__: object) -> None:
        assert settings.watch is not None
        settings.watch("tfbuild: the remote cache grpc://cache:1 does not answer: Connection refused")
        settings.watch(bazel.ALONE)

    engine = Engine(lambda: None)
    monkeypatch.setattr(engine, "build", build)
    compile_on(engine, tmp_path, remote=Remote(cache="grpc://cache:1"))
    assert "\nlost the remote cache grpc://cache:1; compiled the rest locally\n" in capsys.readouterr().err


def test_the_builder_gets_the_time_that_is_left(stopped: Stopped, tmp_path: Path) -> None:
    engine = Engine(lambda: None)
    stopped.now += 600
    with pytest.raises(BuildFailed):
        compile_on(engine, tmp_path)
    assert int(engine.deadline) == stopped.time() + LIMIT - 600
    assert engine.seconds == LIMIT - 600 + compiling.GRACE_SECONDS


@pytest.mark.parametrize(
    ("age", "fresh"),
    [
        (timedelta(days=6), True),
        # The engine's clock may be a little ahead of this one.
        (timedelta(minutes=-5), True),
        (timedelta(days=-400), False),
    ],
)
def test_a_base_that_a_wrong_clock_dated_far_ahead_is_made_again(age: timedelta, fresh: bool) -> None:
    created = (datetime.now(UTC) - age).isoformat()
    config = {"Labels": {labels.BASE: "bookworm"}}
    image = parse_image({"Id": "sha256:1", "Config": config, "Size": 1, "Architecture": "amd64", "Created": created})
    engine: Any = SimpleNamespace(platform="linux/amd64", image=lambda _: image)
    assert base_image._fresh(engine, "tfbuild-base:bookworm", "bookworm") == fresh
