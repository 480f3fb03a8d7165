"""What can end a verification, its tagging or a benchmark from outside: no verdict on the image, no measurement of it,
and the same command ends well.

All on an engine of its own, which builds an image once. The command is the same but in the last test: its build is
cached, so that it begins to verify at once.
"""

import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from docker.models.containers import Container

from tests.with_engine.conftest import ROOT
from tests.with_engine.test_build import ID, RELEASE
from tests.with_engine.test_fault_matrix import Victim, one_message, started
from tfbuild.bench import report as reporting
from tfbuild.cli.options import certificates
from tfbuild.context.labels import UNVERIFIED
from tfbuild.engine import Engine
from tfbuild.engine.containers import LABEL
from tfbuild.errors import DiskFull, Disturbed, EngineMissing
from tfbuild.pipeline import base_image
from tfbuild.util.progress import Progress
from tfbuild.verify.checks import CHECKS

pytestmark = [pytest.mark.engine, pytest.mark.nightly]
SECONDS = 1200.0
Strike = Callable[["subprocess.Popen[str]"], None]
NAME, UNNAMED = f"tfbuild:{ID}", f"tfbuild:{ID}{UNVERIFIED}"
# The checks that are struck, and how many containers of the verification then run; 0: it only reads the image's files.
RUNNING = {
    "files": 0, "configuration": 0, "bytecode": 1, "guard": 1, "interpreter": 0, "import": 1, "isa": 0, "code": 0,
    "onednn": 1, "tcmalloc": 1, "numerics": 1, "throughput": 3,
}  # fmt: skip
BUILD = (
    "build", "--target", "mkl", "--wheel", "official", "--release", RELEASE, "--base", "tfbuild-test:base",
    "--network", "host", "--need-disk", "1",
)  # fmt: skip
SWEPT = re.compile(r"^removed \d+ containers? of runs that were killed$", re.MULTILINE)
# It is `invoke`, but of the checks only the first one is run: others are struck below.
FIRST_CHECK = """
from invoke.main import program
from tfbuild.verify import session

session.CHECKS = session.CHECKS[:1]
program.run()
"""
# The same, but the engine is killed before or after it gives the image its name.
TAGGING = f"""
import os, signal, sys, time
from tfbuild.engine import Engine

def struck(self, ref, new):
    if moment == "after":
        tag(self, ref, new)
    os.kill(int(pid), signal.SIGKILL)
    while open("/proc/" + pid + "/stat").read().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)
    if moment == "before":
        tag(self, ref, new)

_, moment, pid, *words = sys.argv
sys.argv = ["invoke", *words]
tag, Engine.tag = Engine.tag, struck
{FIRST_CHECK}"""
# The engine's disk is full when the image gets its name.
FULL_TAGGING = f"""
import sys
from pathlib import Path
from tests.with_engine.test_fault_matrix import fill
from tfbuild.engine import Engine

def full(self, ref, new):
    fill(Path(data))
    tag(self, ref, new)

_, data, *words = sys.argv
sys.argv = ["invoke", *words]
tag, Engine.tag = Engine.tag, full
{FIRST_CHECK}"""
# A benchmark that waits at a call of a method until a file is there.
WAITING = """
import os, sys, time
from invoke.main import program
from tfbuild.measure.rounds import CaseRun

def wait(*given):
    calls.append(given)
    if len(calls) == int(number):
        print(f"bench: {name} ...", flush=True)
        while not os.path.exists(mark):
            time.sleep(0.01)
    method(*given)

_, name, number, mark, *words = sys.argv
sys.argv, calls, method = ["invoke", *words], [], getattr(CaseRun, name)
setattr(CaseRun, name, wait)
program.run()
"""
REPORTS = [f"{ID}.{kind}" for kind in ("html", "json", "md")]


@pytest.fixture(scope="module")
def victim(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    """With the base image that the command names; its containers see this machine's CPU."""
    log = tmp_path_factory.mktemp("base") / "log"
    base = base_image.bootstrap(engine, "bookworm", progress=Progress(), log=log, ca_cert=certificates("")).reference
    with started(other_cpu=False) as there:
        client = Engine.connect(there.found.host).client
        client.images.load(b"".join(engine.client.images.get(base).save(named=True)))
        client.images.get(engine.image(base).id).tag("tfbuild-test", "base")
        client.close()
        yield there


@dataclass(frozen=True, kw_only=True)
class Command:
    """`invoke build` in a folder of its own, on the victim; `program`: in place of Invoke's."""

    folder: Path
    env: dict[str, str]
    program: tuple[str, ...] = (sys.executable, "-m", "invoke")
    words: tuple[str, ...] = BUILD

    def run(self, step: str = "", strike: Strike = lambda _: None) -> tuple[int, str]:
        """Run it, strike in the step, and return the exit code and what was printed."""
        with subprocess.Popen(
            [*self.program, "--search-root", str(ROOT), *self.words],
            cwd=self.folder, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        ) as process:  # fmt: skip
            lines, timer = [], threading.Timer(SECONDS, process.kill)
            timer.start()
            try:
                for line in process.stdout or ():
                    lines.append(line)
                    if line.endswith(f": {step} ...\n"):
                        strike(process)
                process.wait()
            finally:
                timer.cancel()
                process.kill()
        output = "".join(lines)
        assert not step or f": {step} ..." in output, output[-6000:]
        return process.returncode, output

    def by(self, program: str, *arguments: str) -> "Command":
        """Return the same command, run by a program of this text."""
        words = (sys.executable, "-c", program, *arguments)
        return replace(self, program=words, env=self.env | {"PYTHONPATH": str(ROOT)})

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
        while len(there.client.containers.list(filters={"label": LABEL}, sparse=True)) < RUNNING[step]:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        there.client.close()
        strike(process)

    return wait_and_strike


def kept(victim: Victim) -> set[str]:
    """The names of tfbuild's images on the victim, and none of its containers is left after this."""
    there = Engine.connect(victim.found.host)
    names = {name for image in there.labelled("io.tfbuild.id") for name in image.tags}
    assert there.client.containers.list(all=True, filters={"label": LABEL}) == []
    there.client.close()
    return names


def forget(victim: Victim, command: Command) -> None:
    """Leave no verdict of an earlier test."""
    there = Engine.connect(victim.found.host)
    if there.exists(NAME):
        there.untag(NAME)
    there.client.close()
    for path in command.folder.glob("reports/*"):
        path.unlink()


def test_a_verification_that_is_struck_at_any_check_is_no_verdict(victim: Victim, command: Command) -> None:
    """In turn the process is killed, the engine is killed, and the engine is killed and is back at once.

    The next run goes on past that check.
    """
    assert {*RUNNING} <= {check.name for check in CHECKS}
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
    assert command.reports == REPORTS
    assert not [*Path(command.env["TMPDIR"]).iterdir()]


def test_what_is_done_to_a_verification_from_outside_is_no_verdict(victim: Victim, command: Command) -> None:
    """Its container is removed, killed or paused, or no larger file can be written: the image keeps its name."""
    forget(victim, command)

    def each(act: Callable[[Container], None]) -> Strike:
        def strike(_: "subprocess.Popen[str]") -> None:
            there = Engine.connect(victim.found.host)
            for container in there.client.containers.list(filters={"label": LABEL}):
                act(container)
            there.client.close()

        return strike

    def limit(process: "subprocess.Popen[str]") -> None:
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (4096, 4096))

    for step, strike in (
        ("import", each(lambda container: container.remove(force=True))),
        ("onednn", each(Container.kill)),
        ("throughput", each(Container.pause)),
        ("code", limit),
    ):
        code, output = command.run(step, at_work(victim, step, strike))
        assert code == Disturbed.exit_code == 34, output[-3000:]
        assert one_message(output).startswith("error: the image was not judged: "), output[-3000:]
        assert (kept(victim), command.reports) == ({UNNAMED}, [])
    code, output = command.run()
    assert code == 0, output[-6000:]
    assert (kept(victim), command.reports) == ({NAME}, REPORTS)


def test_a_tagging_that_is_struck_is_done_by_the_next_run(victim: Victim, command: Command) -> None:
    """The engine is killed just before the image gets its name, then just after."""
    forget(victim, command)
    for moment, names in (("before", {UNNAMED}), ("after", {UNNAMED, NAME})):
        pid = (victim.found.folder / "pid").read_text()
        code, output = command.by(TAGGING, moment, pid).run()
        assert code == EngineMissing.exit_code, output[-3000:]
        message = f"error: the container engine stopped answering during the tagging of {NAME}: "
        assert one_message(output).startswith(message), output[-3000:]
        assert command.reports == []
        victim.restart()
        assert kept(victim) == names
    code, output = command.run()
    assert code == 0, output[-6000:]
    assert kept(victim) == {NAME}
    assert command.reports == REPORTS


@contextmanager
def small(folder: Path, size: str) -> Iterator[None]:
    """A file system of this size at the folder, of which `mount -o remount` makes a larger one."""
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_disk_that_becomes_full_is_no_verdict_and_disturbs_no_container_that_runs(
    victim: Victim, command: Command
) -> None:
    """The engine's at several checks, and when the image gets its name; then that of the temporary folder.

    Rounds of the throughput need no disk: what began goes on to its verdict.
    """
    forget(victim, command)

    def full(
        struck: Command, step: str = "", strike: Strike = lambda _: None, names: Set[str] = frozenset({UNNAMED})
    ) -> None:
        code, output = struck.run(step, strike)
        victim.clear()
        assert code == DiskFull.exit_code, output[-3000:]
        message = one_message(f"\n{output}")
        assert message.startswith("error: the engine's disk is full: ")
        assert "hint: docker builder prune, docker image prune; then run the same command again" in message
        assert (kept(victim), command.reports) == (names, [])

    full(command, "guard", lambda _: victim.fill())
    victim.fill()
    full(replace(command, words=("verify", UNNAMED)))
    full(command, "guard", at_work(victim, "guard", lambda _: victim.fill()))
    full(command, "isa", lambda _: victim.fill())
    temporary = Path(command.env["TMPDIR"])
    with small(temporary, "8m"):
        code, output = command.run()
    assert code == DiskFull.exit_code, output[-3000:]
    assert one_message(output).startswith(f"error: no space is left in {temporary}/tfbuild-")
    assert (kept(victim), command.reports) == ({UNNAMED}, [])
    # The engine knows the name, though it could not write it down.
    full(command.by(FULL_TAGGING, str(victim.data)), names={UNNAMED, NAME})
    code, output = command.run("throughput", at_work(victim, "throughput", lambda _: victim.fill()))
    victim.clear()
    assert code == 0, output[-6000:]
    assert (kept(victim), command.reports) == ({NAME}, REPORTS)
    assert not [*temporary.iterdir()]


def test_a_report_that_finds_no_space_is_written_by_the_next_run(victim: Victim, command: Command) -> None:
    """The image has its name by then, and no report, so that it is verified once more."""
    forget(victim, command)
    command.folder.joinpath("reports").mkdir(exist_ok=True)
    with small(command.folder / "reports", "4k"):
        code, output = command.by(FIRST_CHECK).run()
        assert code == DiskFull.exit_code, output[-3000:]
        assert one_message(output).startswith("error: no space is left for reports")
        assert kept(victim) == {NAME}
        assert f"{ID}.json" not in command.reports, "it is the last one, and what the next run goes by"
        subprocess.run(["mount", "-o", "remount,size=4m", command.folder / "reports"], check=True)
        code, output = command.by(FIRST_CHECK).run()
        assert code == 0, output[-6000:]
        assert f"verify: {CHECKS[0].name}" in output
        assert (kept(victim), command.reports) == ({NAME}, REPORTS)


def test_a_benchmark_whose_engine_is_lost_ends_with_the_rounds_that_it_has(
    victim: Victim, command: Command, tmp_path: Path
) -> None:
    """The engine is killed in the third round, or it is killed and back at once; its disk is full at the start."""
    if not kept(victim):
        command.by(FIRST_CHECK).run()
    (name, *_) = kept(victim)
    folder, mark = tmp_path / "work", tmp_path / "struck"
    folder.mkdir()
    words = ("bench", name, "--only", "threads", "--budget", "20m", "--name", "x")
    bench = replace(command, folder=folder, words=words)
    killed, full = "the container engine stopped answering during the benchmark: ", "the engine's disk is full: "
    back = "the container engine ended during the benchmark, and was started again"
    for method, call, strike, error, said, reports in (
        ("quiet_round", 3, victim.kill, EngineMissing, killed, ["x.html", "x.json", "x.md"]),
        ("quiet_round", 3, victim.replace, EngineMissing, back, ["x.html", "x.json", "x.md"]),
        ("start", 1, victim.fill, DiskFull, full, []),
    ):

        def struck(_: "subprocess.Popen[str]", strike: Callable[[], None] = strike) -> None:
            strike()
            mark.touch()

        code, output = bench.by(WAITING, method, str(call), str(mark)).run(method, struck)
        mark.unlink()
        {victim.kill: victim.restart, victim.fill: victim.clear}.get(strike, victim.wait)()
        assert code == error.exit_code, output[-3000:]
        assert one_message(output).startswith(f"error: {said}"), output[-3000:]
        assert kept(victim) == {name}
        assert bench.reports == reports
        for path in folder.glob("reports/*.json"):
            report = reporting.read_report(path)
            assert report.interrupted
            assert len(report.experiments[0].cases[0].rounds) == 2
        shutil.rmtree(folder / "reports")
    assert not [*Path(command.env["TMPDIR"]).iterdir()]
