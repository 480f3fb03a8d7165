"""A whole run on an engine whose workers answer by the protocol: what is started, asked and reported, and in what time.

The clock goes on by what the workers' samples take.
"""

import io
import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests import clock
from tests.bench.test_findings import VERBOSE
from tests.clock import Stopped
from tests.measure.test_rounds import MACHINE
from tests.measure.test_workers import MadeUpEngine, MadeUpWorker, Script
from tests.verify.test_judge import ENVIRONMENT, TENSORFLOW
from tfbuild.bench import command, evidence, session
from tfbuild.bench import report as reporting
from tfbuild.bench.session import Settings
from tfbuild.context import labels
from tfbuild.engine import ContainerRun, Engine, Image
from tfbuild.errors import DiskFull, EngineMissing, Interrupted, TfbuildError, UnknownImage, UsageError
from tfbuild.in_container.bench.worker import Ready
from tfbuild.measure import experiments, rounds
from tfbuild.measure.records import BenchReport, Other
from tfbuild.util.files import decode
from tfbuild.util.progress import Progress

ID = "sha256:0123456789abcdef"
IMAGE = Image(
    id=ID, labels={"io.tfbuild.id": "2.21.0-mkl"}, size=1, env=("PATH=/bin", "TF_ENABLE_ONEDNN_OPTS=1", "LD_PRELOAD=x"),
    architecture="amd64", repo_digests=(), tags=("tfbuild:x",),
)  # fmt: skip


@dataclass
class BenchEngine(MadeUpEngine):
    """`runs`: what was run in containers of their own; `interrupted_by`: the question at which Ctrl-C is pressed."""

    clock: Stopped = field(default_factory=Stopped)
    lock: threading.Lock = field(default_factory=threading.Lock)
    interrupted_by: int = 10**9
    version: str = "docker 20.10"
    local: bool = True
    slow: float = 0.0
    no_gpu: str = "the engine offers no GPU"
    start: str = f"{json.dumps(asdict(ENVIRONMENT))}\n{json.dumps(asdict(TENSORFLOW))}\n"
    runs: list[dict[str, Any]] = field(default_factory=list)

    def image(self, ref: str) -> Image:
        return IMAGE if ref in (ID, "tfbuild:x") else replace(IMAGE, id="sha256:other", env=("LD_PRELOAD=x",))

    def exists(self, ref: str) -> bool:
        return ref == ID

    def watched(self, use: str) -> AbstractContextManager[Callable[[], None]]:
        assert use == "the benchmark"
        return nullcontext(lambda: None)

    def lacks_gpus(self, image: str) -> str:
        assert image == ID
        self.clock.now += self.slow
        return self.no_gpu

    def run(self, ref: str, command: list[str], **options: Any) -> ContainerRun:
        assert ref in (ID, "sha256:other")
        self.runs.append({"command": command, **options})
        stdout = self.start if "probe" in command else ""
        on = options["env"].get("TF_ENABLE_ONEDNN_OPTS") == "1"
        return ContainerRun(exit_code=0, stdout=stdout, stderr=VERBOSE if on else "", truncated=False)

    def worker(self, ref: str, command: list[str], *, env: Mapping[str, str], **more: Any) -> MadeUpWorker:
        worker = super().worker(ref, command, env=env, **more)
        ask = worker.ask

        def timed(line: str, timeout: float) -> str:
            if len(self.script.asked) == self.interrupted_by:
                self.interrupted_by = 0
                raise KeyboardInterrupt
            answer = ask(line, timeout)
            with self.lock:
                self.clock.now += json.loads(answer).get("wall", 0.5)
            return answer

        worker.ask = timed  # type: ignore[method-assign]
        return worker


def bench(*names: str, engine: BenchEngine | None = None, **more: Any) -> tuple[BenchReport, BenchEngine, str]:
    """Run these experiments; return the report, the engine and what was printed meanwhile."""
    settings = Settings(**{"mode": "budget", "budget": 4000.0, **more})
    with pytest.MonkeyPatch.context() as patch:
        stopped = clock.stop(patch, rounds, session, evidence)
        engine = engine or BenchEngine(Script(), clock=stopped)
        engine.clock, told = stopped, io.StringIO()
        rows = command.rows_of(names, settings, (), "")
        report = session.bench(cast(Engine, engine), "tfbuild:x", rows, settings, Progress(told), lambda: None)
    return report, engine, re.sub(r"\([\d.]+ s\)", "(in a moment)", told.getvalue())


def statuses(report: BenchReport) -> dict[str, str]:
    return {row.name: row.status for row in report.experiments}


def test_a_run_with_time_enough_measures_every_case_in_every_round() -> None:
    names = ("tuning", "onednn", "batchsize", "layout", "isa", "pipeline")
    seconds = {"oneDNN on": 0.005, "batch 64": 0.02}
    report, engine, _ = bench(*names, rounds=6, against="tfbuild:other", engine=BenchEngine(Script(seconds=seconds)))
    assert statuses(report) == dict.fromkeys(names, "measured")
    for row in report.experiments:
        for case in row.cases:
            skipped = "on a GPU" in case.name
            assert (case.status, len(case.rounds)) == (("skipped", 0) if skipped else ("measured", 6)), case.name
    onednn = next(row for row in report.experiments if row.name == "onednn")
    assert {arm.effect for case in onednn.cases for arm in case.arms[1:]} == {"faster"}
    assert [one.text[:24] for one in onednn.findings] == ["TF_ENABLE_ONEDNN_OPTS=1:"]
    batches = next(row for row in report.experiments if row.name == "batchsize")
    assert sum("an item of a batch takes 512 KiB" in one.text for one in batches.findings) == len(batches.cases)
    assert {one["ref"] for one in engine.started} == {ID, "sha256:other"}
    unset = [one["command"] for one in engine.started if "LD_PRELOAD" in one["env"]]
    assert unset
    assert all({"LD_PRELOAD", "TF_ENABLE_ONEDNN_OPTS"} <= {*command} for command in unset), "the image's tuning"
    assert report.image.env == {"TF_ENABLE_ONEDNN_OPTS": "1", "LD_PRELOAD": "x"}
    assert report.image.against == "tfbuild:other"
    assert report.image.other == Other(id="sha256:other", tensorflow="2.21.0", env={"LD_PRELOAD": "x"})
    (line,) = reporting.headlines(report)
    assert line.endswith("; the images also differ in TF_ENABLE_ONEDNN_OPTS 1 against unset")
    assert "tfbuild:other (sha256:other), TensorFlow 2.21.0" in reporting.to_html(report)


OWN = {"model": "mine", "shapes": "x=1,3", "least": 1}


@pytest.mark.parametrize(
    ("given", "items", "seconds", "expected"),
    [
        (0, 1, (0.01, 0.01, 0.01, 0.04, 0.16), [1, 16]),
        (0, 1, (0.01, 0.04, 0.16, 0.64, 2.56), [1]),
        (8, 1, (0.01, 0.01, 0.01, 0.04, 0.16), [1, 8]),
        (1, 1, (0.01, 0.01, 0.01, 0.04, 0.16), [1]),
        (0, 8, (), [8]),
    ],
)
def test_a_user_s_own_model_is_measured_at_the_batches_that_its_sweep_finds(
    given: int, items: int, seconds: tuple[float, ...], expected: list[int]
) -> None:
    sizes = (1, 4, 16, 64, 256)
    fixed = {f"batch {size}": Ready(reason="its batch is fixed") for size in sizes[1:]}
    ready = {f"batch {size}": Ready(items=size) for size in sizes} if seconds else fixed
    script = Script(
        seconds=dict(zip(ready, seconds, strict=False)),
        ready={**ready, **dict.fromkeys(("batch 1", "again", "oneDNN off", "oneDNN on"), Ready(items=items))},
    )
    report, engine, _ = bench(
        "batchsize",
        "onednn",
        "isa",
        rounds=6,
        engine=BenchEngine(script),
        model=OWN | {"batch": given or 1, "given": given},
    )
    sweep, onednn, isa = report.experiments
    assert [case.name for case in onednn.cases] == [f"mine, batch {size}" for size in expected]
    assert [case.arms[1].params for case in onednn.cases] == [{"shapes": "x=1,3", "batch": size} for size in expected]
    assert (onednn.status, isa.status) == ("measured", "skipped")
    assert ("a call" in "".join(one.text for one in sweep.findings)) == bool(seconds), "what is one item's latency"
    asked = [json.loads(line) for one in engine.runs if "stdin" in one for line in one["stdin"].splitlines()]
    assert [one["params"]["batch"] for one in asked] == expected, "the primitives of the same work"


def test_a_model_that_cannot_run_ends_the_run_with_what_to_do() -> None:
    script = Script(ready={"batch 1": Ready(reason="its input x is (None, None): give --shape x=1,128")})
    with pytest.raises(UsageError, match=r"the model mine cannot be measured: its input x is .* --shape x=1,128"):
        bench(engine=BenchEngine(script), model=OWN)


def test_a_run_in_haste_gives_each_case_an_interval_first() -> None:
    names = ("tuning", "onednn", "jpeg", "threads", "models")
    report, *_ = bench(*names, budget=120.0)
    assert report.seconds <= 120 + session.GRACE_SECONDS
    assert set(statuses(report).values()) <= {"measured", "truncated"}
    rounds_of = {case.name: len(case.rounds) for row in report.experiments for case in row.cases if case.rounds}
    assert rounds_of
    assert [count for count in rounds_of.values() if count < 6] == []
    for row in report.experiments:
        for case in row.cases:
            assert case.status == "measured" or "time budget" in case.reason


def test_the_start_counts_as_part_of_the_budget() -> None:
    report, *_ = bench(mode="quick", budget=80.0, engine=BenchEngine(Script(), slow=60))
    assert [*statuses(report)] == [row.name for row in experiments.select_experiments((), quick=True)]
    assert 60 < report.seconds <= 80 + session.GRACE_SECONDS


def test_a_gpu_is_given_only_to_the_cases_that_need_one() -> None:
    sent = f"{json.dumps(asdict(ENVIRONMENT))}\n{json.dumps(asdict(replace(TENSORFLOW, gpus=1)))}\n"
    report, engine, _ = bench("batchnorm", rounds=6, engine=BenchEngine(Script(), no_gpu="", start=sent))
    (row,) = report.experiments
    assert [case.status for case in row.cases] == ["measured"] * 4
    assert engine.runs[0]["gpus"] is True, "the first probe counts them"
    assert bench("batchnorm", rounds=6)[1].runs[0]["gpus"] is False
    hidden = {one["env"].get("CUDA_VISIBLE_DEVICES") for one in engine.started}
    assert hidden == {None, "-1"}


def test_cases_share_their_processes_unless_their_row_asks_for_new_ones() -> None:
    for name in ("onednn", "models", "precision"):
        (row,) = experiments.select_experiments([name], quick=False)
        started = bench(name, rounds=6)[1].started
        assert len(started) == (len(row.arm) + 1) * (len(row.case) if row.fresh else 1), "each, and the first again"


def test_ctrl_c_keeps_what_was_measured() -> None:
    report, *_ = bench("onednn", "jpeg", "layout", engine=BenchEngine(Script(), interrupted_by=100))
    assert report.interrupted
    assert statuses(report)["onednn"] == "interrupted"
    assert any(case.rounds for row in report.experiments for case in row.cases)
    assert "layout" not in statuses(report)


@pytest.mark.parametrize("start", ["", f"{json.dumps(asdict(ENVIRONMENT))}\n"])
def test_an_image_without_tensorflow_is_refused(start: str) -> None:
    with pytest.raises(UnknownImage, match=r"tfbuild:x cannot import TensorFlow: .*without output"):
        bench("jpeg", engine=BenchEngine(Script(), start=start))


def unread(_: str) -> None:
    raise BrokenPipeError


def test_the_verb_prints_and_writes_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped, reports = clock.stop(monkeypatch, rounds, session), tmp_path / "a" / "reports"
    engines = [BenchEngine(Script(), clock=stopped, interrupted_by=most) for most in (10**9, 10**9, 10**9, 20)]
    monkeypatch.setattr(Engine, "connect", lambda: engines.pop(0))
    monkeypatch.setattr(labels, "find_image", lambda _, name: name)
    chosen, jpeg = Settings(mode="full", budget=3000.0), experiments.select_experiments(["jpeg"], quick=False)
    command.run("tfbuild:x", jpeg, chosen, reports, json=False, name="before")
    printed = capsys.readouterr()
    assert printed.out.count("decode_and_crop") == 5
    assert printed.err.endswith(f"\nreport {reports}/before.html\n")
    assert sorted(path.name for path in reports.iterdir()) == ["before.html", "before.json"]
    report = decode((reports / "before.json").read_bytes(), BenchReport)
    assert {len(case.rounds) for row in report.experiments for case in row.cases} == {21}
    capsys.readouterr()
    command.run("tfbuild:x", jpeg, chosen, reports, json=True)
    printed = capsys.readouterr()
    (written,) = reports.glob("bench-2.21.0-mkl.json")
    assert written.read_text() == printed.out
    assert "report " not in printed.err
    written.unlink()
    with monkeypatch.context() as gone:
        gone.setattr("sys.stdout", SimpleNamespace(write=unread))
        with pytest.raises(BrokenPipeError):
            command.run("tfbuild:x", jpeg, chosen, reports, json=True)
    assert written.exists()
    with pytest.raises(Interrupted, match=rf"interrupted; the results so far are in {written}"):
        command.run("tfbuild:x", jpeg, chosen, reports, json=True)
    with pytest.raises(UsageError, match="--against changes nothing"):
        command.run("tfbuild:x", jpeg, replace(chosen, against="tfbuild:y"), reports, json=True)
    with pytest.raises(UsageError, match=r"--name '\.\./x' is not a valid name"):
        command.run("tfbuild:x", jpeg, chosen, reports, json=True, name="../x")


# --- the budget -------------------------------------------------------------------------------------------------------


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> Stopped:
    return clock.stop(monkeypatch, session)


@pytest.mark.parametrize(
    ("options", "mode", "budget"),
    [
        ({"quick": True}, "quick", 80),
        ({"full": True}, "full", 3600),
        ({}, "budget", 300),
        ({"budget": "2m30s"}, "budget", 150),
    ],
)
def test_how_long_it_may_take(options: dict[str, object], mode: str, budget: float) -> None:
    given = {"quick": False, "full": False, "budget": "", "against": "", **options}
    chosen = command.run_settings(**given)  # type: ignore[arg-type]
    assert (chosen.mode, chosen.budget) == (mode, budget)


def test_the_list_needs_no_engine(capsys: pytest.CaptureFixture[str]) -> None:
    chosen = command.run_settings(quick=False, full=False, budget="", against="")
    command.show_rows(experiments.known_experiments(), chosen, json=True)
    shown = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in shown] == [row.name for row in experiments.known_experiments()]
    command.show_rows(experiments.known_experiments(own=True), replace(chosen, model=OWN), json=False)
    assert "{" not in (shown := capsys.readouterr().out)
    assert "- mine, batch N: the default; intra-op 1; intra-op half" in shown
    command.show_rows(experiments.select_experiments(["jpeg"], quick=False), chosen, json=False)
    printed = capsys.readouterr()
    assert "decode_and_crop_jpeg is said to be up to 30 percent faster" in printed.out
    assert "of 300 s: jpeg 300 s" in printed.err


def test_what_the_budget_leaves_no_time_for_is_skipped_with_the_reason() -> None:
    settings = command.run_settings(quick=True, full=False, budget="", against="")
    engine = cast(Engine, SimpleNamespace(image=lambda _: IMAGE))
    end = time.monotonic() + 1
    run = session.Session(engine, settings, MACHINE, Progress(io.StringIO()), lambda: None, end)
    run.run(experiments.known_experiments())
    done = [row.result() for row in run.runs]
    assert [row.name for row in done] == [row.name for row in experiments.known_experiments()]
    assert {row.status for row in done} == {"skipped"}
    reasons = {row.name: row.reason for row in done}
    for name in ("isa", "overhead"):
        assert "--against IMAGE" in reasons.pop(name), "more time would not mend it"
    assert "there is nothing to unset" in reasons.pop("tuning")
    assert set(reasons.values()) == {"the budget leaves no time for it"}
    assert not run.interrupted


@pytest.mark.parametrize(
    "error", [EngineMissing("no engine"), DiskFull("full"), UnknownImage("no image"), TfbuildError("refused")]
)
@pytest.mark.parametrize("asked", ["engine", "image"])
def test_where_the_engine_or_the_image_is_gone_nothing_more_is_measured(error: TfbuildError, asked: str) -> None:
    def ask(what: str) -> None:
        if what == asked:
            raise error

    engine = cast(Engine, SimpleNamespace(image=lambda _: ask("image")))
    settings, told = Settings(mode="quick", budget=60), io.StringIO()
    run = session.Session(engine, settings, MACHINE, Progress(told), lambda: ask("engine"), time.monotonic() + 60)
    run.run(experiments.known_experiments())
    assert (run.interrupted, run.runs, told.getvalue()) == (True, [], f"bench: {error.reason}\n")


def test_an_environment_that_is_removed_costs_nothing_that_was_measured() -> None:
    class Removed(BenchEngine):
        def image(self, ref: str) -> Image:
            if self.script.times("sample", "decode_and_crop"):
                raise UsageError(f"{ref} has no Python")
            return super().image(ref)

    report, _, told = bench("jpeg", "layout", rounds=6, engine=Removed(Script()))
    assert (report.interrupted, statuses(report)) == (True, {"jpeg": "measured"})
    assert told.endswith(f"bench: {ID} has no Python\n")


class Refusing(BenchEngine):
    def run(self, ref: str, command: list[str], **options: Any) -> ContainerRun:
        if "probe" not in command:
            raise TfbuildError("the container engine refused: no more")
        return super().run(ref, command, **options)


def test_an_engine_that_refuses_the_container_for_a_log_costs_only_the_log() -> None:
    (row,) = bench("onednn", rounds=6, engine=Refusing(Script()))[0].experiments
    assert row.status == "measured"
    assert row.findings[0].text.endswith("oneDNN's log could not be read: the container engine refused: no more")


def test_what_is_left_of_the_budget_is_shared_by_weight(stopped: Stopped) -> None:
    left = session.Clock(stopped.now + 100, [30.0, 10.0, 60.0])
    assert left.share() == pytest.approx(30)
    assert left.share() == pytest.approx(100 / 7), "nothing of the first share was used"
    stopped.now += 40
    assert left.share() == pytest.approx(60)
    assert session.Clock(stopped.now + 20, [1.0, 99.0]).share() == session.LEAST_SECONDS
    assert session.Clock(stopped.now + 100, [0.0]).share() == session.LEAST_SECONDS
    assert session.Clock(stopped.now + 2, [1.0, 99.0]).share() == 2


def test_full_holds_what_the_rows_say_that_they_take() -> None:
    taken = sum(row.seconds(case) for row in experiments.known_experiments() for case in row.case)
    assert taken <= session.SECONDS["full"]
