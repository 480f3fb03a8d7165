"""The table on a pseudo-terminal while a benchmark runs, and plain lines without a terminal."""

import io
import os
import pty
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TextIO, cast

import pytest
from rich.live import _RefreshThread

from tests.measure.test_evaluate import made_up
from tests.util.test_progress import until
from tfbuild.bench.live import LiveTable
from tfbuild.measure.experiments import Arm, Case, Experiment
from tfbuild.measure.rounds import CaseRun
from tfbuild.measure.sides import Machine
from tfbuild.measure.workers import Pool
from tfbuild.util.progress import Progress

ROW = Experiment(
    name="jpeg", question="-", compares="-", changes="-", source="-", workload="decode", arm=(), case=(Case(name="-"),)
)
SHOW, HIDE = "\x1b[?25h", "\x1b[?25l"


def comparison(factor: float, rounds: int, *, lost: bool = False) -> CaseRun:
    """Return a case that is being measured: two arms and the baseline again, after so many rounds."""
    case = Case(name="centre \x1b[2J", arm=(Arm(name="baseline"), Arm(name="arm")))
    machine = Machine(image="-", against="", cpus=2, gpus=0)
    pool = Pool(None)  # type: ignore[arg-type]
    run = CaseRun(row=ROW, case=case, machine=machine, pool=pool, tell=print)
    run.rounds += made_up(factor, rounds) if rounds else []
    if lost:
        run.sides[1].give_up("failed", "its process was lost")
    return run


def on(stream: io.TextIOBase) -> tuple[Progress, LiveTable]:
    table = LiveTable()
    return Progress(cast(TextIO, stream), below=table), table


class Screen:
    """What was sent to a terminal."""

    def __init__(self) -> None:
        self.sent = ""

    @property
    def text(self) -> str:
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.sent)


@contextmanager
def terminal(
    monkeypatch: pytest.MonkeyPatch, lines: int = 30, columns: int = 110
) -> Iterator[tuple[Screen, io.TextIOWrapper]]:
    for name, value in {"TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": str(lines)}.items():
        monkeypatch.setenv(name, value)
    master, slave = pty.openpty()
    screen, parts = Screen(), []

    def read() -> None:
        while True:
            try:
                part = os.read(master, 65536)
            except OSError:
                return
            parts.append(part)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        with os.fdopen(slave, "w", encoding="utf-8") as stream:
            yield screen, stream
    finally:
        reader.join()
        os.close(master)
        screen.sent = b"".join(parts).decode()


def test_the_table_shows_each_arm_as_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch) as (screen, stream):
        progress, table = on(stream)
        table.plan(2, time.monotonic() + 100)
        with progress.step("bench: jpeg") as step:
            table.next_experiment()
            table.add([comparison(0.5, 15)])
            table.add([comparison(0.5, 3)])
            table.add([comparison(0.5, 7, lost=True)])
            step.detail = "centre: round 4 of 15"
            progress.draw()
        progress("  centre: arm: faster")
    text = screen.text
    assert re.search(r"arm +x2\.0\d \[\d\.\d\d, \d\.\d\d\] +faster +15", text), text
    assert re.search(r"arm +x\S+ \[\S+ \S+\] at 75% +… +3", text), "too few rounds for a verdict"
    assert re.search(r"arm +failed: its process was lost +7", text)
    assert re.search(r"1 min \d\d s of 1 min \d\d s left, experiment 1 of 2", text)
    assert "centre: round 4 of 15" in text
    assert "✓ bench: jpeg" in text
    assert "\x1b[2J" not in screen.sent, "what a case is called steers no terminal"
    assert screen.sent.index(HIDE) < screen.sent.rindex(SHOW), "the cursor is back"


def test_a_table_higher_than_the_terminal_shows_what_is_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch, lines=12) as (screen, stream):
        progress, table = on(stream)
        with progress.step("bench: jpeg"):
            for number in range(20):
                run = comparison(0.5, 7)
                table.add([replace(run, case=Case(name=f"case {number}", arm=run.case.arm))])
    last = screen.text[: screen.text.index("✓")].rpartition("verdict")[2]
    assert re.findall(r"case \d+", last) == [f"case {number}" for number in range(14, 20)]


def test_a_narrow_terminal_cuts_the_case_s_name_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch, columns=80) as (screen, stream):
        progress, table = on(stream)
        with progress.step("bench: jpeg"):
            run = comparison(1.0, 7)
            table.add([replace(run, case=Case(name="whole pipeline, one thread " * 4, arm=run.case.arm))])
    assert re.search(r"whole pipe[a-z, ]*… +arm +x1\.0\d \[\S+ \S+\] +no difference shown +7", screen.text), screen.text


def test_ctrl_c_leaves_the_terminal_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch) as (screen, stream):
        progress, table = on(stream)
        table.plan(1, time.monotonic() + 100)
        with suppress(KeyboardInterrupt), progress.step("bench: jpeg"):
            table.add([comparison(0.5, 7)])
            raise KeyboardInterrupt
        progress.draw()
    assert "✗ bench: jpeg" in screen.text
    assert "(interrupted)" in screen.text
    after = screen.sent[screen.sent.rindex(SHOW) :]
    assert HIDE not in after
    assert "verdict" not in after, "nothing is drawn once it is over"


def drawing_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if isinstance(thread, _RefreshThread)]


def test_nothing_is_drawn_unless_the_run_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A drawing thread would disturb the measurement."""
    with terminal(monkeypatch) as (_, stream):
        progress, table = on(stream)
        table.plan(1, time.monotonic() + 100)
        with progress.step("bench: jpeg"):
            table.add([comparison(0.5, 7)])
            progress.draw()
            until(lambda: not drawing_threads())
        with progress.step("bench: onednn"):
            assert not drawing_threads()


def test_a_log_gets_lines() -> None:
    stream = io.StringIO()
    progress, table = on(stream)
    table.plan(1, time.monotonic() + 100)
    with progress.step("bench: jpeg"):
        table.add([comparison(0.5, 7)])
        progress.draw()
    assert re.fullmatch(r"bench: jpeg \.\.\.\nbench: jpeg: done \(\d+\.\d s\)\n", stream.getvalue())
