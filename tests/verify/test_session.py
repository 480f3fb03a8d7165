"""The checks run in order on one image, and the report says what was seen of it."""

import io
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from tests.rows import each
from tests.verify.images import BASELINE, SANDBOX, ImageEngine, verification
from tests.verify.test_configuration import BUILD, image
from tests.verify.test_judge import ENVIRONMENT, TENSORFLOW
from tfbuild import __version__
from tfbuild.engine import Engine, Sandbox
from tfbuild.errors import BadInput, EngineMissing, TfbuildError, UnknownImage
from tfbuild.in_container.smoke import judge
from tfbuild.in_container.smoke.judge import Judgement, Measurement
from tfbuild.measure import probe
from tfbuild.util.progress import Progress
from tfbuild.verify import Verification, VerificationCheck, session
from tfbuild.verify import report as reporting
from tfbuild.verify.checks import IMPORT, configuration, isa
from tfbuild.verify.checks.guard import LESSER_CPU
from tfbuild.verify.report import SCHEMA, Report

Run = Callable[[Verification], Judgement]


@dataclass
class SessionEngine(ImageEngine):
    """`ended`: whether the engine ended since the verification began."""

    ended: bool = False
    events: list[str] = field(default_factory=list)

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
        assert {f"{path}/{name}" for name in files} == {*probe.probe_files(), f"{probe.ROOT}/{LESSER_CPU}"}
        self.events.append("sandbox")
        yield SANDBOX
        self.events.append("sandbox removed")


def row(name: str, run: Run | None = None, status: str = judge.PASS, **more: Any) -> VerificationCheck:
    """A made-up check."""

    def seen(state: Verification) -> Judgement:
        cast(SessionEngine, state.engine).events.append(name)
        return Judgement(status, "seen", (Measurement("faults", 2.0, "< 3"),))

    skip = more.pop("skip", "")
    return VerificationCheck(
        name=name, run=run or seen, skip=lambda _: skip, proves="it holds", how="by looking",
        fix="build it again", **more
    )  # fmt: skip


def verified(*checks: VerificationCheck, engine: SessionEngine | None = None, **more: Any) -> tuple[Report, str]:
    """Return the report, and what people saw."""
    output = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "CHECKS", checks)
        there = cast(Engine, engine or SessionEngine())
        return session.verify(there, "tfbuild:x", progress=Progress(output), **more), output.getvalue()


def test_checks_run_in_order_and_those_that_cannot_are_skipped() -> None:
    engine = SessionEngine()
    report, shown = verified(row("one"), row("two", skip="no GPU"), row("three"), engine=engine)
    assert engine.events == ["sandbox", "one", "three", "sandbox removed"]
    assert [(check.name, check.status, check.detail) for check in report.checks] == [
        ("one", "pass", "seen"), ("two", "skip", "no GPU"), ("three", "pass", "seen"),
    ]  # fmt: skip
    assert shown.index("verify: one") < shown.index("verify: two") < shown.index("verify: three")
    assert verified(row("one", skip="x"))[0].verdict == "fail", "an image whose checks are all skipped is not verified"


def test_a_check_sees_the_results_before_it_and_the_baseline() -> None:
    def run(state: Verification) -> Judgement:
        failed = " ".join(check.name for check in state.checks if check.status == judge.FAIL)
        return Judgement(judge.PASS, f"{failed} {state.baseline}")

    checks = (row("one", status=judge.FAIL), row("two", status=judge.WARN), row("last", run))
    assert verified(*checks)[0].checks[-1].detail == f"one {session.NO_BASELINE}"
    assert verified(*checks, baseline=BASELINE)[0].checks[-1].detail.startswith("one Baseline(")


def test_a_check_that_runs_beside_the_others_is_reported_in_its_place() -> None:
    met = threading.Barrier(2, timeout=60)

    def meet(state: Verification) -> Judgement:
        state.require_wanted("12 %")
        met.wait()
        return Judgement(judge.WARN, "")

    report, shown = verified(row("one", meet), row("two"), row("beside", meet, beside=True), row("three"))
    assert [(check.name, check.status) for check in report.checks] == [
        ("one", "warn"), ("two", "pass"), ("beside", "warn"), ("three", "pass"),
    ]  # fmt: skip
    assert report.verdict == "warn", "the worst of all"
    assert "verify: beside ..." in shown


@pytest.mark.parametrize("error", [KeyboardInterrupt(), EngineMissing("gone")])
def test_a_verification_that_ends_early_ends_what_runs_beside(error: BaseException) -> None:
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

    with pytest.raises(type(error)) as raised:
        verified(row("one", fail), row("beside", read, beside=True))
    assert raised.value is error
    assert ended == ["beside"]


def raising(error: Exception, *, ended: bool = False) -> VerificationCheck:
    def run(state: Verification) -> Judgement:
        cast(SessionEngine, state.engine).ended = ended
        raise error

    return row("raising", run)


@each(
    "error, detail",
    [
        (BadInput("no ELF file"), "no ELF file"),
        (OSError(2, "No such file", "/opt/x"), "/opt/x cannot be read: No such file"),
        (OSError("it vanished"), "it vanished"),
    ],
)
def test_a_file_of_the_image_that_cannot_be_read_fails_the_check(error: Exception, detail: str) -> None:
    (check,) = verified(raising(error))[0].checks
    assert (check.status, check.detail, check.fix) == ("fail", detail, "build it again")


@each(
    "error, ended, said",
    [
        (UnknownImage("no image 'sha256:0b'"), False, "no image 'sha256:0b'"),
        (UnknownImage("no image 'sha256:0b'"), True, "the engine ended during verification"),
        (BadInput("its library is cut off"), True, "the engine ended during verification"),
    ],
)
def test_what_is_not_the_image_s_fault_is_no_verdict(error: Exception, ended: bool, said: str) -> None:
    with pytest.raises(TfbuildError, match=said):
        verified(raising(error, ended=ended))


@each("status", [judge.FAIL, judge.WARN, judge.SKIP])
def test_an_engine_that_ends_is_no_verdict_on_the_image_unless_all_was_seen(status: str) -> None:
    def run(state: Verification, status: str = status) -> Judgement:
        cast(SessionEngine, state.engine).ended = True
        return Judgement(status, "killed by SIGKILL")

    with pytest.raises(EngineMissing, match="the engine ended during verification"):
        verified(row("ending", run))
    seen = row("ending", lambda state: run(state, judge.PASS))
    assert verified(seen, row("two", skip="no GPU"))[0].verdict == "pass"


def test_an_image_of_somebody_else_starts_nothing() -> None:
    engine = SessionEngine(image_=image(Labels={}))
    with pytest.raises(UnknownImage, match="tfbuild:x was not made by tfbuild"):
        verified(row("one"), engine=engine)
    assert engine.events == []


def test_a_feature_that_only_a_later_tfbuild_knows_is_told_in_a_report() -> None:
    later = SessionEngine(image_=image(labels={"io.tfbuild.features": "avx nosuch"}))
    (check,) = verified(configuration.CHECK, engine=later)[0].checks
    assert (check.status, check.detail) == ("fail", "its instruction set is f16c, but its features are not all known")


# --- the report -------------------------------------------------------------------------------------------------------


def test_a_row_has_its_claim_its_measures_and_for_a_failure_what_to_do() -> None:
    bad = row("one", lambda _: Judgement(judge.FAIL, "a\x1b[2Jb\nc", (Measurement("faults", 2.0, "< 3"),)))
    failed, skipped = verified(bad, row("two", skip="z"))[0].checks
    assert (failed.proves, failed.how, failed.fix) == ("it holds", "by looking", "build it again")
    assert (skipped.proves, skipped.how, skipped.fix) == ("it holds", "by looking", "")
    assert [(measure.name, measure.value, measure.limit) for measure in failed.measures] == [("faults", 2.0, "< 3")]
    assert failed.detail == "a [2Jb c", "an image's words cannot steer a terminal"
    assert 0 <= failed.seconds < 60


def test_the_report_says_which_image_of_which_plan() -> None:
    report, _ = verified(row("one"))
    assert (report.schema, report.kind, report.id) == (SCHEMA, "smoke", BUILD.id)
    assert report.tool == f"tfbuild {__version__}"
    assert report.created.endswith("+00:00")
    assert (report.image.ref, report.image.id, report.image.size) == ("tfbuild:x", "1", 1)
    plan = reporting.plan_fields(report)
    assert (plan["release"], plan["python"], plan["target"]) == (BUILD.release, "3.11", "mkl")
    assert (plan["copts"], plan["wheel"], "bazel" in plan) == (" ".join(BUILD.copts), "official", False)
    assert (report.host, report.software, report.source_would_add, report.throughput) == (None, None, (), None)
    strange = image(labels={"io.tfbuild.compiler": "clang\x1b[2J-16"})
    report, _ = verified(row("one"), engine=SessionEngine(image_=strange))
    assert report.image.labels["io.tfbuild.compiler"] == reporting.plan_fields(report)["compiler"] == "clang [2J-16"


def test_what_started_says_where_and_with_which_software() -> None:
    report, _ = verified(IMPORT, isa.CHECK)
    assert report.host is not None
    assert (report.host.engine, report.host.cpu) == ("engine 1", ENVIRONMENT.cpu_model)
    assert report.software is not None
    assert (report.software.tensorflow, report.software.git) == (TENSORFLOW.version, TENSORFLOW.git)
    assert (report.software.compiler, report.software.compiled_for[-1]) == (TENSORFLOW.compiler, "AVX")
    assert report.software.packages == ENVIRONMENT.packages
    # The CPU has AVX_VNNI too, which adds nothing to AVX512_VNNI.
    assert report.source_would_add == ("AVX2", "AVX512F", "AVX512_VNNI", "AVX512_BF16", "FMA")
    only = replace(verification().start, records=(ENVIRONMENT,))

    def run(state: Verification) -> Judgement:
        state.start = only
        return Judgement(judge.FAIL, "")

    report, _ = verified(row("import", run))
    assert report.software is not None
    assert (report.software.tensorflow, report.software.python) == ("", ENVIRONMENT.python)
