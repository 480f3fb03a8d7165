"""The engine in memory, on which the pure tests of the pipeline build, answers what a real one answers."""

import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.pipeline.memory_engine import engine_at, row
from tests.with_engine.test_registry import build
from tests.with_engine.test_registry import made as made
from tfbuild.engine import Engine
from tfbuild.errors import TfbuildError
from tfbuild.pipeline import base_image
from tfbuild.util.progress import Progress

pytestmark = pytest.mark.engine
MISSING = "127.0.0.1:1/none:1"
LABEL = "io.tfbuild.id"


def answers(engine: Engine, first: str, second: str) -> list[object]:
    """What an engine that has these two images says, question by question; of a refusal, its kind."""
    said: list[object] = []
    repository = f"tfbuild-test-{secrets.token_hex(4)}"
    one, other = f"{repository}:one", f"{repository}:other"

    def ask(question: Callable[[], object]) -> None:
        try:
            said.append(question())
        except TfbuildError as error:
            said.append(type(error).__name__)

    def names(image: str) -> list[str]:
        return sorted(name.rpartition(":")[2] for name in engine.image(image).tags if name.startswith(repository))

    first, second = engine.image(first).id, engine.image(second).id
    try:
        ask(lambda: engine.exists(MISSING))
        ask(lambda: engine.image(MISSING))
        ask(lambda: engine.tag(MISSING, one))
        ask(lambda: engine.tag(first, one))
        ask(lambda: engine.tag(one, other))
        ask(lambda: names(first))
        ask(lambda: engine.tag(second, one))
        ask(lambda: (names(first), names(second), engine.image(one).id == second))
        ask(lambda: engine.untag(other))
        ask(lambda: (names(first), engine.exists(other), engine.exists(first)))
        ask(lambda: engine.untag(other))
        ask(lambda: {first, second} <= {image.id for image in engine.labelled(LABEL)})
        ask(lambda: engine.labelled("io.tfbuild.nobody-has-this"))
        ask(lambda: engine.pull(MISSING, Progress()))
        ask(lambda: base_image.from_registry(engine, MISSING, Progress()))
    finally:
        for name in (one, other):
            with suppress(TfbuildError):
                engine.untag(name)
    return said


def test_the_engine_in_memory_answers_as_a_real_one(engine: Engine, made: Callable[..., str], tmp_path: Path) -> None:
    memory = engine_at(tmp_path)
    memory.images.rows += [row(name, Config={"Labels": {LABEL: name}}) for name in ("first:1", "second:1")]
    real = answers(engine, made(build("avx")), made(build("x86-64-v2")))
    assert answers(memory, "first:1", "second:1") == real
    assert "UnknownImage" in real
    assert "TransferFailed" in real
