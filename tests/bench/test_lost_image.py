"""A benchmark whose image or engine is gone measures nothing more, and keeps what it has."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.bench.test_report import case, experiment, report
from tfbuild.bench import command, session
from tfbuild.bench.session import Session, Settings
from tfbuild.context import labels
from tfbuild.engine import Engine
from tfbuild.errors import DiskFull, EngineMissing, TfbuildError, UnknownImage
from tfbuild.measure import experiments
from tfbuild.measure.sides import Machine
from tfbuild.util.progress import Progress


def gone(error: TfbuildError) -> Callable[..., Any]:
    def fail(*_: object) -> None:
        raise error

    return fail


MISSING, UNKNOWN = gone(EngineMissing("no container engine answers")), gone(UnknownImage("no image"))


@pytest.mark.parametrize(("engine", "image"), [(MISSING, id), (gone(DiskFull("full")), id), (id, UNKNOWN)])
def test_nothing_more_is_measured(engine: Callable[..., Any], image: Callable[..., Any]) -> None:
    machine = Machine(image="sha256:1", against="", cpus=2, gpus=0)
    connected = cast(Engine, SimpleNamespace(image=image))
    run = Session(connected, Settings(mode="quick", budget=60), machine, Progress(), lambda: engine(None))
    run.run(experiments.known())
    assert run.interrupted
    assert run.done == ()


def test_an_image_that_is_removed_meanwhile_is_named_and_the_report_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = SimpleNamespace(image=UNKNOWN, exists=lambda _: False, watched=lambda _: nullcontext(lambda: None))
    monkeypatch.setattr(Engine, "connect", lambda: engine)
    monkeypatch.setattr(labels, "find_image", lambda _, name: name)
    monkeypatch.setattr(session, "bench", lambda *_: report(experiment("onednn", case(0.5))))
    with pytest.raises(UnknownImage, match=rf"tfbuild:x was removed while it was measured; .* in {tmp_path}/") as error:
        command.run("tfbuild:x", [], Settings(mode="quick", budget=60), tmp_path, json=True)
    assert error.value.hint == "invoke build makes it again"
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".html"}
