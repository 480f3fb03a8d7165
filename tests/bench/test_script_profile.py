"""Profiling a user's script: how its time is divided, and what is reported if it cannot be profiled."""

import io
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from tests.bench.test_report import report
from tfbuild.bench import command, profiled
from tfbuild.bench import report as reporting
from tfbuild.bench.session import Settings
from tfbuild.engine import ContainerRun, Engine
from tfbuild.errors import CommandFailed, UsageError
from tfbuild.in_container.bench import recorder, timeline
from tfbuild.in_container.bench import script_profile as inside
from tfbuild.in_container.bench.records import Profiled
from tfbuild.in_container.bench.timeline import Shares, TraceEvent
from tfbuild.util.progress import Progress

ASK = "IteratorGetNextOp::DoCompute"
GRAPH = "ExecutorState::Process"
PROFILE = Profiled(
    exit_code=0, tail=("loss 0.1",), seconds=30.0, windows=3, span=20.0, waiting=1.0, compute=18.0, asked=100
)


def host(*events: TraceEvent) -> tuple[bool, list[TraceEvent]]:
    return False, list(events)


def approx(shares: Shares, **wanted: float) -> None:
    for name, value in wanted.items():
        assert getattr(shares, name) == pytest.approx(value), (name, shares)


def test_a_step_that_waits_and_then_computes() -> None:
    shares = timeline.shares(
        [host(TraceEvent(ASK, 0, 3), TraceEvent(GRAPH, 3, 4), TraceEvent(ASK, 5, 8), TraceEvent(GRAPH, 8, 9))]
    )
    approx(shares, span=9, waiting=6, compute=2, asked=2)


def test_input_that_is_made_while_a_step_computes_is_no_wait() -> None:
    background = (
        TraceEvent("Iterator::ParallelMap", 0, 9),
        TraceEvent(GRAPH, 1, 8),
        TraceEvent("Iterator::Range", 2, 3),
    )
    shares = timeline.shares([host(TraceEvent(ASK, 0, 0.5), TraceEvent(GRAPH, 0.5, 9)), host(*background)])
    approx(shares, span=9, waiting=0.5, compute=8.5, asked=1)


def test_a_captured_function_s_operations_are_the_input_s_on_whatever_thread() -> None:
    called = TraceEvent("InstantiatedCapturedFunction::RunAsync", 0, 0.1, 7)
    shares = timeline.shares(
        [host(called), host(TraceEvent(GRAPH, 0, 5, 7)), host(TraceEvent(ASK, 0, 5), TraceEvent(GRAPH, 5, 6, 8))]
    )
    approx(shares, waiting=5, compute=1)


def test_an_iterator_that_asks_another_one_is_input_too() -> None:
    outer = TraceEvent("Iterator::Prefetch::Generator", 0, 5)
    shares = timeline.shares([host(outer, TraceEvent(ASK, 1, 4)), host(TraceEvent(GRAPH, 0, 5))])
    approx(shares, waiting=0, compute=5, asked=0)


def test_a_wait_inside_a_step_s_own_operation_is_a_wait() -> None:
    shares = timeline.shares([host(TraceEvent(GRAPH, 0, 10), TraceEvent(ASK, 1, 8))])
    approx(shares, span=10, waiting=7, compute=3)


def test_running_ahead_while_other_operations_compute_is_no_wait() -> None:
    shares = timeline.shares([host(TraceEvent(ASK, 0, 10)), host(TraceEvent(GRAPH, 2, 9))])
    approx(shares, span=10, waiting=3, compute=7)


def test_a_function_computes_but_while_its_iterator_waits_on_another_thread() -> None:
    eager = "EagerKernelExecute"
    called = host(TraceEvent(eager, 0, 2), TraceEvent(eager, 3, 9), TraceEvent("FunctionRun", 3.1, 8.9))
    approx(timeline.shares([called, host(TraceEvent(ASK, 4, 7))]), span=9, waiting=3, compute=5)
    approx(timeline.shares([called, host(TraceEvent(ASK, 4, 7)), host(TraceEvent(GRAPH, 6, 8))]), waiting=2, compute=6)


def test_a_device_that_computes_is_a_step_s() -> None:
    shares = timeline.shares([host(TraceEvent(ASK, 0, 10)), (True, [TraceEvent("kernel", 4, 10)])])
    approx(shares, waiting=4, compute=6)


def test_no_event_is_no_share() -> None:
    assert timeline.shares([]) == Shares()
    assert timeline.shares([host(TraceEvent("MemoryAllocation", 0, 1))]) == Shares()
    assert not timeline.matters("MemoryAllocation")
    assert all(map(timeline.matters, (ASK, GRAPH, "EagerKernelExecute", "Iterator::Root", "FunctionRun")))


@pytest.mark.parametrize(
    ("spans", "others", "left"),
    [
        ([(0, 10)], [(2, 3), (5, 12)], [(0, 2), (3, 5)]),
        ([(0, 1), (2, 3), (4, 6)], [(0.5, 5)], [(0, 0.5), (5, 6)]),
        ([(0, 1)], [], [(0, 1)]),
        ([(0, 4), (5, 6)], [(0, 9)], []),
    ],
)
def test_spans_without_others(spans: list[Any], others: list[Any], left: list[Any]) -> None:
    assert timeline.without(spans, others) == left


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, "compute-bound, 1.05 times the step without its input: of 20.0 s it waited 5% for input, computed 90%"),
        ({"waiting": 14.0, "compute": 4.0}, "input-bound, 3.33 times"),
        ({"waiting": 3.0, "compute": 16.0}, "balanced, 1.18 times"),
        (
            {"waiting": 0.5, "compute": 8.0},
            "not input-bound, 1.03 times the step without its input; idle between the steps, in Python",
        ),
        (
            {"waiting": 8.0, "compute": 12.0, "waits": (0.3, 0.5)},
            "input-bound, 1.67 [1.43 to 2.00 by window] times the step",
        ),
        ({"waiting": 8.0, "compute": 12.0, "waits": (0.02, 0.6)}, "not sure, from compute-bound to input-bound, 1.67"),
        ({"windows": 1, "waits": (0.05,)}, "(100 batches); from only one window of the trace"),
        ({"waiting": 0.0, "compute": 19.0, "asked": 0}, "no tf.data iterator was read: of 20.0 s"),
        ({"exit_code": None}, "(100 batches); stopped by the time budget"),
    ],
)
def test_the_verdict_has_the_built_in_one_s_limits(change: dict[str, Any], expected: str) -> None:
    finding = profiled.judge("python train.py", replace(PROFILE, **change))
    assert finding.text.startswith("python train.py: ")
    assert expected in finding.text


class FakeEngine:
    """An engine whose container prints `out`; `call` keeps the arguments."""

    local = True

    def __init__(self, out: str, error: str = "") -> None:
        self.out, self.error, self.call = out, error, {}  # type: ignore[var-annotated]

    def run(self, ref: str, words: list[str], **given: Any) -> ContainerRun:
        self.call = {"words": words, **given}
        return ContainerRun(exit_code=0, stdout=self.out, stderr=self.error, truncated=False)


@pytest.mark.parametrize(
    ("out", "why"),
    [
        ("", r"could not be profiled: no python"),
        ("{}\n", r"could not be profiled: .*missing"),
        ('{"exit_code": 3, "tail": ["Boom: no"], "seconds": 1.5, "windows": 0, "span": 0, "waiting": 0, "compute": 0, '
         '"asked": 0}\n', r"exited with code 3:\nBoom: no[\s\S]*--mount"),
        ('{"exit_code": -11, "tail": [], "seconds": 1.5, "windows": 0, "span": 0, "waiting": 0, "compute": 0, '
         '"asked": 0}\n', r"was killed by signal 11\n"),
        ('{"exit_code": 0, "tail": ["hello"], "seconds": 1.5, "windows": 1, "span": 0, "waiting": 0, "compute": 0, '
         '"asked": 0}\n', r"saw no step of python x.py in 2 s; it printed:\nhello"),
    ],
)  # fmt: skip
def test_why_a_script_cannot_be_profiled_is_reported(out: str, why: str, tmp_path: Path) -> None:
    script = profiled.Command(words=("python", "x.py"), folder=tmp_path)
    engine = FakeEngine(out, "no python")
    with pytest.raises(CommandFailed, match=why):
        profiled.experiment(cast(Engine, engine), "sha256:1", script, 60, Progress())
    assert engine.call["mounts"] == {profiled.FOLDER: str(tmp_path)}
    assert engine.call["words"][-5:] == ["--profile", "40", profiled.FOLDER, "python", "x.py"]


def test_an_engine_elsewhere_has_no_such_folder(tmp_path: Path) -> None:
    engine = FakeEngine("")
    engine.local = False
    with pytest.raises(UsageError, match="another machine"):
        profiled.experiment(cast(Engine, engine), "x", profiled.Command(words=("x",), folder=tmp_path), 60, Progress())


@pytest.mark.parametrize(
    ("text", "mount", "why"),
    [
        ("python 'x", "", "No closing quotation"),
        ("python x.py", "/no/such/folder", "no such folder"),
        ("", ".", "--mount needs --command"),
        (" ", "", "--command is empty"),
    ],
)
def test_a_command_that_cannot_be_run_is_refused(text: str, mount: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        profiled.parse(text, mount)


def test_a_command_is_watched_alone(tmp_path: Path) -> None:
    given = command.settings(
        quick=True, full=False, budget="", against="", command="python 'my train.py' --x 1", mount=str(tmp_path)
    )
    assert given.command == profiled.Command(words=("python", "my train.py", "--x", "1"), folder=tmp_path)
    assert str(given.command) == "python 'my train.py' --x 1"
    assert command.rows_of(["bottleneck"], given, [], "") == ()
    assert command.rows_of([], given, [], "") == ()
    with pytest.raises(UsageError, match="cannot be combined"):
        command.rows_of(["jpeg"], given, [], "")
    with pytest.raises(UsageError, match="cannot be combined"):
        command.rows_of([], given, ["lstm"], "")
    assert Settings(mode="quick", budget=1.0).command is None


# --- inside a container -----------------------------------------------------------------------------------------------


PROFILER = """
import os
class experimental:
    windows = []
    @classmethod
    def start(cls, folder):
        cls.windows.append(folder)
    @classmethod
    def stop(cls):
        os.makedirs(cls.windows[-1])
"""


# Waits until so many windows are whole, in whatever time that takes: one more than those has begun then.
UNTIL = """
import tensorflow, time
while len(tensorflow.profiler.experimental.windows) <= {}:
    time.sleep(0.01)
"""
ENOUGH_SECONDS = 300


def recorded(folder: Path, script: str) -> tuple[int | None, list[str], list[str]]:
    """Run a script with the recorder and a fake TensorFlow whose profiler only writes a folder."""
    site, traces = folder / "site", folder / "traces"
    for path in (site, traces, folder / "lib" / "tensorflow"):
        path.mkdir(parents=True)
    source = Path(recorder.__file__).read_text(encoding="utf-8")
    for constant, short in (
        ("\nSECONDS = 2.0\n", "\nSECONDS = 0.05\n"),
        ("MOST_SECONDS = 16.0", "MOST_SECONDS = 0.05"),
    ):
        assert constant in source
        source = source.replace(constant, short)
    (site / "sitecustomize.py").write_text(source, encoding="utf-8")
    (folder / "lib" / "tensorflow" / "__init__.py").write_text("from . import profiler\n", encoding="utf-8")
    (folder / "lib" / "tensorflow" / "profiler.py").write_text(PROFILER, encoding="utf-8")
    (folder / "lib" / "sitecustomize.py").write_text("print('the hidden one')\n", encoding="utf-8")
    (folder / "script.py").write_text(textwrap.dedent(script), encoding="utf-8")
    old = inside.SITE
    try:
        inside.SITE = str(site)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", str(folder / "lib"))
            code, tail = inside.run([sys.executable, "script.py"], str(folder), str(traces), ENOUGH_SECONDS)
    finally:
        inside.SITE = old
    return code, tail, sorted(path.parent.name.partition("-")[2] for path in traces.glob("*/whole"))


def test_a_script_is_recorded_from_its_import_of_tensorflow_to_its_end(tmp_path: Path) -> None:
    code, tail, windows = recorded(tmp_path, UNTIL.format(2) + "print('done')\nraise SystemExit(7)")
    assert (code, tail) == (7, ["the hidden one", "done"])
    assert windows[:2] == ["000000", "000001"]


def test_a_script_without_tensorflow_is_left_alone(tmp_path: Path) -> None:
    assert recorded(tmp_path, "print(1)") == (0, ["the hidden one", "1"], [])


def test_of_many_windows_the_first_and_the_last_stay(tmp_path: Path) -> None:
    _, _, windows = recorded(tmp_path, UNTIL.format(recorder.KEPT + 2))
    assert windows[0] == "000000"
    assert len(windows) <= recorder.KEPT
    assert int(windows[-1]) >= recorder.KEPT + 1


def test_a_command_is_stopped_when_its_time_is_over_with_all_that_it_started(tmp_path: Path) -> None:
    """Its time begins with TensorFlow's import, which the recorder marks by a file, as this script does."""
    script = (
        "import pathlib, subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(999)'])\n"
        f"print(child.pid)\npathlib.Path({recorder.BEGUN!r}).touch()\nchild.wait()"
    )
    code, tail = inside.run([sys.executable, "-c", script], str(tmp_path), str(tmp_path), 0.1)
    assert code is None
    (child,) = map(int, tail)
    state = Path(f"/proc/{child}/stat")
    ended = time.monotonic() + ENOUGH_SECONDS
    while state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z" and time.monotonic() < ended:
        time.sleep(0.01)
    assert time.monotonic() < ended


def test_the_last_lines_of_a_talkative_command_stay(tmp_path: Path) -> None:
    script = "import sys\nfor index in range(20000): print('line', index)\nsys.exit('the end')"
    code, tail = inside.run([sys.executable, "-c", script], str(tmp_path), str(tmp_path), ENOUGH_SECONDS)
    assert code == 1
    assert len(tail) == inside.TAIL_LINES
    assert tail[-2:] == ["line 19999", "the end"]


def test_a_missing_command_raises_file_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        inside.run(["no-such-program"], str(tmp_path), str(tmp_path), 5)


def test_a_profiled_command_is_in_every_form_of_the_report(tmp_path: Path) -> None:
    out = msgspec.json.encode(PROFILE).decode() + "\n"
    script = profiled.Command(words=("python", "x.py"), folder=tmp_path)
    row = profiled.experiment(cast(Engine, FakeEngine(out)), "sha256:1", script, 60, Progress(io.StringIO()))
    whole = report(row)
    assert reporting.from_json(reporting.to_json(whole)) == whole
    shown = io.StringIO()
    reporting.show(whole, shown)
    for text in (reporting.to_markdown(whole), shown.getvalue()):
        assert "python x.py: compute-bound" in text
        assert "nothing was measured" not in text
