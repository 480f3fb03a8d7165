"""From workers to a judged case: which process does what, what is repeated, and what a lost process takes with it.

The engine of these tests has workers that answer by the protocol, with times that the test gives.
"""

import json
import random
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, cast

import pytest

from tests.measure.test_rounds import MACHINE
from tfbuild.engine import Engine, WorkerDied
from tfbuild.errors import EngineMissing
from tfbuild.in_container.bench.worker import Calibrated, Dropped, Hello, Idle, Peak, Ready, WorkerSample
from tfbuild.measure import probe, rounds, workers
from tfbuild.measure.evaluate import BASE_AGAIN
from tfbuild.measure.experiments import Arm, Case, Experiment
from tfbuild.measure.records import CaseResult, Round
from tfbuild.measure.rounds import CaseRun, RoundLimits
from tfbuild.measure.workers import NO_GPU, SHARED_GPU, Key, MeasurementError, Pool

LATER = time.monotonic() + 1e6


@dataclass
class Script:
    """What the workers do; names are those of sides.

    `seconds`: of one call. `dies`: questions that end the worker, each once. `foreign`: CPU seconds that others use in
    the samples to come. `idle`: CPUs used while idle. `no_start`: workers that die at once. `gone`: no engine answers
    any more. `asked`: what was asked.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    ready: dict[str, Ready] = field(default_factory=dict)
    dies: list[tuple[str, str]] = field(default_factory=list)
    foreign: list[float] = field(default_factory=list)
    idle: dict[str, float] = field(default_factory=dict)
    traces: dict[str, int] = field(default_factory=dict)
    inner: int = 20
    no_start: int = 0
    malloc: str = "/usr/lib/libc.so.6"
    huge: float = 0.0
    gone: bool = False
    asked: list[tuple[str, str]] = field(default_factory=list)
    workers: list["MadeUpWorker"] = field(default_factory=list)

    def times(self, question: str, name: str) -> int:
        return self.asked.count((question, name))


@dataclass
class MadeUpWorker:
    """A process that knows only what was built in it, and answers only while it alone runs."""

    script: Script
    env: Mapping[str, str]
    runs: bool = True
    open: bool = True
    built: set[str] = field(default_factory=set)

    def pause(self) -> None:
        self.runs = False

    def resume(self) -> None:
        self.runs = True

    def close(self) -> None:
        self.open = False
        if self.script.gone:
            raise EngineMissing("no container engine answers")

    def ask(self, line: str, timeout: float) -> str:
        question = json.loads(line)
        kind, name = question["ask"], question.get("key", "").rpartition("/")[2]
        others = [one for one in self.script.workers if one.open and one is not self]
        assert self.open
        assert self.runs
        # What is timed runs alone; several cases are built at once, and each worker's own idle time is seen then.
        assert kind in ("hello", "prepare", "idle") or not any(one.runs for one in others)
        self.script.asked.append((kind, name))
        if (kind, name) in self.script.dies:
            self.script.dies.remove((kind, name))
            raise WorkerDied("the worker ended:\nfirst\nSegmentation fault")
        assert kind in ("hello", "prepare", "drop", "once") or name in self.built, "it would not know what to time"
        return json.dumps(asdict(self.answer(kind, name, question)))

    def answer(self, kind: str, name: str, question: dict[str, Any]) -> Any:
        script = self.script
        if kind == "hello":
            return Hello(malloc=script.malloc, huge=script.huge)
        if kind == "prepare":
            self.built.add(name)
            return script.ready.get(name, Ready(value=1.0))
        if kind == "idle":
            return Idle(share=script.idle.get(name, 0.0))
        if kind == "calibrate":
            return Calibrated(inner=script.inner)
        if kind == "drop":
            return Dropped(count=len(self.built))
        if kind == "once":
            batch = question["params"].get("batch", 1)
            return Peak(items=batch, peak=500.0 + 0.5 * batch, limit=24000.0)
        wall = question["inner"] * script.seconds.get(name, 0.01)
        busy = wall + (script.foreign.pop(0) if script.foreign else 0.0)
        traces = script.traces.get(name, 1)
        return WorkerSample(wall=wall, cpu=wall, busy=busy, cpus=2, traces=traces, faults=0, throttled=0, rss=100.0)


@dataclass
class MadeUpEngine:
    """`started`: the workers that were asked for, with their options."""

    script: Script
    started: list[dict[str, Any]] = field(default_factory=list)

    def worker(self, ref: str, command: list[str], *, env: Mapping[str, str], **more: Any) -> MadeUpWorker:
        self.started.append({"ref": ref, "command": command, "env": dict(env), **more})
        if self.script.no_start:
            self.script.no_start -= 1
            raise WorkerDied("the worker ended:\nImportError: no such symbol")
        self.script.workers.append(MadeUpWorker(self.script, env))
        return self.script.workers[-1]


def case_of(script: Script, *arms: Arm, strict: bool = False) -> CaseRun:
    """Return a case whose arms, but the baseline, have a process of their own."""
    others = arms or (Arm(name="arm", env={"SWITCH": "1"}),)
    case = Case(name="c", workload="w", arm=(Arm(name="baseline"), *others))
    row = Experiment(name="x", question="-", compares="-", changes="-", source="-", case=(case,))
    pool = Pool(cast(Engine, MadeUpEngine(script)))
    return CaseRun(row=row, case=case, machine=MACHINE, pool=pool, tell=lambda _: None, strict=strict)


def measured(run: CaseRun, count: int = 8, end: float = LATER) -> CaseResult:
    rounds.prepare([run], end)
    rounds.run([run], RoundLimits(rounds=count, end=end, latest=end), random.Random(1))
    return run.result()


def states(result: CaseResult) -> dict[str, tuple[str, str]]:
    return {arm.name: (arm.status, arm.reason) for arm in result.arms}


def test_arms_are_timed_in_processes_with_their_environment() -> None:
    script = Script(seconds={"arm": 0.005})
    result = measured(case_of(script))
    assert result.status == "measured"
    assert len(result.rounds) == 8
    assert result.arms[1].same is None, "no row says that both compute the same"
    assert result.arms[1].effect == "faster"
    assert result.arms[1].cpu is not None
    assert result.arms[1].cpu.median == pytest.approx(2)
    environments = [{name: value for name, value in one.env.items() if name == "SWITCH"} for one in script.workers]
    assert environments == [{}, {"SWITCH": "1"}, {}], "the baseline again is a process of its own"
    assert [one for one in script.workers if not NO_GPU.items() <= one.env.items()] == []
    assert [script.times("prepare", name) for name in ("baseline", "arm", BASE_AGAIN)] == [1, 1, 1]
    assert script.asked.index(("prepare", BASE_AGAIN)) < script.asked.index(("prepare", "arm")), (
        "without it nothing counts"
    )


def test_the_same_work_is_called_as_often_in_each_sample() -> None:
    script = Script(seconds={"arm": 0.009})
    run = case_of(script)
    measured(run)
    assert [side.inner for side in run.sides] == [20, 20, 20]
    assert sum(kind == "calibrate" for kind, _ in script.asked) == 1
    script = Script(seconds={"baseline": 0.06, BASE_AGAIN: 0.06, "arm": 0.06}, inner=2)
    measured(case_of(script))
    assert sum(kind == "calibrate" for kind, _ in script.asked) == 1
    script = Script(seconds={"arm": 0.1})
    measured(case_of(script))
    assert script.times("calibrate", "arm") == 1, "20 of its calls would take more than three samples"


def test_a_sample_that_is_too_short_is_taken_again_with_more_calls() -> None:
    script = Script(seconds={"baseline": 0.001, BASE_AGAIN: 0.001, "arm": 0.001})
    run = case_of(script)
    assert measured(run).status == "measured"
    assert {side.inner for side in run.sides} == {121}, "a fifth more than a tenth of a second takes"
    status, reason = states(measured(case_of(Script(seconds={"arm": 1e-12}, inner=1))))["arm"]
    assert status == "failed"
    assert reason.startswith("a sample would need")


def test_a_disturbed_round_is_taken_again_and_the_quietest_counts() -> None:
    # Each round has three samples of 0.2 s on two CPUs: 0.3 s of others are a quarter of it.
    script = Script()
    run = case_of(script)
    rounds.prepare([run], LATER)
    script.foreign = [0.1] * 3 + [0.2] * 3 + [0.06] * 3
    rounds.run([run], RoundLimits(rounds=1, end=LATER, latest=LATER), random.Random(1))
    (row,) = run.rounds
    assert row.foreign == pytest.approx(0.15)
    assert script.foreign == [], "two more tries"
    script.foreign = [0.04] * 3
    rounds.run([run], RoundLimits(rounds=1, end=LATER, latest=LATER), random.Random(1))
    assert run.rounds[1].foreign == pytest.approx(0.1), "quiet enough at once"
    assert script.times("sample", "arm") == 1 + 3 + 1


def test_a_side_that_is_lost_in_a_repeat_leaves_the_round_that_was_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    run, disturbed = case_of(Script()), Round(samples={}, foreign=0.5)
    tries = [disturbed, None, Round(samples={}, foreign=0.9)]
    monkeypatch.setattr(run, "_round", lambda _: tries.pop(0))
    run.quiet_round(random.Random(1), LATER)
    assert (run.rounds, tries) == ([disturbed], [])


# --- what cannot be measured ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "state"),
    [
        (Script(ready={"arm": Ready(reason="no such operation")}), ("skipped", "no such operation")),
        (Script(ready={"arm": Ready(guard="its result is a constant")}), ("failed", "its result is a constant")),
        (Script(idle={"arm": 0.5}), ("failed", "it used 50% of a CPU while idle: it works in the background")),
        (Script(traces={"arm": 2}), ("failed", "arm was traced 2 times: the time is that of TensorFlow's tracing")),
        (
            Script(dies=[("prepare", "arm")]),
            ("failed", "its process was lost: the worker ended: ... Segmentation fault"),
        ),
    ],
)
def test_an_arm_that_cannot_be_timed_leaves_the_others_their_rounds(script: Script, state: tuple[str, str]) -> None:
    result = measured(case_of(script, Arm(name="arm", env={"SWITCH": "1"}), Arm(name="other", env={"SWITCH": "2"})))
    assert states(result) == {"baseline": ("measured", ""), "arm": state, "other": ("measured", "")}
    assert len(result.rounds) == 8
    strict = replace(script, asked=[], workers=[], dies=[("prepare", "arm")] if state[1].startswith("its proc") else [])
    with pytest.raises((MeasurementError, WorkerDied)):
        measured(case_of(strict, strict=True))


@pytest.mark.parametrize("lost", [("prepare", BASE_AGAIN), ("calibrate", "baseline")])
def test_without_the_baseline_and_the_baseline_again_nothing_is_judged(lost: tuple[str, str]) -> None:
    result = measured(case_of(Script(dies=[lost])))
    assert (result.status, result.rounds) == ("failed", ())
    assert states(result)["baseline"] == ("failed", "its process was lost: the worker ended: ... Segmentation fault")


def test_a_baseline_that_dies_in_a_round_is_why_nothing_is_judged() -> None:
    script = Script()
    run = case_of(script)
    assert measured(run).status == "measured"
    script.dies = [("sample", "baseline")]
    result = measured(run, 1)
    assert (result.status, result.reason) == states(result)["baseline"]
    assert result.reason


def test_a_library_that_the_image_lacks_skips_the_arm_that_is_about_it() -> None:
    arms = (Arm(name="arm", env={"LD_PRELOAD": "x"}, malloc="libtcmalloc"), Arm(name="other", env={"SWITCH": "2"}))
    state = states(measured(case_of(Script(), *arms)))["arm"]
    assert state == ("skipped", "libtcmalloc is not in use: malloc comes from /usr/lib/libc.so.6")
    with_it = Script(malloc="/usr/local/lib/libtcmalloc_minimal.so.4")
    assert states(measured(case_of(with_it, *arms)))["arm"] == ("measured", "")
    huge = Arm(name="arm", process="own", place="huge"), arms[1]
    status, reason = states(measured(case_of(Script(), *huge)))["arm"]
    assert (status, "vm.nr_hugepages" in reason) == ("skipped", True)
    assert states(measured(case_of(Script(huge=2.0), *huge)))["arm"] == ("measured", "")


def test_what_shared_a_lost_process_is_built_again_in_a_new_one() -> None:
    script = Script(dies=[("prepare", "arm")])
    result = measured(case_of(script, Arm(name="arm", params={"n": 2}), Arm(name="other", params={"n": 3})))
    assert [name for name, (status, _) in states(result).items() if status == "measured"] == ["baseline", "other"]
    assert len(result.rounds) == 8
    assert script.times("prepare", "baseline") == script.times("prepare", BASE_AGAIN) == 2
    assert len(script.workers) == 2


def test_a_process_that_dies_in_a_round_takes_those_with_it_that_shared_it() -> None:
    script = Script()
    twin = Arm(name="twin", env={"SWITCH": "1"}, params={"n": 2})
    run = case_of(script, Arm(name="arm", env={"SWITCH": "1"}), twin, Arm(name="other", env={"SWITCH": "2"}))
    rounds.prepare([run], LATER)
    script.dies = [("sample", "twin")]
    rounds.run([run], RoundLimits(rounds=8, end=LATER, latest=LATER), random.Random(1))
    status = states(run.result())
    assert status["baseline"] == status["other"] == ("measured", "")
    assert status["twin"] == ("failed", "its process was lost: the worker ended: ... Segmentation fault")
    assert status["arm"] == ("failed", "it shared the process of twin, which was lost")


def test_an_engine_that_ended_is_to_blame_and_the_rounds_so_far_stay() -> None:
    script = Script(seconds={"arm": 0.005})
    run = case_of(script)
    measured(run, 6)

    def gone() -> None:
        raise EngineMissing("no container engine answers")

    run.pool.require_image, script.dies = gone, [("sample", "arm")]
    with pytest.raises(EngineMissing):
        rounds.run([run], RoundLimits(rounds=8, end=LATER, latest=LATER), random.Random(1))
    result = run.result(interrupted=True)
    assert (result.status, len(result.rounds), result.arms[1].effect) == ("interrupted", 6, "faster")


def test_workers_that_die_together_are_started_one_by_one() -> None:
    script = Script(no_start=1)
    assert measured(case_of(script)).status == "measured"
    script = Script(no_start=2)
    assert measured(case_of(script)).status == "failed"
    with pytest.raises(WorkerDied):
        measured(case_of(Script(no_start=1), strict=True))


@pytest.mark.parametrize("field", ["wall", "cpu", "cpus"])
def test_a_sample_without_time_or_processors_is_refused(field: str) -> None:
    sample = WorkerSample(wall=0.1, cpu=0.1, busy=0.1, cpus=2, traces=1, faults=0, throttled=0, rss=1.0)
    workers.check_sample("arm", sample)
    with pytest.raises(MeasurementError, match="arm took no time at all"):
        workers.check_sample("arm", WorkerSample(**{**vars(sample), field: 0}))


# --- time -------------------------------------------------------------------------------------------------------------


def test_what_a_sure_interval_needs_may_take_longer() -> None:
    run = case_of(Script())
    rounds.prepare([run], LATER)
    rounds.run([run], RoundLimits(rounds=8, end=time.monotonic() - 1, latest=LATER), random.Random(1))
    assert len(run.rounds) == 6


def test_what_was_built_is_dropped_and_a_worker_that_fails_to_is_closed() -> None:
    script = Script()
    run = case_of(script)
    measured(run, 1)
    assert len(run.pool.running()) == 3
    script.dies = [("drop", "")]
    run.pool.forget()
    assert [one.open for one in script.workers].count(False) == 1
    assert len(run.pool.running()) == 2


# --- several cases ----------------------------------------------------------------------------------------------------


def two_cases(script: Script) -> list[CaseRun]:
    """Return two cases that share the processes of one pool."""
    arms = (Arm(name="baseline"), Arm(name="arm", env={"SWITCH": "1"}))
    cases = (Case(name="one", workload="w", arm=arms), Case(name="two", workload="w", arm=arms))
    row = Experiment(name="x", question="-", compares="-", changes="-", source="-", together=True, case=cases)
    pool = Pool(cast(Engine, MadeUpEngine(script)))
    return [CaseRun(row=row, case=case, machine=MACHINE, pool=pool, tell=lambda _: None) for case in cases]


def test_cases_that_take_turns_share_their_processes_and_have_as_many_rounds() -> None:
    script, told = Script(), list[str]()
    runs = two_cases(script)
    for run in runs:
        run.tell = told.append
    rounds.prepare(runs, LATER)
    rounds.run(runs, RoundLimits(rounds=7, end=LATER, latest=LATER), random.Random(1))
    assert [run.result().status for run in runs] == ["measured", "measured"]
    assert [len(run.rounds) for run in runs] == [7, 7]
    assert len(script.workers) == 3, "the baseline, the arm, and the baseline again"
    assert script.times("prepare", "arm") == 2, "once for each case"
    assert told.count("one: round 1 of 7") == told.count("two: round 7 of 7") == 1


def test_a_process_that_is_lost_in_a_round_ends_the_other_case_s_arm_too() -> None:
    script = Script()
    runs = two_cases(script)
    rounds.prepare(runs, LATER)
    script.dies = [("sample", "arm")]
    rounds.run(runs, RoundLimits(rounds=7, end=LATER, latest=LATER), random.Random(1))
    reasons = [states(run.result())["arm"] for run in runs]
    assert {status for status, _ in reasons} == {"failed"}
    assert ("failed", "another case that shared its process was lost") in reasons


def test_the_case_with_the_fewest_rounds_decides_whether_there_are_enough() -> None:
    runs = two_cases(Script())
    rounds.prepare(runs, LATER)
    rounds.run(runs, RoundLimits(rounds=6, end=LATER, latest=LATER), random.Random(1))
    del runs[1].rounds[3:]
    rounds.run(runs, RoundLimits(rounds=8, end=time.monotonic() - 1, latest=LATER), random.Random(1))
    assert [(run.truncated, len(run.rounds)) for run in runs] == [(True, 9), (True, 6)]


# --- the pool ---------------------------------------------------------------------------------------------------------


def test_a_worker_is_started_with_its_image_environment_and_files() -> None:
    engine = MadeUpEngine(Script())
    pool = Pool(cast(Engine, engine), {"/more": b"x"})
    key = Key(image="sha256:1", env=(("A", "b"), ("GONE", ""), ("OPENBLAS_NUM_THREADS", "4")), gpus=True)
    pool.start([key, key])
    (first,) = engine.started
    assert first["ref"] == "sha256:1"
    assert first["command"] == ["python", f"{probe.FOLDER}/bench", "", "GONE"]
    assert first["env"] == SHARED_GPU | {"A": "b", "GONE": "", "OPENBLAS_NUM_THREADS": "4", "TF_CPP_MIN_LOG_LEVEL": "2"}
    assert first["files"] == {**probe.probe_files(), "/more": b"x"}
    assert (first["gpus"], first["sandbox"]) == (True, None)
    pool.start([key, Key(image="sha256:1")])
    assert engine.started[1]["env"] == {
        "CUDA_VISIBLE_DEVICES": "-1", "OPENBLAS_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"
    }  # fmt: skip
    assert len(engine.started) == 2
    pool.start([replace(key, place="huge")])
    assert [(one["command"][2], one["huge"]) for one in engine.started[::2]] == [("", False), ("huge", True)]


def test_workers_are_closed_though_their_engine_is_gone() -> None:
    """What is left open would complain when Python collects it, after the one message."""
    script = Script()
    pool = Pool(cast(Engine, MadeUpEngine(script)))
    pool.start([Key(image="a"), Key(image="b")])
    script.gone = True
    with pytest.raises(EngineMissing):
        pool.close(*pool.running())
    script.dies = [("hello", "")]
    with pytest.raises(EngineMissing):
        pool.start([Key(image="c"), Key(image="d"), Key(image="e")])
    assert [one.open for one in script.workers] == [False] * 5
    assert pool.running() == ()


def test_if_one_worker_does_not_start_those_that_started_with_it_are_closed() -> None:
    script = Script()
    pool = Pool(cast(Engine, MadeUpEngine(script)))
    old, new = Key(image="old"), Key(image="new")
    pool.start([old])
    assert (pool.turn(old), pool.turn(new)) == (1, 0)
    script.dies = [("hello", "")]
    with pytest.raises(WorkerDied):
        pool.start([old, new, Key(image="third")])
    assert pool.running() == (old,)
    assert [one.open for one in script.workers] == [True, False, False]
    # Each start of a worker counts, so that what was built in an earlier one is known to be gone.
    pool.close(old, new)
    assert pool.turn(old) == 0
    assert set(pool.start([old])) == {old}
    assert pool.turn(old) == 2


def test_a_worker_is_closed_after_an_error_and_paused_after_an_answer() -> None:
    script = Script()
    pool = Pool(cast(Engine, MadeUpEngine(script)))
    key = Key(image="a")
    pool.start([key])
    assert pool.ask(key, Dropped, ask="drop") == Dropped(count=0)
    assert not script.workers[0].runs
    with pytest.raises(MeasurementError, match="a worker's answer cannot be trusted: "):
        pool.ask(key, Calibrated, ask="drop")
    assert pool.running() == ()


@pytest.mark.parametrize(("inner", "calls"), [(1, 1), (1.2, 2), (7.01, 8), (99_999.4, 100_000)])
def test_calls_are_rounded_up(inner: float, calls: int) -> None:
    assert workers.whole_calls(inner) == calls


@pytest.mark.parametrize("inner", [0.99, 100_000.1, float("nan")])
def test_calls_have_a_limit(inner: float) -> None:
    with pytest.raises(MeasurementError, match="and at most 100000 are allowed"):
        workers.whole_calls(inner)


def test_foreign_load_is_what_the_samples_did_not_use() -> None:
    def sample(wall: float, cpu: float, busy: float) -> WorkerSample:
        return WorkerSample(wall=wall, cpu=cpu, busy=busy, cpus=4, traces=1, faults=0, throttled=0, rss=1.0)

    assert workers.foreign_share([sample(1, 1, 2), sample(3, 1, 2)]) == pytest.approx(2 / 16)
    assert workers.foreign_share([sample(1, 2, 1)]) == 0.0
