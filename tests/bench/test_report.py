"""A benchmark's report is written whole, read back equal, shown and turned into advice."""

import errno
import io
import json
import random
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import schemas
from tests.measure.host import HOST
from tests.measure.test_evaluate import made_up, sample
from tfbuild.bench import advise, command, findings, page, session, wording
from tfbuild.bench import report as reporting
from tfbuild.bench.session import Settings
from tfbuild.context import labels
from tfbuild.engine import Engine
from tfbuild.errors import DiskFull, Interrupted, UsageError
from tfbuild.measure import intervals, records
from tfbuild.measure.evaluate import evaluate
from tfbuild.measure.records import (
    ArmResult,
    BenchReport,
    CaseResult,
    ExperimentResult,
    Interval,
    Round,
    Software,
    Subject,
)

RECORDED = Path(__file__).parents[1] / "data" / "bench" / "quick.json"
IMAGE = "sha256:0123456789abcdef"
ENV = {"TF_ENABLE_ONEDNN_OPTS": "1"}


def case(
    factor: float,
    *,
    name: str = "centre",
    metric: str = "cpu",
    count: int = 15,
    env: dict[str, str] = ENV,
    code: str = "",
) -> CaseResult:
    """Return a case whose arm takes `factor` of the baseline's time; it differs in `env`, or without it in work."""
    rounds = tuple(made_up(factor, count))
    evaluation = evaluate(rounds, "baseline", {"baseline": 1, "arm": 1}, metric)

    def arm(name: str) -> ArmResult:
        verdict = evaluation.arms.get(name)
        return ArmResult(
            name=name,
            workload="decode",
            params={"window": [0, 0, 1, 1], "fused": name == "arm" and not env},
            env=env if name == "arm" else dict.fromkeys(env, "0"),
            image=IMAGE,
            status=records.MEASURED,
            seconds=0.1 * (factor if name == "arm" else 1),
            cpu=verdict.cpu if verdict else None,
            wall=verdict.wall if verdict else None,
            effect=verdict.effect if verdict else "",
            code=code if name == "arm" else "",
        )

    return CaseResult(
        name=name,
        metric=metric,
        status=records.MEASURED,
        reason="",
        baseline="baseline",
        arms=(arm("baseline"), arm("arm")),
        rounds=rounds,
        band=evaluation.band,
        clean=evaluation.clean,
        noisy=evaluation.noisy,
    )


def experiment(name: str, *cases: CaseResult, **more: object) -> ExperimentResult:
    row = ExperimentResult(
        name=name,
        question="Is it faster?",
        compares="one | the other",
        changes="a switch",
        source="-",
        status=records.MEASURED,
        reason="",
        seconds=3.0,
        cases=cases,
    )
    return replace(row, **more)  # type: ignore[arg-type]


SKIPPED = CaseResult(
    name="on a GPU",
    metric="cpu",
    status=records.SKIPPED,
    reason="TensorFlow in this image sees no GPU",
    baseline="NHWC",
    arms=(
        ArmResult(
            name="NHWC",
            workload="convolution",
            params={},
            env={},
            image=IMAGE,
            status=records.SKIPPED,
            reason="TensorFlow in this image sees no GPU",
        ),
    ),
)


def report(*rows: ExperimentResult) -> BenchReport:
    return BenchReport(
        schema=records.SCHEMA,
        created="2026-11-21T10:00:00+00:00",
        tool="tfbuild 0.1.0",
        mode="quick",
        budget=75.0,
        seconds=74.0,
        interrupted=False,
        image=Subject(ref="tfbuild:x", id=IMAGE, labels={"io.tfbuild.id": "2.21.0-mkl"}, against=""),
        host=HOST,
        software=Software(
            tensorflow="2.21.0",
            git="v2.21.0",
            compiler="Clang",
            python="3.11.2",
            numpy="2.4.6",
            malloc="/usr/lib/libtc",
        ),
        experiments=rows or (experiment("onednn", case(0.5)), experiment("layout", SKIPPED)),
    )


def test_what_is_written_is_read_back_equal(tmp_path: Path) -> None:
    path = command.write(report(), tmp_path / "reports")
    assert path.name == "bench-2.21.0-mkl.json"
    assert reporting.path(report(), tmp_path, "before").name == "before.json"
    assert reporting.read_report(path) == report()
    assert sorted(file.suffix for file in path.parent.iterdir()) == [".html", ".json", ".md"], "no half-written file"
    foreign = replace(report(), image=replace(report().image, labels={"io.tfbuild.id": "../../etc/x"}))
    assert reporting.path(foreign, tmp_path).parent == tmp_path
    unlabelled = replace(report(), image=replace(report().image, labels={}))
    assert reporting.path(unlabelled, tmp_path).name == "bench-0123456789ab.json"


def test_the_published_schema_is_the_report_s() -> None:
    assert reporting.SCHEMA_FILE.read_text() == records.json_schema(BenchReport, records.SCHEMA), (
        "renew it with: python -m tfbuild.bench.report"
    )
    schema = json.loads(reporting.SCHEMA_FILE.read_text())
    schemas.library().Draft202012Validator.check_schema(schema)
    shown = json.loads(records.to_json(report()))
    schemas.library().validate(shown, schema)
    assert len(shown["experiments"][0]["cases"][0]["rounds"]) == 15, "every sample is kept"
    del shown["experiments"][0]["cases"][0]["rounds"][0]["samples"]["arm"]["cpu"]
    with pytest.raises(schemas.library().ValidationError):
        schemas.library().validate(shown, schema)


def test_a_real_report_fits_the_published_schema() -> None:
    """It was measured in this project's default image, with two allocators that it lacks."""
    schemas.library().validate(json.loads(RECORDED.read_text()), json.loads(reporting.SCHEMA_FILE.read_text()))
    measured = reporting.read_report(RECORDED)
    assert [row.name for row in measured.experiments] == ["onednn", "jpeg", "batchnorm", "allocator"]
    assert reporting.from_json(records.to_json(measured)) == measured


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"metric": "money"}, "is judged by 'money'"),
        ({"arms": (replace(case(0.5).arms[0], items=0),)}, "without items"),
        ({"arms": (replace(case(0.5).arms[0], seconds=-0.1),)}, "took no time"),
        ({"rounds": (Round(samples={"arm": replace(sample(1.0), inner=0)}, foreign=0.0),)}, "without calls"),
    ],
)
def test_what_contradicts_itself_is_refused(changed: dict[str, object], why: str) -> None:
    broken = replace(case(0.5), **changed)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=why):
        reporting.from_json(records.to_json(report(experiment("onednn", broken))))


@pytest.mark.parametrize("text", ["", "{}", '{"schema": "tfbuild.bench/1"}', '{"schema": "tfbuild.report/1"}'])
def test_what_is_no_report_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(UsageError, match="not a benchmark's report"):
        reporting.read_report(tmp_path / "x.json")
    with pytest.raises(UsageError, match="No such file"):
        reporting.read_report(tmp_path / "y.json")


def test_markdown_and_table_say_what_was_found() -> None:
    text = page.to_markdown(report())
    assert text.startswith("# Benchmark of `tfbuild:x`\n")
    assert "| centre | arm | x2.0" in text
    assert "| faster |" in text
    assert "| centre | baseline again | x1.0" in text
    assert "skipped: TensorFlow in this image sees no GPU" in text
    stream = io.StringIO()
    reporting.show(report(), stream)
    shown = stream.getvalue()
    assert "faster" in shown
    assert "sees no GPU" in shown
    assert "\x1b" not in shown


def test_a_pipe_gets_one_line_for_each_row() -> None:
    shown = io.StringIO()
    name = "a case with a long name " * 12
    reporting.show(report(experiment("jpeg", replace(case(0.5, name=name), noisy=True, clean=2))), shown)
    (line,) = [line for line in shown.getvalue().splitlines() if line.startswith("jpeg ")]
    assert name.strip() in line
    assert line.endswith("rounds undisturbed)")


def test_every_form_begins_with_what_to_change() -> None:
    lines = (
        case(0.4, name="a | b", env={}, code="crop(a | b)  # where it fits"),
        case(1.5, name="c", env={}, code="crop"),
    )
    original = report(experiment("jpeg", *lines), experiment("onednn", case(0.5)), experiment("layout", SKIPPED))
    original = replace(original, image=replace(original.image, env=ENV))
    text = page.to_markdown(original)
    headings = [line for line in text.splitlines() if line.startswith("#")]
    assert headings[1:4] == ["## What to change", "## Already in place", "## jpeg"]
    row = "| `crop(a \\| b)` (jpeg; where it fits) | a \\| b | x2.5"
    assert row in text
    assert "| baseline | 96%, 15 rounds |" in text
    assert "`TF_ENABLE_ONEDNN_OPTS=1` (onednn; the image sets it)" in text
    stream = io.StringIO()
    reporting.show(original, stream)
    shown = stream.getvalue()
    assert shown.startswith("What to change, by gain:\n 1. crop(a | b)  # where it fits\n    x2.5")
    assert "] a | b (CPU time, over baseline; 96%, 15 rounds)\n" in shown
    assert shown.index("Already in place (the image sets it): TF_ENABLE_ONEDNN_OPTS=1, up to x2.0") < shown.index(
        "verdict"
    )
    stream = io.StringIO()
    reporting.show(report(experiment("layout", SKIPPED)), stream)
    assert stream.getvalue().startswith("No change has a measured gain.")


def test_what_spoils_a_number_stands_beside_it() -> None:
    cut = replace(
        case(0.5), status=records.TRUNCATED, reason="stopped by the time budget after 7 rounds", noisy=True, throttled=3
    )
    caveat = wording.caveat(cut)
    assert "time budget" not in caveat, "the whole report says it once"
    assert "noisy: 15 of 15" in caveat
    assert "3 periods throttled" in caveat
    assert "interrupted" in page.to_markdown(replace(report(), interrupted=True))
    stopped = report(experiment("onednn", cut, replace(cut, rounds=cut.rounds[:7]), case(0.5)))
    once = "2 of 3 cases were stopped by the time budget after 7 to 15 rounds, so their intervals are wider"
    stream = io.StringIO()
    reporting.show(stopped, stream)
    for text in (wording.noise(stopped), page.to_markdown(stopped), " ".join(stream.getvalue().split())):
        assert text.count("stopped by the time budget") == text.count(once) == 1
    few = Interval(median=1.0, low=0.9, high=1.1, coverage=0.75)
    assert intervals.interval_text(few) == "x1.00 [0.90, 1.10] at 75%"
    wrong = replace(case(0.5).arms[1], same=False)
    assert "computes something else" in wording.verdict(wrong, case(0.5))


# --- findings --------------------------------------------------------------------------------------------------------


def sizes(a: float, b: float, *batches: int, spread: float = 0.0, count: int = 15) -> CaseResult:
    """Return a case whose steps take a + b * n seconds, on a drifting machine with noise of this `spread`."""
    noise = random.Random(1)

    def one(slow: float) -> Round:
        times = {f"batch {n}": slow * (a + b * n) * noise.gauss(1, spread) for n in batches}
        return Round(samples={name: sample(time) for name, time in times.items()}, foreign=0.0)

    arms = tuple(
        ArmResult(
            name=f"batch {n}",
            workload="mlp",
            params={"batch": n},
            env={},
            image=IMAGE,
            status=records.MEASURED,
            items=n,
            seconds=(a + b * n) / n,
        )
        for n in batches
    )
    rounds = tuple(one(1 + 0.03 * (turn - count // 2)) for turn in range(count))
    return replace(case(1.0, metric="wall"), name="dense", arms=arms, rounds=rounds, clean=count)


def test_the_batch_size_is_fitted_and_measured() -> None:
    (finding,) = findings.derive("batch_size", [sizes(1e-3, 1e-4, 1, 2, 4, 8, 16, 32, 64, 128)])
    assert finding.values["a"] == pytest.approx(1e-3)
    assert finding.values["b"] == pytest.approx(1e-4)
    assert finding.values["fitted_80%"] == pytest.approx(40)
    assert finding.values["fitted_90%"] == pytest.approx(90)
    assert finding.values["measured_80%"] == 32, "of the best rate that was measured, not of one that never comes"
    assert "batch 32 gives 80%, batch 64 gives 90%" in finding.text


def test_no_line_is_fitted_through_what_is_none() -> None:
    assert findings.fit([(1, 1.0), (2, 0.9), (4, 0.8)]) is None
    assert findings.fit([(1, 1.0), (2, 2.0)]) is None
    assert findings.derive("batch_size", [sizes(1e-3, 1e-4, 1, 2)]) == ()
    assert findings.derive("", [case(0.5)]) == ()


@pytest.mark.parametrize(("factor", "word"), [(1.02, "compute-bound"), (1.2, "balanced"), (1.7, "input-bound")])
def test_the_bottleneck_is_named(factor: float, word: str) -> None:
    measured = case(factor, metric="wall")
    real = replace(measured.arms[1], params={"step": True})
    (finding,) = findings.derive("input_bound", [replace(measured, arms=(measured.arms[0], real))])
    assert finding.text.endswith(word)


def disk(*speeds: float) -> CaseResult:
    """Return a case with a round for each speed in MB/s."""
    measured = case(1.0, metric="wall")
    rounds = tuple(Round(samples={"baseline": sample(2**20 / 1e6 / speed)}, foreign=0.0) for speed in speeds)
    middle = 2**20 / 1e6 / sorted(speeds)[len(speeds) // 2]
    return replace(measured, arms=(replace(measured.arms[0], workload="disk", seconds=middle),), rounds=rounds)


def test_a_disk_has_its_class() -> None:
    (finding,) = findings.derive("disk", [disk(*(480.0 + 5 * n for n in range(9)))])
    assert finding.values["mb_per_second"] == pytest.approx(500)
    assert (
        "500 MB/s [485, 515] past the page cache, a SATA SSD's range and nearest to the guide's 500 MB/s"
        in finding.text
    )


def test_a_disk_between_two_classes_is_of_neither() -> None:
    (finding,) = findings.derive("disk", [disk(*[500.0] * 4, *[2600.0] * 5)])
    assert "from a SATA SSD's range to an NVMe's and nearest to the guide's 500 to 2000 MB/s" in finding.text


# --- for compare-----------------------------------------------------------------------------------------------------


def slower_report(factor: float) -> BenchReport:
    """Return a report of the same machine with every sample `factor` times as long."""
    first = report()

    def slow(row: records.Round) -> records.Round:
        samples = {
            name: replace(sample, wall=sample.wall * factor, cpu=sample.cpu * factor)
            for name, sample in row.samples.items()
        }
        return replace(row, samples=samples)

    rows = tuple(
        replace(row, cases=tuple(replace(case, rounds=tuple(map(slow, case.rounds))) for case in row.cases))
        for row in first.experiments
    )
    return replace(first, experiments=rows)


def elsewhere(original: BenchReport) -> BenchReport:
    """Return the same figures on another machine, of another release."""
    labels = {**original.image.labels, "io.tfbuild.instruction-set": "x86-64-v4\x1b[2J"}
    return replace(
        original,
        host=replace(original.host, cpu="Intel Xeon"),
        image=replace(original.image, ref="tfbuild:y", labels=labels),
        software=replace(original.software, tensorflow="2.14.0"),
    )


# --- advise ----------------------------------------------------------------------------------------------------------


def test_advice_has_its_evidence() -> None:
    advices = advise.advise(
        report(
            experiment("onednn", case(0.5), case(1.0, name="other")),
            experiment("jpeg", case(0.7, env={}, code="decode_and_crop_jpeg()")),
        )
    )
    assert [each.experiment for each in advices] == ["onednn", "jpeg"]
    assert advise.env_file(advices).splitlines()[-1] == "TF_ENABLE_ONEDNN_OPTS=1"
    assert "# onednn: arm x2.0" in advise.env_file(advices)
    assert "other" not in advise.env_file(advices), "no difference shown is no evidence"
    assert advise.lines_of_code(advices).splitlines()[-1] == "decode_and_crop_jpeg()"


@pytest.mark.parametrize(
    "rows",
    [
        (experiment("onednn", case(1.0)),),
        (experiment("jpeg", case(1.5, env={}, code="x")),),
        (experiment("onednn", case(0.5), case(1.5, name="other")),),
        (experiment("jpeg", case(1.0, env={}, code="x")),),
        (experiment("layout", SKIPPED),),
        (experiment("jpeg", case(0.5, count=4, env={}, code="x")),),
    ],
    ids=["no difference", "slower", "faster here and slower there", "code without gain", "skipped", "too few rounds"],
)
def test_nothing_is_advised_without_evidence(rows: tuple[ExperimentResult, ...]) -> None:
    assert advise.advise(report(*rows)) == ()
    assert advise.env_file(()) == ""


def test_the_env_file_is_what_docker_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = command.write(report(), tmp_path)
    command.advise(str(path), env_file=str(tmp_path / "tuned.env"))
    lines = (tmp_path / "tuned.env").read_text().splitlines()
    assert all(line.startswith("#") or line == "TF_ENABLE_ONEDNN_OPTS=1" for line in lines)
    assert "TF_ENABLE_ONEDNN_OPTS=1" in capsys.readouterr().out
    command.advise(str(path), json=True)
    assert json.loads(capsys.readouterr().out)[0]["env"] == ENV


def measuring(monkeypatch: pytest.MonkeyPatch, result: BenchReport) -> Settings:
    """Let a run on any engine have this result."""
    engine = SimpleNamespace(watched=lambda _: nullcontext(lambda: None), image=lambda _: None)
    monkeypatch.setattr(Engine, "connect", lambda: engine)
    monkeypatch.setattr(labels, "find_image", lambda *_: "tfbuild:x")
    monkeypatch.setattr(session, "bench", lambda *_: result)
    return Settings(mode="quick", budget=60)


def test_a_full_disk_costs_nothing_that_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All but the disk worked: what was measured is on stdout."""
    chosen = measuring(monkeypatch, report(experiment("jpeg", case(0.5))))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(DiskFull, match=f"no space is left for {tmp_path}"):
        command.run("tfbuild:x", (), chosen, tmp_path, json=True)
    assert reporting.from_json(capsys.readouterr().out.encode()) == report(experiment("jpeg", case(0.5)))


def test_a_run_that_measures_nothing_leaves_an_older_report_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "old.json").write_text("what was measured before")
    empty = report(replace(experiment("isa", SKIPPED), status=records.SKIPPED, reason="no other image"))
    for interrupted, error in ((False, UsageError), (True, Interrupted)):
        chosen = measuring(monkeypatch, replace(empty, interrupted=interrupted))
        with pytest.raises(error, match=r"nothing was measured: no other image|interrupted before anything"):
            command.run("tfbuild:x", (), chosen, tmp_path, json=True, name="old")
    assert [path.name for path in tmp_path.iterdir()] == ["old.json"]
    assert (tmp_path / "old.json").read_text() == "what was measured before"
    assert capsys.readouterr().out == ""


def test_an_empty_report_is_refused_wherever_one_is_read(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(records.to_json(report(experiment("isa", SKIPPED))))
    (tmp_path / "failed.json").write_text(
        records.to_json(report(experiment("isa", replace(SKIPPED, status=records.FAILED))))
    )
    with pytest.raises(UsageError, match=r"x\.json: nothing was measured: TensorFlow in this image sees no GPU"):
        reporting.read_report(tmp_path / "x.json")
    with pytest.raises(UsageError, match="nothing was measured"):
        command.advise(str(tmp_path / "x.json"), html=str(tmp_path / "x.html"))
    assert not (tmp_path / "x.html").exists()
    assert reporting.read_report(tmp_path / "failed.json").experiments, "a failure is a result"


def test_reports_that_cannot_be_written_are_noticed_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "reports").write_text("a file")
    with pytest.raises(UsageError, match=r"cannot write to .*/reports: "):
        command.run("tfbuild:x", (), Settings(mode="quick", budget=60), tmp_path / "reports", json=True)
