"""Engines and terminals that end while tfbuild works: one message with the cause, and nothing stays behind."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.with_engine import second as seconds
from tests.with_engine.second import Second
from tfbuild.cli.options import certificates
from tfbuild.engine import Engine, Progress
from tfbuild.engine.build import BuildSettings
from tfbuild.errors import EngineMissing
from tfbuild.pipeline import base_image

pytestmark = [pytest.mark.engine]
SECONDS = 60.0


@pytest.fixture(scope="module")
def base(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> str:
    log = tmp_path_factory.mktemp("base") / "log"
    return base_image.bootstrap(engine, "bookworm", progress=Progress(), log=log, ca_cert=certificates("")).reference


@pytest.fixture
def mortal(engine: Engine, base: str) -> Iterator[tuple[Second, Engine]]:
    """An engine of its own, which a test may kill."""
    with seconds.engine() as found:
        there = Engine.connect(found.host)
        there.client.images.load(b"".join(engine.client.images.get(base).save(named=True)))
        yield found, there


def test_an_engine_that_dies_during_a_build_is_told_as_the_cause(
    mortal: tuple[Second, Engine], base: str, tmp_path: Path
) -> None:
    second, there = mortal
    context = tmp_path / "context"
    context.mkdir()
    (context / "Dockerfile").write_text(f"FROM {base}\nRUN echo running && sleep 15\n")
    log = tmp_path / "log"

    def kill() -> None:
        deadline = time.monotonic() + SECONDS
        while " running\n" not in (log.read_text() if log.is_file() else "") and time.monotonic() < deadline:
            time.sleep(0.2)
        os.kill(int((second.folder / "pid").read_text()), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(EngineMissing, match="the container engine ended during the build") as error:
        there.build(context, BuildSettings(log=log, progress=Progress()), tag="tfbuild-test:faults")
    killer.join()
    assert error.value.exit_code == 20
    assert str(log) in error.value.hint
