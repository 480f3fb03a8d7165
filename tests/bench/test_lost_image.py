"""A benchmark whose image or engine is gone measures nothing more, and keeps what it has."""

from typing import Any, cast

import pytest

from tfbuild.bench.session import Session, Settings
from tfbuild.engine import Engine
from tfbuild.errors import EngineMissing
from tfbuild.measure import experiments
from tfbuild.measure.sides import Machine
from tfbuild.util.progress import Progress


class FakeEngine:
    def __init__(self, answer: bool | Exception) -> None:
        self.answer = answer

    def exists(self, ref: str) -> bool:
        assert ref == "sha256:1"
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize("answer", [False, EngineMissing("no container engine answers")], ids=["image", "engine"])
def test_nothing_more_is_measured(answer: Any) -> None:
    machine = Machine(image="sha256:1", against="", cpus=2, gpus=0)
    engine = cast(Engine, FakeEngine(answer))
    session = Session(engine, Settings(mode="quick", budget=60), machine, Progress())
    session.run(experiments.known())
    assert session.interrupted
    assert session.done == ()
