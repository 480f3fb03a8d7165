"""Images that somebody removes while they are used."""

import secrets
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.with_engine.test_registry import build
from tfbuild.bench import session
from tfbuild.bench.session import Settings
from tfbuild.cli.options import certificates
from tfbuild.context import dockerfile
from tfbuild.context.labels import labels_of
from tfbuild.engine import Engine
from tfbuild.engine.build import BuildSettings
from tfbuild.errors import UnknownImage
from tfbuild.measure import experiments
from tfbuild.pipeline import base_image
from tfbuild.util.progress import Progress, Step
from tfbuild.verify import session as verifying

pytestmark = pytest.mark.engine
MEGABYTES = 8


class Removing(Progress):
    """Removes an image when the `number`-th step begins, as somebody else may at any time."""

    def __init__(self, engine: Engine, ref: str, number: int) -> None:
        super().__init__()
        self.engine, self.ref, self.left = engine, ref, number
        self._once = threading.Lock()

    def start(self, title: str) -> Step:
        with self._once:
            self.left -= 1
            if self.left == 0:
                self.engine.client.images.remove(self.ref, force=True)
        return super().start(title)


@pytest.fixture
def doomed(engine: Engine, tmp_path: Path) -> Iterator[str]:
    """An image with a build's labels and a shell, under a name of its own; nothing else has its id."""
    log, ref = tmp_path / "log", f"tfbuild-test:{secrets.token_hex(6)}"
    base = base_image.bootstrap(engine, "bookworm", progress=Progress(), log=log, ca_cert=certificates(""))
    context = tmp_path / "doomed"
    context.mkdir()
    (context / "content").write_bytes(secrets.token_bytes(MEGABYTES << 20))
    pairs = [
        f"{name}={dockerfile.quoted(value)}" for name, value in labels_of(build("avx")).items() if "$" not in value
    ]
    lines = (f"FROM {base.reference}", "COPY content /", f"LABEL {' '.join(pairs)}")
    (context / "Dockerfile").write_text("\n".join(lines) + "\n")
    image = engine.build(context, BuildSettings(log=log, progress=Progress(), no_cache=True), tag=ref)
    yield ref
    with suppress(UnknownImage):
        engine.remove(image)


@pytest.mark.parametrize("step", [1, 2])
def test_an_image_that_is_removed_under_verification_is_named(step: int, engine: Engine, doomed: str) -> None:
    with pytest.raises(UnknownImage) as error:
        verifying.verify(engine, doomed, progress=Removing(engine, doomed, step))
    assert error.value.exit_code == 25
    assert error.value.reason == f"{doomed} was removed while it was verified"
    assert error.value.hint == "invoke build makes it again"


def test_an_image_that_is_removed_before_it_is_measured_is_named(engine: Engine, doomed: str) -> None:
    settings, progress = Settings(mode="quick", budget=60), Removing(engine, doomed, 1)
    with pytest.raises(UnknownImage) as error:
        session.bench(engine, doomed, experiments.known()[:1], settings, progress, engine.require_answer)
    assert error.value.reason == f"{doomed} was removed while it was measured"
