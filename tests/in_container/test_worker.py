"""A worker on TensorFlow, asked through its pipes as the host asks it, with workloads of these tests beside its own."""

import io
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.measure.test_experiments import ROOT
from tfbuild.bench import command
from tfbuild.bench.session import Settings
from tfbuild.in_container.bench import worker
from tfbuild.in_container.smoke import probes, references
from tfbuild.measure import experiments, rounds
from tfbuild.measure.records import BenchReport
from tfbuild.util.files import decode
from tfbuild.util.progress import Progress
from tfbuild.verify import session
from tfbuild.verify.checks import INSTALLED

PLANTED = ROOT / "tests" / "data" / "bench" / "planted.py"
MORE = '''
import mmap, os, time
import tensorflow as tf
from ...smoke.probes import Unfit
from . import FunctionWork, Work, workload

class Asleep(Work):
    """Sleeps, and touches 40 MiB of new memory once a call."""
    note = os.environ.get("UNSET", "unset")
    items = 3
    def call(self):
        memory = mmap.mmap(-1, 40 * 2**20)
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            memory.madvise(mmap.MADV_NOHUGEPAGE)
        memory[:: mmap.PAGESIZE] = bytes(len(memory) // mmap.PAGESIZE)
        time.sleep(0.02)
    def value(self):
        return 1e300

@workload
def asleep(): return Asleep()

@workload
def refused(): raise Unfit("not on this CPU")

@workload
def reshaped(): return FunctionWork(lambda x: tf.reshape(x, tf.cast(x, tf.int32)), tf.ones([2]))

@workload
def exported(path):
    module = tf.Module()
    signature = [tf.TensorSpec([None, None, 64], name="x")]
    module.served = tf.function(lambda x: tf.matmul(x, x, transpose_b=True), input_signature=signature)
    tf.saved_model.save(module, path, signatures=module.served)
    return Asleep()
'''
Ask = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def running(python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Ask, int]]:
    folder = tmp_path_factory.mktemp("worker") / "in_container"
    shutil.copytree(ROOT / "tfbuild" / "in_container", folder)
    workloads = folder / "bench" / "workloads"
    shutil.copy(PLANTED, workloads)
    (workloads / "more.py").write_text(MORE)
    command = [python, "-B", str(folder / "bench"), "", "UNSET"]
    env = {**os.environ, "UNSET": "still set", "TF_CPP_MIN_LOG_LEVEL": "2"}
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        pipes = process.stdin, process.stdout

        def ask(question: str, **more: Any) -> dict[str, Any]:
            print(json.dumps({"ask": question, **more}), file=pipes[0], flush=True)
            return dict(json.loads(pipes[1].readline()))

        yield ask, process.pid
        process.stdin.close()
        assert process.wait() == 0


@pytest.fixture
def ask(running: tuple[Ask, int]) -> Ask:
    return running[0]


def memory(process: int, name: str) -> float:
    """What the kernel says of a process, in MiB."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) / 1024


def prepared(ask: Ask, workload: str, **params: Any) -> worker.Ready:
    return worker.Ready(**ask("prepare", key=workload, workload=workload, params=params))


def test_a_worker_prepares_times_and_drops_its_work(running: tuple[Ask, int]) -> None:
    ask, process = running
    hello = worker.Hello(**ask("hello"))
    assert Path(hello.malloc).name == "libc.so.6"
    ready = prepared(ask, "plain", size=64)
    assert (ready.reason, ready.guard, ready.items, ready.error, ready.note) == ("", "", 1, None, "")
    assert ready.value == pytest.approx(518.0156)
    assert ready.nodes == 7
    assert 0 < ready.build < 60
    assert 0 < ready.first < 60
    asleep = prepared(ask, "asleep")
    assert (asleep.note, asleep.items, asleep.nodes) == ("unset", 3, 0)
    assert asleep.value == references.MOST_VALUE, "what is absurdly large, or no number"
    (inner,) = ask("calibrate", key="asleep").values()
    assert 1 <= inner <= 6, "about a tenth of a second, on a busy machine longer"
    sample = worker.WorkerSample(**ask("sample", key="asleep", inner=5))
    cpus = len(os.sched_getaffinity(0))
    assert (sample.cpus, sample.traces, sample.throttled >= 0) == (cpus, 1, True)
    assert 0.1 <= sample.wall < 5
    assert 0 < sample.cpu < sample.wall
    assert sample.cpu <= sample.busy <= cpus * sample.wall + 0.1
    assert 5 * 10_240 <= sample.faults < 60_000, "one for each page"
    assert sample.rss == pytest.approx(memory(process, "VmRSS"), rel=0.2)
    prepared(ask, "exact", seconds=0.02)
    sample = worker.WorkerSample(**ask("sample", key="exact", inner=5))
    assert 0.1 <= sample.cpu < 0.15
    assert sample.cpu <= 1.001 * sample.wall, "the kernel's two clocks differ by some millionths"
    assert ask("idle", key="plain")["share"] < worker.MOST_IDLE
    peak = worker.Peak(**ask("once", workload="asleep", params={}))
    assert (peak.items, peak.reason, peak.limit) == (3, "", probes.memory())
    assert peak.peak == pytest.approx(memory(process, "VmHWM"))
    assert ask("drop") == {"count": 3}
    assert ask("drop") == {"count": 0}


def test_mistakes_that_would_falsify_a_result_are_reported(ask: Ask) -> None:
    assert prepared(ask, "constant").guard == "constant folding: MatMul, Sum (depending on no input)"
    assert prepared(ask, "trifle").guard == ""
    prepared(ask, "retraced")
    assert ask("sample", key="retraced", inner=2)["traces"] > 2
    prepared(ask, "plain")
    quiet = ask("idle", key="plain")["share"]
    prepared(ask, "kept")
    assert ask("idle", key="kept")["share"] > 5 * max(quiet, 0.004), "as far as others leave it a CPU"
    ask("drop")


@pytest.mark.parametrize(
    ("workload", "reason"),
    [
        ("nosuch", "KeyError: 'nosuch'"),
        ("refused", "not on this CPU"),
        ("reshaped", "InvalidArgumentError: {{function_node __inference_<lambda>_"),
        ("unfit", "AttributeError: "),
    ],
)
def test_what_cannot_run_says_why_in_one_line(workload: str, reason: str, ask: Ask) -> None:
    told = prepared(ask, workload)
    assert told.reason.startswith(reason)
    assert "\n" not in told.reason
    assert worker.Ready(reason=told.reason) == told
    if workload != "nosuch":
        peak = worker.Peak(**ask("once", workload=workload, params={}))
        assert peak.reason.startswith(reason[:20])


def test_a_precision_has_its_error(ask: Ask) -> None:
    limits = {"float32": (0, 1e-5), "keras": (1e-3, 2e-2)}
    for precision, (least, most) in limits.items():
        for train in (True, False):
            ready = prepared(ask, "model", name="transformer", precision=precision, train=train)
            assert least <= (ready.error or 0) <= most, (precision, ready)
    assert prepared(ask, "model", name="transformer").error is None, "the last one's policy is not this one's"


@pytest.fixture
def no_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside other tests each round is disturbed, and would be run three times (tests/measure/test_workers.py)."""
    monkeypatch.setattr(rounds, "MOST_REPEATS", 0)


@pytest.mark.usefixtures("no_repeats")
def test_an_installed_tensorflow_is_measured_without_an_engine(python: str, tmp_path: Path) -> None:
    row = experiments.select_experiments(["jpeg"], quick=True)
    settings = Settings(mode="quick", budget=300, rounds=6)
    command.run("", row, settings, tmp_path, json=True, python=str(Path(python).parents[1]))
    (written,) = tmp_path.glob("bench-tensorflow-2.21.0-*.json")
    report = decode(written.read_bytes(), BenchReport)
    assert report.image.id == python
    assert [arm.status for case in report.experiments[0].cases for arm in case.arms] == ["measured"] * 2


@pytest.fixture(scope="module")
def mine(running: tuple[Ask, int], tmp_path_factory: pytest.TempPathFactory) -> str:
    """Saved by the worker, which has imported TensorFlow already."""
    folder = str(tmp_path_factory.mktemp("saved") / "mine")
    assert running[0]("once", workload="exported", params={"path": folder})["reason"] == ""
    return folder


@pytest.mark.usefixtures("no_repeats")
def test_a_saved_model_of_the_user_s_own_is_measured(mine: str, python: str, tmp_path: Path) -> None:
    chosen = command.with_saved_model(Settings(mode="budget", budget=600, rounds=6), [mine], ["x=1,16,64"], "")
    rows = command.rows_of(["batchsize"], chosen, [mine], "")
    command.run("", rows, chosen, tmp_path, json=True, name="mine", python=python)
    (sweep,) = decode((tmp_path / "mine.json").read_bytes(), BenchReport).experiments
    assert [(arm.name, arm.items, arm.status) for arm in sweep.cases[0].arms] == [
        (f"batch {size}", size, "measured") for size in (1, 4, 16, 64, 256)
    ]


def test_bfloat16_s_error_is_relative_to_a_process_that_does_not_round(mine: str, python: str) -> None:
    params = {"path": mine, "shapes": "x=1,64,64", "precision": "float32"}
    question = json.dumps({"ask": "prepare", "key": "k", "workload": "saved_model", "params": params})
    env = {**os.environ, "TF_SET_ONEDNN_FPMATH_MODE": "BF16", "TF_ENABLE_ONEDNN_OPTS": "1", "ONEDNN_VERBOSE": "1"}
    command = [python, "-B", str(ROOT / "tfbuild" / "in_container" / "bench"), ""]
    done = subprocess.run(command, env=env, input=question, capture_output=True, text=True, check=True)
    ready = worker.Ready(**json.loads(done.stdout))
    assert ready.reason == ""
    assert 0 <= (-1 if ready.error is None else ready.error) < 0.1, "only some CPUs do round"
    products = [line for line in done.stderr.splitlines() if ",exec,cpu,matmul," in line]
    assert {"attr-fpmath:bf16" in line for line in products} == {True, False}


# The code of all libraries takes minutes to read.
@pytest.mark.parametrize(
    "names", [("import", "isa", "onednn", "numerics"), pytest.param(("code",), marks=pytest.mark.nightly)]
)
def test_an_installed_official_wheel_is_what_it_claims(
    names: tuple[str, ...], python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS")
    monkeypatch.setattr(session, "INSTALLED", [check for check in INSTALLED if check.name in names])
    report = session.verify_installed(str(Path(python).parents[1]), Progress(io.StringIO()), tmp_path)
    assert [(check.name, check.status) for check in report.checks] == [(name, "pass") for name in names]
