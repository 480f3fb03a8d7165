"""Profiling a user's script: how its time is divided, and what is reported if it cannot be profiled."""

import io
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from tests.bench.test_report import report
from tfbuild.bench import command, page, user_script
from tfbuild.bench import report as reporting
from tfbuild.bench.session import Settings
from tfbuild.engine import ContainerRun, Engine
from tfbuild.errors import TfbuildError, UsageError
from tfbuild.in_container.bench import script_profile as inside
from tfbuild.in_container.bench.records import Profiled, Window
from tfbuild.in_container.bench.site import sitecustomize
from tfbuild.measure import records
from tfbuild.measure.records import ExperimentResult
from tfbuild.util.progress import Progress

ASK = "IteratorGetNextOp::DoCompute"
GRAPH = "ExecutorState::Process"
PROFILE = Profiled(exit_code=0, tail=("loss 0.1",), seconds=30.0, windows=3 * (Window(7.0, 0.35, 6.3, asked=33),))


def event(name: str, begin: float, end: float, step: int = 0) -> inside.Event:
    return name, begin, end, step


def host(*events: inside.Event) -> inside.Thread:
    return False, list(events)


def approx(window: Window, **wanted: float) -> None:
    for name, value in wanted.items():
        assert getattr(window, name) == pytest.approx(value), (name, window)


def test_a_step_that_waits_and_then_computes() -> None:
    window = inside.divide([host(event(ASK, 0, 3), event(GRAPH, 3, 4), event(ASK, 5, 8), event(GRAPH, 8, 9))])
    approx(window, span=9, waiting=6, compute=2, asked=2, gpu=0)


def test_input_that_is_made_while_a_step_computes_is_no_wait() -> None:
    background = (event("Iterator::ParallelMap", 0, 9), event(GRAPH, 1, 8), event("Iterator::Range", 2, 3))
    window = inside.divide([host(event(ASK, 0, 0.5), event(GRAPH, 0.5, 9)), host(*background)])
    approx(window, span=9, waiting=0.5, compute=8.5, asked=1)


def test_a_captured_function_s_operations_are_the_input_s_on_whatever_thread() -> None:
    called = event("InstantiatedCapturedFunction::RunAsync", 0, 0.1, 7)
    window = inside.divide([host(called), host(event(GRAPH, 0, 5, 7)), host(event(ASK, 0, 5), event(GRAPH, 5, 6, 8))])
    approx(window, waiting=5, compute=1)


def test_an_iterator_that_asks_another_one_is_input_too() -> None:
    outer = event("Iterator::Prefetch::Generator", 0, 5)
    window = inside.divide([host(outer, event(ASK, 1, 4)), host(event(GRAPH, 0, 5))])
    approx(window, waiting=0, compute=5, asked=0)


def test_a_wait_inside_a_step_s_own_operation_is_a_wait() -> None:
    """Also where operations are nested, and where the input's own work goes on inside the wait."""
    approx(inside.divide([host(event(GRAPH, 0, 10), event(ASK, 1, 8))]), span=10, waiting=7, compute=3)
    nested = host(event(GRAPH, 0, 10), event(GRAPH, 0.5, 9), event(ASK, 1, 8), event("Iterator::Root", 1, 8))
    approx(inside.divide([nested]), span=10, waiting=7, compute=3)


def test_running_ahead_while_other_operations_compute_is_no_wait() -> None:
    window = inside.divide([host(event(ASK, 0, 10)), host(event(GRAPH, 2, 9))])
    approx(window, span=10, waiting=3, compute=7)


def test_a_function_computes_but_while_its_iterator_waits_on_another_thread() -> None:
    called = host(event("EagerKernelExecute", 0, 2), event("EagerKernelExecute", 3, 9))
    approx(inside.divide([called, host(event(ASK, 4, 7))]), span=9, waiting=3, compute=5)
    approx(inside.divide([called, host(event(ASK, 4, 7)), host(event(GRAPH, 6, 8))]), waiting=2, compute=6)


def test_a_device_that_computes_is_a_step_s() -> None:
    window = inside.divide([host(event(ASK, 0, 10)), (True, [event("kernel", 4, 10)])])
    approx(window, waiting=4, compute=6, gpu=6)


def test_no_event_is_no_share() -> None:
    assert inside.divide([]) == inside.divide([host()]) == Window(0.0, 0.0, 0.0)


def profile(*windows: Window, exit_code: int | None = 0) -> Profiled:
    return replace(PROFILE, windows=windows, exit_code=exit_code)


@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        (PROFILE, "compute-bound, 1.05 [1.05 to 1.05 by window] times the step without its input: of 21.0 s it waited "
         "5% for input, computed 90%, neither 5% (99 batches)"),
        (profile(Window(20, 1, 18, gpu=15, asked=1)), "compute-bound (GPU), 1.05 times"),
        (profile(Window(20, 1, 18, gpu=3, asked=1)), "compute-bound, 1.05 times"),
        (profile(Window(20, 14, 4, asked=9)), "input-bound, 3.33 times"),
        (profile(Window(20, 3, 16, asked=9)), "balanced, 1.18 times"),
        (profile(Window(20, 0.5, 8, asked=9)), "not input-bound, 1.03 times the step without its input; idle between "
         "the steps, in Python"),
        (profile(Window(10, 3, 7, asked=9), Window(10, 5, 5, asked=9)), "input-bound, 1.67 [1.43 to 2.00 by window] "
         "times the step"),
        (profile(Window(10, 0.2, 9.8, asked=9), Window(10, 6, 4, asked=9)),
         "not sure, from compute-bound to input-bound, 1.45"),
        (profile(Window(20, 1, 19, asked=100)), "(100 batches); from only one window of the trace"),
        (profile(Window(20, 0, 19)), "no tf.data iterator was read: of 20.0 s"),
        (profile(Window(20, 1, 19, asked=100), exit_code=None), "trace; stopped by the time budget"),
    ],
)  # fmt: skip
def test_the_verdict_has_the_built_in_one_s_limits(profile: Profiled, expected: str) -> None:
    finding = user_script.judge("python train.py", profile)
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
        ("", r"could not be profiled: line 4\nline 5\nline 6\nline 7\nline 8\nno python\nhint: "),
        ("{}\n", r"could not be profiled: .*missing"),
        ('{"exit_code": 3, "tail": ["Boom: no"], "seconds": 1.5}\n', r"exited with code 3:\nBoom: no[\s\S]*--mount"),
        ('{"exit_code": -11, "tail": [], "seconds": 1.5}\n', r"was killed by signal 11\n"),
        ('{"exit_code": 0, "tail": ["hello"], "seconds": 1.5}\n',
         r"saw no step of python x.py in 2 s; it printed:\nhello"),
    ],
)  # fmt: skip
def test_why_a_script_cannot_be_profiled_is_reported(out: str, why: str, tmp_path: Path) -> None:
    engine = FakeEngine(out, "".join(f"line {number}\n" for number in range(9)) + "no python\n")
    with pytest.raises(TfbuildError, match=why):
        profiled(engine, tmp_path)
    assert engine.call["mounts"] == {user_script.FOLDER: str(tmp_path)}
    assert engine.call["words"][-5:] == ["--profile", "60", user_script.FOLDER, "python", "x.py"]
    assert any(path.endswith("/bench/site/sitecustomize.py") for path in engine.call["files"])


def profiled(engine: FakeEngine, folder: Path, release: str = "2.21.0") -> ExperimentResult:
    script = user_script.Command(words=("python", "x.py"), folder=folder)
    engine_ = cast(Engine, engine)
    return user_script.experiment(engine_, "sha256:1", script, 60, Progress(io.StringIO()), release=release)


def test_a_release_before_the_profiler_is_refused_before_anything_runs(tmp_path: Path) -> None:
    for release in ("1.15.5", "2.1.4", "2.0.0rc1"):
        engine = FakeEngine("")
        with pytest.raises(TfbuildError, match=f"TensorFlow {release} has no tf.profiler[\\s\\S]*use 2.2"):
            profiled(engine, tmp_path, release)
        assert not engine.call
    for release in ("2.2.0", "a build of one's own"):
        with pytest.raises(TfbuildError, match="could not be profiled"):
            profiled(FakeEngine(""), tmp_path, release)


def test_an_engine_elsewhere_has_no_such_folder(tmp_path: Path) -> None:
    engine = FakeEngine("")
    engine.local = False
    with pytest.raises(UsageError, match="another machine"):
        profiled(engine, tmp_path)


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
        user_script.parse(text, mount)


def test_a_command_is_watched_alone(tmp_path: Path) -> None:
    given = command.settings(
        quick=True, full=False, budget="", against="", command="python 'my train.py' --x 1", mount=str(tmp_path)
    )
    assert given.command == user_script.Command(words=("python", "my train.py", "--x", "1"), folder=tmp_path)
    assert str(given.command) == "python 'my train.py' --x 1"
    secret = user_script.parse("curl https://me:pw@site/x?token=1", str(tmp_path))
    assert str(secret) == "curl 'https://***@site/x?***'"
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


# Waits until so many windows are complete, in whatever time that takes: one more than those has begun then.
UNTIL = """
import tensorflow, time
while len(tensorflow.profiler.experimental.windows) <= {}:
    time.sleep(0.01)
"""
ENOUGH_SECONDS = 300


def recorded(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> tuple[int | None, list[str], list[int]]:
    """Run a script with the recorder and a fake TensorFlow whose profiler only writes a folder."""
    site, traces = folder / "site", folder / "traces"
    for path in (site, traces, folder / "lib" / "tensorflow"):
        path.mkdir(parents=True)
    source = Path(sitecustomize.__file__).read_text(encoding="utf-8")
    constants = "SECONDS, MOST_SECONDS, KEPT = 2.0, 16.0, 4"
    assert constants in source
    source = source.replace(constants, "SECONDS, MOST_SECONDS, KEPT = 0.05, 0.05, 4")
    (site / "sitecustomize.py").write_text(source, encoding="utf-8")
    (folder / "lib" / "tensorflow" / "__init__.py").write_text("from . import profiler\n", encoding="utf-8")
    (folder / "lib" / "tensorflow" / "profiler.py").write_text(PROFILER, encoding="utf-8")
    (folder / "lib" / "sitecustomize.py").write_text("print('the hidden one')\n", encoding="utf-8")
    (folder / "script.py").write_text(textwrap.dedent(script), encoding="utf-8")
    monkeypatch.setattr(inside, "SITE", str(site))
    monkeypatch.setenv("PYTHONPATH", str(folder / "lib"))
    code, tail = inside.run([sys.executable, "script.py"], str(folder), str(traces), ENOUGH_SECONDS)
    return code, tail, sorted(int(path.parent.name) for path in traces.glob(f"*/*/{sitecustomize.COMPLETE}"))


def test_a_script_is_recorded_from_its_import_of_tensorflow_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, tail, windows = recorded(tmp_path, UNTIL.format(2) + "print('done')\nraise SystemExit(7)", monkeypatch)
    assert (code, tail) == (7, ["the hidden one", "done"])
    assert windows[:2] == [0, 1]


def test_a_script_without_tensorflow_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert recorded(tmp_path, "print(1)", monkeypatch) == (0, ["the hidden one", "1"], [])


def test_of_many_windows_the_last_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    *_, windows = recorded(tmp_path, UNTIL.format(7), monkeypatch)
    assert len(windows) <= sitecustomize.KEPT + 1
    assert windows[0] > 0
    assert windows[-1] >= 7


def test_windows_of_steps_count_and_the_first_of_each_process_only_without_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trace is a window's name here."""
    idle, busy = Window(1, 0, 0), {number: Window(float(number), 0, 1) for number in range(10)}
    names = {"7/0": busy[1], "7/1": busy[2], "7/2": idle, "8/0": busy[3], "8/10": busy[4]}
    for name in (*names, "8/11"):
        (tmp_path / name).mkdir(parents=True)
        if name != "8/11":
            (tmp_path / name / sitecustomize.COMPLETE).touch()
    monkeypatch.setattr(inside, "threads", lambda folder: [folder])
    monkeypatch.setattr(inside, "divide", lambda threads: names[str(Path(threads[0]).relative_to(tmp_path))])
    assert inside.read_windows(str(tmp_path)) == [busy[2], busy[4]]
    for name in ("7/1", "8/10"):
        (tmp_path / name / sitecustomize.COMPLETE).unlink()
    assert inside.read_windows(str(tmp_path)) == [busy[1], busy[3]]


def test_a_command_is_stopped_when_its_time_is_over(tmp_path: Path) -> None:
    script = "print('begun', flush=True)\nimport time; time.sleep(999)"
    assert inside.run([sys.executable, "-c", script], str(tmp_path), str(tmp_path), 3) == (None, ["begun"])


def test_the_last_lines_of_a_talkative_command_stay(tmp_path: Path) -> None:
    script = "import sys\nfor index in range(20000): print('line', index)\nsys.exit('the end')"
    code, tail = inside.run([sys.executable, "-c", script], str(tmp_path), str(tmp_path), ENOUGH_SECONDS)
    assert code == 1
    assert len(tail) == inside.TAIL_LINES
    assert tail[-2:] == ["line 19999", "the end"]


def test_a_missing_command_is_named(tmp_path: Path) -> None:
    code, (why,) = inside.run(["no-such-program"], str(tmp_path), str(tmp_path), 5)
    assert (code, "no-such-program" in why) == (127, True)


def test_a_profiled_command_is_in_every_form_of_the_report(tmp_path: Path) -> None:
    row = profiled(FakeEngine(msgspec.json.encode(PROFILE).decode() + "\n"), tmp_path)
    whole = report(row)
    assert reporting.from_json(records.to_json(whole)) == whole
    shown = io.StringIO()
    reporting.show(whole, shown)
    for text in (page.to_markdown(whole), shown.getvalue()):
        assert "python x.py: compute-bound" in text
        assert "nothing was measured" not in text
