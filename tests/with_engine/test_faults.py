"""Engines and terminals that end while tfbuild works: one message with the cause, and nothing stays behind."""

import gc
import os
import pty
import secrets
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.with_engine import second as seconds
from tests.with_engine.conftest import ROOT
from tests.with_engine.second import Second
from tfbuild.cli.options import certificates
from tfbuild.engine import Engine
from tfbuild.engine.build import BuildSettings
from tfbuild.errors import EngineMissing
from tfbuild.pipeline import base_image
from tfbuild.util.progress import Progress

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
        there.client.close()
        # The SDK leaves those sockets open that nobody answered.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()


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


@pytest.mark.nightly
def test_a_build_whose_client_was_too_slow_to_answer_goes_on(engine: Engine, base: str, tmp_path: Path) -> None:
    """As on a machine that has no time for the client while a step compiles for hours."""
    context, log, secret = tmp_path / "context", tmp_path / "log", tmp_path / "secret"
    context.mkdir()
    secret.write_text("secret")
    run = f"RUN echo running {secrets.token_hex(8)} && sleep 35\nRUN --mount=type=secret,id=x cat /run/secrets/x\n"
    (context / "Dockerfile").write_text(f"FROM {base}\n{run}")

    def stop() -> None:
        wait_until(lambda: " running " in (log.read_text() if log.is_file() else ""))
        clients = [
            int(path.parent.name) for path in Path("/proc").glob("[0-9]*/cmdline") if client in path.read_bytes()
        ]
        for pid in clients:
            os.kill(pid, signal.SIGSTOP)
        # The engine asks every 5 s, and waits for three answers.
        time.sleep(32)
        for pid in clients:
            os.kill(pid, signal.SIGCONT)

    client = f"{context}".encode()
    stopper = threading.Thread(target=stop)
    stopper.start()
    engine.build(context, BuildSettings(log=log, progress=Progress(), secrets={"x": secret}), tag="tfbuild-test:faults")
    stopper.join()
    assert log.read_text().count("no active session") > 0
    engine.remove("tfbuild-test:faults")


def wait_until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_an_engine_that_dies_during_a_run_is_told_as_the_cause(mortal: tuple[Second, Engine], base: str) -> None:
    second, there = mortal
    pid = int((second.folder / "pid").read_text())
    killer = threading.Timer(3, os.kill, (pid, signal.SIGKILL))
    killer.start()
    with pytest.raises(EngineMissing, match="no container engine answers"):
        there.run(base, ["sleep", "15"])


# --- runs that cannot clean up ----------------------------------------------------------------------------------------

# A worker that is paused does not notice that its run is gone.
PAUSED = """
import sys, time
from tfbuild.engine import Engine
with Engine.connect().worker(sys.argv[1], ["cat"]) as worker:
    worker.ask("started", 60)
    worker.pause()
    print(worker.name, flush=True)
    time.sleep(600)
"""


def paused(base: str) -> "subprocess.Popen[str]":
    return subprocess.Popen([sys.executable, "-c", PAUSED, base], cwd=ROOT, stdout=subprocess.PIPE, text=True)


def names(engine: Engine) -> list[str]:
    return [container.name for container in engine.client.containers.list(all=True, ignore_removed=True)]


@pytest.mark.alone  # every other run removes them too
def test_the_next_run_removes_the_containers_of_a_killed_one_and_no_others(engine: Engine, base: str) -> None:
    with paused(base) as killed, paused(base) as alive:
        assert killed.stdout is not None
        assert alive.stdout is not None
        dead, living = killed.stdout.readline().strip(), alive.stdout.readline().strip()
        try:
            killed.kill()
            killed.wait()
            assert dead in names(engine)
            Engine.connect()
            assert dead not in names(engine)
            assert living in names(engine)
        finally:
            alive.send_signal(signal.SIGINT)
            alive.wait()
    assert living not in names(engine)


@pytest.mark.alone  # it looks at all containers of the engine
def test_a_closed_terminal_leaves_no_container(engine: Engine, base: str) -> None:
    """As an emulator of a terminal ends: the kernel sends SIGHUP, and nothing can be written there any more."""
    before = {*names(engine)}
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(ROOT)
        code = "from tfbuild.engine import Engine\nfrom tfbuild.util.progress import Progress\nprogress = Progress()\n"
        code += f"with progress.step('x'): Engine.connect().run({base!r}, ['sleep', '600'], timeout=600)"
        os.execv(sys.executable, [sys.executable, "-c", code])
    wait_until(lambda: {*names(engine)} - before)
    os.close(terminal)
    os.waitpid(pid, 0)
    assert {*names(engine)} <= before
