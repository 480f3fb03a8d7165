"""A benchmark whose image or engine is gone measures nothing more, and keeps what it has."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tfbuild.bench.session import Session, Settings
from tfbuild.engine import Engine
from tfbuild.errors import DiskFull, EngineMissing, TfbuildError, UnknownImage
from tfbuild.measure import experiments
from tfbuild.measure.workers import Machine
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
