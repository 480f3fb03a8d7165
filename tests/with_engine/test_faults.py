"""Engines and terminals that end while tfbuild works: the cause is named, and no container stays."""

import gc
import os
import pty
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.with_engine import second as seconds
from tests.with_engine.conftest import ROOT
from tests.with_engine.second import Second
from tests.with_engine.test_engine import debian, started_by, wait_until
from tfbuild.engine import Engine
from tfbuild.engine.build import BuildSettings
from tfbuild.errors import EngineMissing
from tfbuild.util.progress import Progress

__all__ = ["debian"]  # a fixture
pytestmark = [pytest.mark.engine]


@pytest.fixture
def mortal(engine: Engine, debian: str) -> Iterator[tuple[Second, Engine]]:
    """An engine of its own, which a test may kill."""
    with seconds.engine() as found:
        there = Engine.connect(found.host)
        there.client.images.load(b"".join(engine.client.images.get(debian).save(named=debian)))
        yield found, there
        there.client.close()
        # The SDK leaves those sockets open that nobody answered.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()


def test_an_engine_that_dies_during_a_build_is_told_as_the_cause(
    mortal: tuple[Second, Engine], debian: str, tmp_path: Path
) -> None:
    second, there = mortal
    context = tmp_path / "context"
    context.mkdir()
    (context / "Dockerfile").write_text(f"FROM {debian}\nRUN echo running && sleep 15\n")
    log = tmp_path / "log"

    def kill() -> None:
        if wait_until(lambda: log.is_file() and " running\n" in log.read_text(), 60):
            os.kill(int((second.folder / "pid").read_text()), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(
        EngineMissing, match=r"the container engine (ended|stopped answering) during the build"
    ) as error:
        there.build(context, BuildSettings(log=log, progress=Progress(), tag="tfbuild-test:faults"))
    killer.join()
    assert error.value.exit_code == 20
    assert "invoke engine" in error.value.hint


# --- runs that cannot clean up ----------------------------------------------------------------------------------------


def test_a_closed_terminal_leaves_no_container(engine: Engine, debian: str) -> None:
    """As an emulator of a terminal ends: the kernel sends SIGHUP, and nothing can be written there any more."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(ROOT)
        code = "from tfbuild.engine import Engine\nfrom tfbuild.util.progress import Progress\nprogress = Progress()\n"
        code += f"with progress.step('x'): Engine.connect().run({debian!r}, ['sleep', '600'], timeout=600)"
        os.execv(sys.executable, [sys.executable, "-c", code])
    assert wait_until(lambda: started_by(engine, pid))
    os.close(terminal)
    os.waitpid(pid, 0)
    assert wait_until(lambda: not started_by(engine, pid))
