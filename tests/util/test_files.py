"""One process at a time in a folder: the next one waits, and whatever ends the first one sets it free."""

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tfbuild import plan
from tfbuild.errors import UsageError
from tfbuild.pipeline import Maker
from tfbuild.pipeline.run import Run
from tfbuild.plan import Request
from tfbuild.util import files
from tfbuild.util.progress import Progress

HOLD = """
import sys, time
from pathlib import Path
from tfbuild.util import files
with files.locked(Path(sys.argv[1]), lambda: print("waiting", flush=True)):
    print("mine", flush=True)
    time.sleep(600)
"""


def holder(folder: Path) -> "subprocess.Popen[str]":
    """Another process that has the folder."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "mine\n"
    return process


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_the_end_of_one_process_lets_the_next_one_in(end: signal.Signals, tmp_path: Path) -> None:
    calls: list[str] = []
    with holder(tmp_path / "x") as process:

        def waiting() -> None:
            calls.append("waiting")
            process.send_signal(end)

        with files.locked(tmp_path / "x", waiting):
            assert process.wait() == -end
    assert calls == ["waiting"]


def test_what_was_left_behind_keeps_nobody_out(tmp_path: Path) -> None:
    for _ in range(2):
        with files.locked(tmp_path, lambda: pytest.fail("nobody has it")):
            assert (tmp_path / ".lock").is_file()


class Telling(Progress):
    def __init__(self) -> None:
        super().__init__()
        self.noted = threading.Event()
        self.lines: list[str] = []

    def __call__(self, line: str) -> None:
        self.lines.append(line)
        self.noted.set()


def test_a_second_build_of_one_identifier_waits_and_says_so(tmp_path: Path) -> None:
    build = plan.select(Request(target="mkl", release="2.20.0", cpu="avx", platform="linux/amd64"), None)
    telling = Telling()
    maker = Maker(run=Run(base="auto", work=tmp_path, reports=tmp_path), progress=telling)
    order = []

    def second() -> None:
        with maker._locked(build):
            order.append("second")

    with maker._locked(build):
        thread = threading.Thread(target=second)
        thread.start()
        assert telling.noted.wait(60)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
    assert telling.lines == [f"another run is building {build.id} here; waiting for it (Ctrl-C leaves it alone)"]


def test_a_folder_that_cannot_be_locked_is_named(tmp_path: Path) -> None:
    build = plan.select(Request(target="mkl", release="2.20.0", cpu="avx", platform="linux/amd64"), None)
    (tmp_path / build.id).write_text("a file")
    maker = Maker(run=Run(base="auto", work=tmp_path, reports=tmp_path))
    with pytest.raises(UsageError, match=f"cannot lock .*{build.id}"), maker._locked(build):
        pass
