"""Engines, disks and terminals that end while tfbuild works: the cause is named, and the same command goes on."""

import gc
import os
import pty
import signal
import subprocess
import sys
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.with_engine import mirror
from tests.with_engine import second as seconds
from tests.with_engine.conftest import ROOT, Site
from tests.with_engine.second import Second
from tests.with_engine.test_compile import RELEASE, small
from tests.with_engine.victim import Command, Victim, one_message, started
from tfbuild.cli.options import certificates
from tfbuild.engine import Engine
from tfbuild.engine.build import BuildSettings
from tfbuild.errors import DiskFull, EngineMissing, Interrupted
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
    with pytest.raises(
        EngineMissing, match=r"the container engine (ended|stopped answering) during the build"
    ) as error:
        there.build(context, BuildSettings(log=log, progress=Progress()), tag="tfbuild-test:faults")
    killer.join()
    assert error.value.exit_code == 20
    assert "invoke engine" in error.value.hint


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


def names(engine: Engine) -> list[str]:
    return [container.name for container in engine.client.containers.list(all=True, ignore_removed=True)]


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


# --- builds that are struck -------------------------------------------------------------------------------------------


@pytest.fixture
def victim(engine: Engine, site: Site) -> Iterator[Victim]:
    with started() as there:
        client = Engine.connect(there.found.host).client
        client.images.load(b"".join(engine.client.images.get(site.base).save(named=True)))
        client.close()
        yield there


@pytest.fixture
def compile_double(victim: Victim, site: Site, tmp_path: Path) -> Command:
    """Compiles the test double, and puts it into an image."""
    tree = small(tmp_path / "tree", uuid.uuid4().hex)
    words = (
        "build", "--target", "mkl", "--release", RELEASE, "--bazel", mirror.BAZEL, "--cpu", "westmere",
        "--compiler", "clang-16",
        "--source", str(tree), "--base", site.base, "--mirror", site.url, "--network", "host", "--need-disk", "1",
        "--no-verify", "--with-headers",
    )  # fmt: skip
    return Command.on(victim, tmp_path / "work", *words)


# As BuildKit's log names the first step of a stage; the last one writes the image.
STAGES = {
    "toolchain": r"\[toolchain 1/\d\] RUN",
    "compile": r"\[build 1/1\] RUN",
    "image": r"exporting (?:to image|layers)",
}
SIGNALS = (signal.SIGINT, signal.SIGKILL, signal.SIGHUP)
FULL = ("error: the build ran out of disk space", "error: the engine's disk is full")


def send(number: int, process: "subprocess.Popen[str]") -> None:
    process.send_signal(number)


@pytest.mark.nightly
def test_a_build_goes_on_from_each_stage_at_which_it_was_struck(victim: Victim, compile_double: Command) -> None:
    """Three times at each: the engine is killed, its disk is full, and a signal comes, each stage another one."""
    for stage, sent in zip(STAGES, SIGNALS, strict=True):
        # Writing the image can end before it is struck; then the command has ended well.
        early = {0} if stage == "image" else set()
        code, output = compile_double.run(STAGES[stage], lambda _: victim.kill())
        assert code in {EngineMissing.exit_code} | early, output[-3000:]
        assert code == 0 or one_message(output).startswith(
            "error: the container engine stopped answering during the build"
        )
        victim.restart()
        code, output = compile_double.run(STAGES[stage], lambda _: victim.fill())
        victim.clear()
        assert code in {DiskFull.exit_code} | early, output[-3000:]
        assert code == 0 or one_message(output).startswith(FULL), output[-3000:]
        code, output = compile_double.run(STAGES[stage], partial(send, sent))
        killed = sent == signal.SIGKILL
        assert code in {-sent if killed else Interrupted.exit_code} | early, output[-3000:]
    code, output = compile_double.run()
    assert code == 0, output[-6000:]
    there = Engine.connect(victim.found.host)
    assert [image.labels["io.tfbuild.id"] for image in there.labelled("io.tfbuild.id") if image.tags]
    there.client.close()
