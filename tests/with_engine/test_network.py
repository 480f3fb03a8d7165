"""Networks that break between an engine and a registry: the cause is told, and the same command ends well later."""

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.with_engine import registry as registries
from tests.with_engine.registry import Narrow, Server
from tests.with_engine.test_registry import build, made, push
from tfbuild.engine import Engine, transfer
from tfbuild.errors import RegistryRefused, UnknownImage
from tfbuild.pipeline import base_image
from tfbuild.util.progress import Progress

__all__ = ["made"]  # a fixture
pytestmark = [pytest.mark.engine, pytest.mark.nightly]
# More than the sockets on the way hold.
MEGABYTES = 64


def kill_when_held(server: Server, narrow: Narrow) -> None:
    narrow.held.wait()
    server.kill()
    narrow.opened.set()


@pytest.mark.parametrize(
    ("stalls", "cause"), [(True, "the transfer stalled: the engine reports no progress"), (False, "EOF")]
)
def test_a_base_whose_pull_breaks_is_told_by_its_cause_and_the_next_run_has_it(
    stalls: bool,
    cause: str,
    engine: Engine,
    made: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where a registry is gone, the engine itself tries several times."""
    monkeypatch.setattr(transfer, "TRIES", 1)
    folder = tmp_path / "registry"
    folder.mkdir()
    with registries.serve(folder) as server, registries.narrow(server, megabytes=MEGABYTES // 2) as (port, narrow):
        image = made(build("avx"), megabytes=MEGABYTES, imported=True)
        digest = push(engine, image, server.place(), tmp_path).digest
        engine.remove(image)
        name = f"127.0.0.1:{port}/us/tensorflow@{digest}"
        if not stalls:
            threading.Thread(target=kill_when_held, args=(server, narrow)).start()
        with base_image._answer_within(engine, 10 if stalls else 120), pytest.raises(RegistryRefused) as error:
            base_image.by_name(engine, name, Progress())
        assert narrow.held.is_set()
        assert error.value.exit_code == 26
        assert error.value.reason.startswith(f"image {name} is not on this engine and cannot be pulled (")
        assert cause in error.value.reason
        assert error.value.hint.startswith("the same command continues where it stopped")
        assert not engine.exists(name)
        if stalls:
            narrow.opened.set()
        else:
            server.start()
        try:
            assert base_image.by_name(engine, name, Progress()).digest == digest
        finally:
            with suppress(UnknownImage):
                engine.remove(name)
