"""A session runs the checks in order on one image and reports what they found, whatever the image does."""

import io
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from tests.context.test_planned import LABELS
from tests.verify.test_judge import ENVIRONMENT, TENSORFLOW
from tfbuild import __version__
from tfbuild.binary.guard import Guard
from tfbuild.context.labels import PREFIX
from tfbuild.engine import Engine, Image, Sandbox
from tfbuild.errors import EngineMissing, UnknownImage
from tfbuild.in_container.smoke import judge
from tfbuild.in_container.smoke.judge import Judgement
from tfbuild.measure import probe
from tfbuild.measure.probe import Outcome
from tfbuild.util.progress import Progress
from tfbuild.verify import session
from tfbuild.verify.records import SCHEMA, Report
from tfbuild.verify.verification import Baseline, Start, Verification, VerificationCheck

IMAGE = Image(
    id="sha256:0a",
    labels={**LABELS, f"{PREFIX}copts": "--copt=-mavx --copt=-O2", f"{PREFIX}compiler": "clang\x1b[2J-16"},
    size=123,
    env=(),
    architecture="amd64",
    repo_digests=("x@sha256:1",),
)
STARTED = Start(outcome=Outcome(records=(ENVIRONMENT, TENSORFLOW), ended=judge.Ended(0, ""), output=""))


def row(name: str, run: Callable[[Verification], Judgement], **more: Any) -> VerificationCheck:
    return VerificationCheck(name=name, proves="it holds", how="by looking", fix="build it again", run=run, **more)


@dataclass(kw_only=True)
class FakeEngine:
    """An engine with one image. It runs nothing: the checks here are made up.

    `ended`: whether it has ended since the verification began.
    """

    image_: Image = IMAGE
    version: str = "engine 1"
    removed: bool = False
    ended: bool = False
    events: list[str] = field(default_factory=list)

    def image(self, ref: str) -> Image:
        self.events.append(f"image {ref}")
        return self.image_

    def exists(self, ref: str) -> bool:
        assert ref == self.image_.id
        return not self.removed

    @contextmanager
    def watched(self, use: str) -> Iterator[Callable[[], None]]:
        def require_engine() -> None:
            if self.ended:
                raise EngineMissing(f"the engine ended during {use}")

        try:
            yield require_engine
        except Exception:
            require_engine()
            raise

    @contextmanager
    def sandbox(self, ref: str, files: Mapping[str, bytes], path: str) -> Iterator[Sandbox]:
        assert {f"{path}/{name}" for name in files} == probe.files().keys()
        self.events.append(f"sandbox {ref} {path}")
        try:
            yield Sandbox(processes=1, volume="v", source="/v", path=path)
        finally:
            self.events.append("sandbox removed")


def check(name: str, status: str = judge.PASS, skip: str = "", detail: str = "seen") -> VerificationCheck:
    def run(state: Verification) -> Judgement:
        cast(FakeEngine, state.engine).events.append(f"{name} {state.ref}")
        return Judgement(status, detail, (judge.Measurement("faults", 2.0, "< 3"),))

    return row(name, run, skip=lambda _: skip)


def verified(
    monkeypatch: pytest.MonkeyPatch, *checks: VerificationCheck, engine: FakeEngine | None = None
) -> tuple[Report, list[str], str]:
    """Return the report, what the engine was asked for, and what people saw."""
    engine, output = engine or FakeEngine(), io.StringIO()
    monkeypatch.setattr(session, "CHECKS", checks)
    report = session.verify(cast(Engine, engine), "tfbuild:x", progress=Progress(output))
    return report, engine.events, output.getvalue()


def test_checks_run_in_order_on_the_image_that_the_name_stood_for(monkeypatch: pytest.MonkeyPatch) -> None:
    report, events, shown = verified(monkeypatch, check("one"), check("two", skip="no GPU"), check("three"))
    assert events == [
        "image tfbuild:x", f"sandbox sha256:0a {probe.ROOT}", "one sha256:0a", "three sha256:0a", "sandbox removed",
    ]  # fmt: skip
    assert [(row.name, row.status, row.detail) for row in report.checks] == [
        ("one", "pass", "seen"), ("two", "skip", "no GPU"), ("three", "pass", "seen"),
    ]  # fmt: skip
    assert shown.index("verify: one") < shown.index("verify: two") < shown.index("verify: three")


def beside(run: Callable[[Verification], Judgement]) -> VerificationCheck:
    return row("beside", run, beside=True)


def test_a_check_that_runs_beside_the_others_is_reported_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    met = threading.Barrier(2, timeout=60)

    def meet(state: Verification) -> Judgement:
        assert not state.over.is_set()
        met.wait()
        return Judgement(judge.WARN, "", ())

    one = row("one", meet)
    report, events, shown = verified(monkeypatch, one, check("two"), beside(meet), check("three"))
    assert [(row.name, row.status) for row in report.checks] == [
        ("one", "warn"), ("two", "pass"), ("beside", "warn"), ("three", "pass"),
    ]  # fmt: skip
    assert report.verdict == "warn", "the worst of all"
    assert {"verify: beside ...", "verify: three ..."} <= {*shown.splitlines()}
    assert events[-1] == "sandbox removed"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), EngineMissing("gone")])
def test_a_verification_that_ends_early_ends_what_runs_beside(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, ended = threading.Event(), list[str]()

    def read(state: Verification) -> Judgement:
        began.set()
        assert state.over.wait(60)
        try:
            state.require_wanted("12 %")
        finally:
            ended.append("beside")
        raise AssertionError("it goes on")

    def fail(_: Verification) -> Judgement:
        assert began.wait(60)
        raise error

    output = io.StringIO()
    checks = (row("one", fail), beside(read))
    monkeypatch.setattr(session, "CHECKS", checks)
    with pytest.raises(type(error)) as raised:
        session.verify(cast(Engine, FakeEngine()), "tfbuild:x", progress=Progress(output))
    assert raised.value is error
    assert ended == ["beside"]
    assert "verify: beside: interrupted" in output.getvalue()


def test_a_check_that_runs_beside_the_others_can_fail_the_verification(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(state: Verification) -> Judgement:
        state.require_wanted("it is")
        raise UnknownImage("no image 'sha256:0b' on this engine")

    with pytest.raises(UnknownImage, match="sha256:0b"):
        verified(monkeypatch, check("one"), beside(fail), check("three"))


def test_a_check_sees_the_results_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(state: Verification) -> Judgement:
        return Judgement(judge.PASS, " ".join(row.name for row in state.checks if row.status == judge.FAIL))

    last = row("last", run)
    report, *_ = verified(monkeypatch, check("one", judge.FAIL), check("two", judge.WARN), last)
    assert report.checks[-1].detail == "one"


def test_an_image_whose_checks_are_all_skipped_is_no_verified_one(monkeypatch: pytest.MonkeyPatch) -> None:
    report, *_ = verified(monkeypatch, check("one", skip="x"), check("two", skip="y"))
    assert report.verdict == "fail"


def test_a_row_has_its_claim_its_measures_and_for_a_failure_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    report, *_ = verified(monkeypatch, check("one", judge.FAIL, detail="a\x1b[2Jb\nc"), check("two", skip="z"))
    failed, skipped = report.checks
    assert (failed.proves, failed.how, failed.fix) == ("it holds", "by looking", "build it again")
    assert (skipped.proves, skipped.how, skipped.fix) == ("it holds", "by looking", "")
    assert [(row.name, row.value, row.limit) for row in failed.measures] == [("faults", 2.0, "< 3")]
    assert failed.detail == "a [2Jb c", "an image's words cannot steer a terminal"
    assert 0 <= failed.seconds < 60


def test_the_report_says_which_image_of_which_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    report, *_ = verified(monkeypatch, check("one"))
    assert (report.schema, report.kind, report.id) == (SCHEMA, "smoke", "2.14.0-mkl-py3.11-avx")
    assert report.tool == f"tfbuild {__version__}"
    assert report.created.endswith("+00:00")
    assert 0 <= report.seconds < 60
    assert (report.image.ref, report.image.id, report.image.size) == ("tfbuild:x", "sha256:0a", 123)
    assert (report.image.digests, report.image.architecture) == (("x@sha256:1",), "amd64")
    assert report.image.labels[f"{PREFIX}compiler"] == report.plan.compiler == "clang [2J-16"
    assert (report.plan.release, report.plan.python, report.plan.target) == ("2.14.0", "3.11", "mkl")
    assert (report.plan.platform, report.plan.allocator, report.plan.threading) == (
        "linux/amd64", "tcmalloc", "threadpool",
    )  # fmt: skip
    assert report.plan.copts == ("--copt=-mavx", "--copt=-O2")
    assert "avx" in report.plan.features
    assert (report.plan.wheel, report.plan.bazel) == ("", "")


def test_what_did_not_start_has_no_host_and_no_software(monkeypatch: pytest.MonkeyPatch) -> None:
    report, *_ = verified(monkeypatch, check("one"))
    assert (report.host, report.software, report.source_would_add, report.throughput) == (None, None, (), None)


def starting(start: Start) -> VerificationCheck:
    """A check that finds this start, and a library compiled for AVX that could use AVX2 and AVX512F."""

    def run(state: Verification) -> Judgement:
        state.start, state.guard = start, Guard(compiled=("AVX",), unused=("AVX2", "NOT_HERE"))
        return Judgement(judge.PASS, "")

    return row("import", run)


def test_what_started_says_where_and_with_which_software(monkeypatch: pytest.MonkeyPatch) -> None:
    report, *_ = verified(monkeypatch, starting(STARTED))
    assert report.host is not None
    assert (report.host.engine, report.host.cpu) == ("engine 1", ENVIRONMENT.cpu_model)
    assert report.software is not None
    assert (report.software.tensorflow, report.software.git) == (TENSORFLOW.version, TENSORFLOW.git)
    assert (report.software.compiler, report.software.compiled_for) == (TENSORFLOW.compiler, ("AVX",))
    assert (report.software.python, report.software.numpy) == (ENVIRONMENT.python, ENVIRONMENT.numpy)
    assert report.software.packages == ENVIRONMENT.packages
    assert report.software.malloc == ENVIRONMENT.malloc
    assert "avx2" in ENVIRONMENT.cpu_flags
    assert report.source_would_add == ("AVX2",), "what this CPU has and the library leaves unused"


def test_python_without_tensorflow_is_still_software(monkeypatch: pytest.MonkeyPatch) -> None:
    only = Start(outcome=Outcome(records=(ENVIRONMENT,), ended=judge.Ended(1, ""), output=""), why="no import")
    report, *_ = verified(monkeypatch, starting(only))
    assert report.software is not None
    assert (report.software.tensorflow, report.software.git, report.software.compiler) == ("", "", "")
    assert report.software.python == ENVIRONMENT.python


def test_the_checks_get_the_baseline_or_the_reason_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def run(state: Verification) -> Judgement:
        seen.append((state.baseline, state.planned.id))
        return Judgement(judge.PASS, "")

    monkeypatch.setattr(session, "CHECKS", (row("one", run),))
    engine = cast(Engine, FakeEngine())
    baselines: list[Baseline | str] = [Baseline(ref="tfbuild:plain", id="sha256:2", env={}), "not requested"]
    for baseline in baselines:
        session.verify(engine, "x", baseline=baseline, progress=Progress(io.StringIO()))
    session.verify(engine, "x", progress=Progress(io.StringIO()))
    assert seen == [(baseline, "2.14.0-mkl-py3.11-avx") for baseline in (*baselines, session.NO_BASELINE)]


def test_an_image_of_somebody_else_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine(image_=Image(**{**vars(IMAGE), "labels": {}}))
    with pytest.raises(UnknownImage, match="tfbuild:x was not made by tfbuild"):
        verified(monkeypatch, check("one"), engine=engine)
    assert engine.events == ["image tfbuild:x"]


@pytest.mark.parametrize("removed", [True, False])
def test_an_image_that_is_removed_while_it_is_verified_is_named(removed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine knows its id alone; another image that is missing, as the one to compare with, is another error."""

    def run(_: Verification) -> Judgement:
        raise UnknownImage("no image 'sha256:0b' on this engine")

    gone = row("guard", run)
    message = "tfbuild:x was removed while it was verified" if removed else "no image 'sha256:0b'"
    with pytest.raises(UnknownImage, match=message):
        verified(monkeypatch, gone, engine=FakeEngine(removed=removed))


def ending(status: str, *, skip: str = "") -> VerificationCheck:
    """A check during which the engine ends; what it then sees of the image has this status."""

    def run(state: Verification) -> Judgement:
        cast(FakeEngine, state.engine).ended = True
        return Judgement(status, "killed by SIGKILL")

    return row("ending", run, skip=lambda _: skip)


@pytest.mark.parametrize("status", [judge.FAIL, judge.WARN, judge.SKIP])
def test_an_engine_that_ends_is_no_verdict_on_the_image(status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, output = FakeEngine(), io.StringIO()
    monkeypatch.setattr(session, "CHECKS", (check("one"), ending(status), check("three")))
    with pytest.raises(EngineMissing, match="the engine ended during verification"):
        session.verify(cast(Engine, engine), "tfbuild:x", progress=Progress(output))
    assert [event.split()[0] for event in engine.events] == ["image", "sandbox", "one", "sandbox"]
    assert "verify: ending: failed" in output.getvalue()
    assert "killed by SIGKILL" not in output.getvalue()


def test_what_a_check_raises_because_the_engine_ended_has_that_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    """An image that is missing among it."""

    def run(state: Verification) -> Judgement:
        cast(FakeEngine, state.engine).ended = True
        raise UnknownImage("no image 'sha256:0a' on this engine")

    with pytest.raises(EngineMissing, match="the engine ended during verification"):
        verified(monkeypatch, row("guard", run))


def test_a_verdict_stays_if_the_engine_ended_but_all_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    report, *_ = verified(monkeypatch, ending(judge.PASS), check("two", skip="no GPU"))
    assert report.verdict == "pass"


def test_an_image_that_kills_its_own_process_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exit code is that of a container which an ending engine kills; this engine runs on."""
    killed = judge.guard(judge.Ended(137, ""))
    report, *_ = verified(monkeypatch, check("guard", killed.status, detail=killed.detail), check("two"))
    assert (report.verdict, report.checks[0].status, report.checks[1].status) == ("fail", "fail", "pass")
    assert "SIGKILL" in report.checks[0].detail
