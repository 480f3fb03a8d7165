"""A benchmark whose image or engine is gone measures nothing more, and keeps what it has."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.bench.test_report import case, experiment, report
from tfbuild.bench import command, session
from tfbuild.bench.session import Session, Settings
from tfbuild.context import labels
from tfbuild.engine import Engine
from tfbuild.errors import EngineMissing, UnknownImage
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
    run = Session(engine, Settings(mode="quick", budget=60), machine, Progress())
    run.run(experiments.known())
    assert run.interrupted
    assert run.done == ()


def test_an_image_that_is_removed_meanwhile_is_named_and_the_report_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def image(ref: str) -> None:
        raise UnknownImage(f"no image {ref} on this engine", hint="")

    engine = SimpleNamespace(image=image, exists=lambda _: False)
    monkeypatch.setattr(Engine, "connect", lambda: engine)
    monkeypatch.setattr(labels, "find_image", lambda _, name: name)
    monkeypatch.setattr(session, "bench", lambda *_: report(experiment("onednn", case(0.5))))
    with pytest.raises(UnknownImage, match=rf"tfbuild:x was removed while it was measured; .* in {tmp_path}/") as error:
        command.run("tfbuild:x", [], Settings(mode="quick", budget=60), tmp_path, json=True)
    assert error.value.hint == "invoke build makes it again"
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".md", ".html"}
