"""What can end a verification or its tagging from outside: no verdict on the image, and the same command ends well.

All on an engine of its own, which builds an image once. The command is the same throughout: its build is cached, so
that it begins to verify at once.
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.with_engine import second
from tests.with_engine.conftest import ROOT
from tests.with_engine.second import Second
from tests.with_engine.test_build import ID, RELEASE
from tests.with_engine.test_fault_matrix import Victim, one_message
from tfbuild.cli.options import certificates
from tfbuild.context.labels import CONTAINER, UNVERIFIED
from tfbuild.engine import Engine
from tfbuild.errors import EngineMissing
from tfbuild.pipeline import base_image
from tfbuild.util.progress import Progress
from tfbuild.verify.checks import CHECKS

pytestmark = [pytest.mark.engine, pytest.mark.nightly]
SECONDS = 1200.0
Strike = Callable[["subprocess.Popen[str]"], None]
NAME, UNNAMED = f"tfbuild:{ID}", f"tfbuild:{ID}{UNVERIFIED}"
# How many containers of the verification run when a check is struck; 0 for one that only reads files of the image.
RUNNING = {
    "guard": 1, "interpreter": 0, "import": 1, "isa": 0, "code": 0, "onednn": 1, "tcmalloc": 1, "numerics": 1,
    "throughput": 3,
}  # fmt: skip
SWEPT = re.compile(r"^removed \d+ containers of runs that were killed$", re.MULTILINE)
# It is `invoke`, but for what surrounds the tagging. Of the checks only the first one is run: others are struck above.
TAGGING = """
import os, signal, sys, time
from invoke.main import program
from tfbuild.engine import Engine
from tfbuild.verify import session

def struck(self, ref, new):
    if moment == "after":
        tag(self, ref, new)
    os.kill(int(pid), signal.SIGKILL)
    while open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)
    if moment == "before":
        tag(self, ref, new)

_, moment, pid, *words = sys.argv
sys.argv = ["invoke", *words]
tag, Engine.tag = Engine.tag, struck
session.CHECKS = session.CHECKS[:1]
program.run()
"""


@pytest.fixture(scope="module")
def victim(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    """With the base image that the command names; its containers see this machine's CPU."""
    log = tmp_path_factory.mktemp("base") / "log"
    base = base_image.bootstrap(engine, "bookworm", progress=Progress(), log=log, ca_cert=certificates("")).reference
    with second.place() as (folder, bridge):
        second.certificates(folder / "tls")
        found = Second(folder=folder, host=f"unix://{folder}/docker.sock", port=free_port())
        there = Victim(found, bridge, other_cpu=False)
        try:
            client = Engine.connect(found.host).client
            client.images.load(b"".join(engine.client.images.get(base).save(named=True)))
            client.images.get(engine.image(base).id).tag("tfbuild-test", "base")
            client.close()
            yield there
        finally:
            there.close()


@dataclass(frozen=True, kw_only=True)
class Command:
    """`invoke build` in a folder of its own, on the victim; `program`: in place of Invoke's."""

    folder: Path
    env: dict[str, str]
    program: tuple[str, ...] = (sys.executable, "-m", "invoke")

    def run(self, step: str = "", strike: Strike = lambda _: None) -> tuple[int, str]:
        """Run it, strike in the step, and return the exit code and what was printed."""
        words = ("build", "--target", "mkl", "--wheel", "official", "--release", RELEASE, "--base", "tfbuild-test:base")
        with subprocess.Popen(
            [*self.program, "--search-root", str(ROOT), *words, "--network", "host", "--need-disk", "1"],
            cwd=self.folder, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        ) as process:  # fmt: skip
            lines, timer = [], threading.Timer(SECONDS, process.kill)
            timer.start()
            try:
                for line in process.stdout or ():
                    lines.append(line)
                    if line == f"verify: {step} ...\n":
                        strike(process)
                process.wait()
            finally:
                timer.cancel()
                process.kill()
        output = "".join(lines)
        assert not step or f"verify: {step} ..." in output, output[-6000:]
        return process.returncode, output

    @property
    def reports(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob("reports/*"))


@pytest.fixture(scope="module")
def command(victim: Victim, tmp_path_factory: pytest.TempPathFactory) -> Command:
    folder, temporary = tmp_path_factory.mktemp("work"), tmp_path_factory.mktemp("tmp")
    return Command(folder=folder, env=os.environ | {"DOCKER_HOST": victim.found.host, "TMPDIR": str(temporary)})


def at_work(victim: Victim, step: str, strike: Strike) -> Strike:
    """Strike as soon as the containers of the step run."""

    def wait_and_strike(process: "subprocess.Popen[str]") -> None:
        there, deadline = Engine.connect(victim.found.host), time.monotonic() + SECONDS
        while len(there.client.containers.list(filters={"label": CONTAINER}, sparse=True)) < RUNNING[step]:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        there.client.close()
        strike(process)

    return wait_and_strike


def kept(victim: Victim) -> set[str]:
    """The names of tfbuild's images on the victim, and none of its containers is left after this."""
    there = Engine.connect(victim.found.host)
    names = {name for image in there.labelled("io.tfbuild.id") for name in image.tags}
    assert there.client.containers.list(all=True, filters={"label": CONTAINER}) == []
    there.client.close()
    return names


def test_a_verification_that_is_struck_at_any_check_is_no_verdict(victim: Victim, command: Command) -> None:
    """In turn the process is killed, the engine is killed, and the engine is killed and is back at once.

    The next run goes on past that check.
    """
    assert {check.name for check in CHECKS} == {*RUNNING, "cuda"}
    for turn, step in enumerate(RUNNING):
        if turn % 3 == 0:
            code, output = command.run(step, at_work(victim, step, subprocess.Popen.kill))
            assert code == -signal.SIGKILL, output[-3000:]
        elif turn % 3 == 1:
            code, output = command.run(step, at_work(victim, step, lambda _: victim.kill()))
            # What the run before left, which was killed.
            assert SWEPT.search(output), output[-3000:]
            assert code == EngineMissing.exit_code, output[-3000:]
            assert one_message(output).startswith("error: the container engine stopped answering during verification: ")
            victim.restart()
        else:
            code, output = command.run(step, at_work(victim, step, lambda _: victim.replace()))
            assert code == EngineMissing.exit_code, output[-3000:]
            assert one_message(output).startswith("error: the container engine "), output[-3000:]
            assert "during verification" in one_message(output)
        if turn % 3:
            assert kept(victim) == {UNNAMED}, step
        assert command.reports == []
    code, output = command.run()
    assert code == 0, output[-6000:]
    assert kept(victim) == {NAME}
    assert command.reports == [f"{ID}.{kind}" for kind in ("html", "json", "md")]
    assert not [*Path(command.env["TMPDIR"]).iterdir()]


def test_a_tagging_that_is_struck_is_done_by_the_next_run(victim: Victim, command: Command) -> None:
    """The engine is killed just before the image gets its name, then just after."""
    there = Engine.connect(victim.found.host)
    if there.exists(NAME):
        there.untag(NAME)
    there.client.close()
    for path in command.folder.glob("reports/*"):
        path.unlink()
    for moment, names in (("before", {UNNAMED}), ("after", {UNNAMED, NAME})):
        pid = (victim.found.folder / "pid").read_text()
        program = (sys.executable, "-c", TAGGING, moment, pid)
        code, output = replace(command, program=program, env=command.env | {"PYTHONPATH": str(ROOT)}).run()
        assert code == EngineMissing.exit_code, output[-3000:]
        message = f"error: the container engine stopped answering during the tagging of {NAME}: "
        assert one_message(output).startswith(message), output[-3000:]
        assert command.reports == []
        victim.restart()
        assert kept(victim) == names
    code, output = command.run()
    assert code == 0, output[-6000:]
    assert kept(victim) == {NAME}
    assert command.reports == [f"{ID}.{kind}" for kind in ("html", "json", "md")]
