"""A benchmark's report is written whole, read back equal and shown; its findings follow from its numbers."""

import errno
import io
import json
import random
import zlib
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace

import pytest

from tests.measure.test_evaluate import made_up, sample
from tests.pages.test_charts import texts
from tests.rows import each
from tfbuild.bench import command, session, wording
from tfbuild.bench import report as reporting
from tfbuild.bench.session import Settings
from tfbuild.context import labels
from tfbuild.engine import Engine
from tfbuild.errors import DiskFull, Interrupted, UsageError
from tfbuild.measure import records
from tfbuild.measure.evaluate import evaluate
from tfbuild.measure.records import (
    ArmResult,
    BenchReport,
    CaseResult,
    ExperimentResult,
    Finding,
    Host,
    Round,
    Software,
    Subject,
)
from tfbuild.util.files import decode

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
GUIDE = RESULTS / "guide.json"
IMAGE = "sha256:0123456789abcdef"
ENV = {"TF_ENABLE_ONEDNN_OPTS": "1"}
HOST = Host(
    cpu="AMD EPYC", flags=("avx",), machine="x86_64", kernel="6.1.0", cpus=2, quota=None, memory=2**14, engine="20.10"
)


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
            name=name, workload="decode", params={"window": [0, 0, 1, 1], "fused": name == "arm" and not env},
            env=env if name == "arm" else dict.fromkeys(env, "0"), image=IMAGE, status=records.MEASURED,
            seconds=0.1 * (factor if name == "arm" else 1), cpu=verdict.cpu if verdict else None,
            wall=verdict.wall if verdict else None, effect=verdict.effect if verdict else "",
            code=code if name == "arm" else "",
        )  # fmt: skip

    return CaseResult(
        name=name, metric=metric, status=records.MEASURED, reason="", baseline="baseline",
        arms=(arm("baseline"), arm("arm")), rounds=rounds, band=evaluation.band, clean=evaluation.clean,
        noisy=evaluation.noisy,
    )  # fmt: skip


def experiment(name: str, *cases: CaseResult, **more: object) -> ExperimentResult:
    row = ExperimentResult(
        name=name, question="Is it faster?", compares="one | the other", changes="a switch", source="-",
        status=records.MEASURED, reason="", seconds=3.0, cases=cases,
    )  # fmt: skip
    return replace(row, **more)  # type: ignore[arg-type]


SKIPPED = CaseResult(
    name="on a GPU", metric="cpu", status=records.SKIPPED, reason="TensorFlow in this image sees no GPU",
    baseline="NHWC",
    arms=(
        ArmResult(
            name="NHWC", workload="convolution", params={}, env={}, image=IMAGE, status=records.SKIPPED,
            reason="TensorFlow in this image sees no GPU",
        ),
    ),
)  # fmt: skip


def report(*rows: ExperimentResult) -> BenchReport:
    return BenchReport(
        schema=records.SCHEMA, created="2026-11-21T10:00:00+00:00", tool="tfbuild 0.1.0", mode="quick", budget=75.0,
        seconds=74.0, interrupted=False,
        image=Subject(ref="tfbuild:x", id=IMAGE, labels={"io.tfbuild.id": "2.21.0-mkl"}, against=""), host=HOST,
        software=Software(
            tensorflow="2.21.0", git="v2.21.0", compiler="Clang", python="3.11.2", numpy="2.4.6",
            malloc="/usr/lib/libtc",
        ),
        experiments=rows or (experiment("onednn", case(0.5)), experiment("layout", SKIPPED)),
    )  # fmt: skip


def test_what_is_written_is_read_back_equal(tmp_path: Path) -> None:
    path = command.write_report(report(), tmp_path / "reports")
    assert path.name == "bench-2.21.0-mkl.json"
    assert decode(path.read_bytes(), BenchReport) == report()
    assert sorted(file.suffix for file in path.parent.iterdir()) == [".html", ".json"], "no half-written file"


def printed(measured: BenchReport) -> str:
    stream = io.StringIO()
    reporting.show_report(measured, stream)
    return stream.getvalue()


def test_a_pipe_gets_one_line_for_each_row() -> None:
    name = "a case with a long name " * 12
    shown = printed(report(experiment("jpeg", replace(case(0.5, name=name), noisy=True, clean=2))))
    (line,) = [line for line in shown.splitlines() if line.startswith("jpeg ")]
    assert name.strip() in line
    assert line.endswith("rounds undisturbed)")
    assert "\x1b" not in shown


def test_it_begins_with_what_to_change() -> None:
    line = case(0.4, name="a | b", env={}, code="crop(a | b)  # where it fits")
    shown = printed(report(experiment("jpeg", line), experiment("layout", SKIPPED)))
    assert shown.startswith("What to change:\n 1. crop(a | b)  # where it fits\n    x2.5")
    assert "] a | b (CPU time, over baseline, 96%, 15 rounds)\n" in shown.replace("; 96", ", 96")
    assert printed(report(experiment("layout", SKIPPED))).startswith(reporting.NO_CHANGE)


def test_one_baseline_in_ten_differs_from_itself() -> None:
    """docs/benchmark.md says so: an interval does not cover what differs between two starts."""
    reports = [json.loads((RESULTS / f"{name}.json").read_text()) for name in ("guide", "isa", "models", "precision")]
    bands = [case["band"] for one in reports for row in one["experiments"] for case in row["cases"] if case["band"]]
    off = [band for band in bands if not band["low"] <= 1 <= band["high"]]
    assert round(10 * len(off) / len(bands)) == 1
    assert sum(band["median"] > 1.2 for band in off) == 2
    assert round(1 / (1 - fmean(band["coverage"] for band in bands))) in range(25, 35)


def test_two_images_are_compared_in_one_line() -> None:
    other = replace(case(0.5).arms[1], image="sha256:other")
    rows = experiment("all", case(1.5), replace(case(0.5), arms=(case(0.5).arms[0], other)))
    shown = printed(report(rows))
    assert shown.startswith("all: arm: 1 of 1 case faster, 0 slower; x2.01 [1.99, 2.04] overall (geometric means)\n")
    assert "No change" not in shown
    noisy = replace(rows, cases=tuple(replace(one, noisy=True, clean=3) for one in rows.cases))
    (line,) = reporting.headlines(report(noisy))
    assert line.endswith("(geometric means) (noisy: 3 of 15 rounds undisturbed)")
    wrong = replace(rows, cases=(replace(case(0.5), arms=(case(0.5).arms[0], replace(other, same=False))),))
    assert [*reporting.headlines(report(wrong)), *reporting._counts(wrong)] == [], "faster at something else"


def test_what_spoils_a_number_stands_beside_it() -> None:
    cut = replace(
        case(0.5), status=records.TRUNCATED, reason="stopped by the time budget after 7 rounds", noisy=True, throttled=3
    )
    caveat = wording.caveat(cut)
    assert "time budget" not in caveat, "the whole report says it once"
    assert "noisy: 15 of 15" in caveat
    assert "3 periods throttled" in caveat
    stopped = report(experiment("onednn", cut, replace(cut, rounds=cut.rounds[:7]), case(0.5)))
    once = "2 of 3 cases cut short after 7 to 15 rounds, so with wider intervals"
    for text in (wording.noise_note(stopped), " ".join(printed(stopped).split())):
        assert text.count("cut short") == text.count(once) == 1
    few = replace(cut, rounds=cut.rounds[:5], band=None)
    assert wording.noise_note(report(experiment("x", few))).endswith("wider intervals, or none with fewer than six")
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


# --- what a report says ----------------------------------------------------------------------------------------------


def unmeasured(name: str, status: str, reason: str) -> CaseResult:
    return replace(SKIPPED, name=name, status=status, reason=reason, arms=())


@each(
    "rows, why",
    [
        ((), "it has no experiment"),
        ((experiment("a", SKIPPED, status=records.SKIPPED, reason="none"),), f"none; {SKIPPED.reason}"),
        ((experiment("a", *(unmeasured(x, records.TRUNCATED, x) for x in "1233445")),), "1; 2; 3"),
        ((experiment("a", SKIPPED), experiment("b", case(0.5))), ""),
        ((experiment("a", unmeasured("x", records.FAILED, "lost")),), ""),
        ((experiment("a", status=records.FAILED, reason="lost"),), ""),
        ((experiment("a", SKIPPED, findings=(Finding(text="a disk", values={"MB": 1}),)),), ""),
        ((experiment("a", SKIPPED, findings=(Finding(text="no log", values={}),)),), SKIPPED.reason),
    ],
)
def test_a_report_without_a_result_says_why(rows: tuple[ExperimentResult, ...], why: str) -> None:
    assert reporting.emptiness(replace(report(), experiments=rows)) == why


# Another environment with the same release has a report of its own.
ENVIRONMENTS = f"bench-tensorflow-2.21.0-{zlib.crc32(b'/us/.venv/bin/python'):08x}"


@each(
    "image, name, file",
    [
        (Subject(ref="x", id=IMAGE, labels={"io.tfbuild.id": "2.21.0/mkl"}, against=""), "", "bench-2.21.0-mkl"),
        (Subject(ref="x", id=IMAGE, labels={}, against=""), "", "bench-0123456789ab"),
        (Subject(ref=".venv", id="/us/.venv/bin/python", labels={}, against=""), "", ENVIRONMENTS),
        (Subject(ref="x", id=IMAGE, labels={"io.tfbuild.id": "2.21.0-mkl"}, against=""), "before", "before"),
    ],
)
def test_a_report_is_named_after_what_was_measured(image: Subject, name: str, file: str) -> None:
    found = replace(report(), image=image)
    assert reporting.report_path(found, Path("r"), name) == Path("r") / f"{file}.json"
    # A model's report takes the place of no other one, and no path is made of its folder's name.
    own = reporting.report_path(found, Path("r"), name, "my model/1")
    assert own == Path("r") / (f"{file}.json" if name else f"{file}-my-model-1.json")


FEW, NOISY = case(0.5, name="few", count=4), replace(case(0.8, name="b"), noisy=True, clean=2)


@each(
    "cases, expected",
    [
        (
            (case(0.5), NOISY, case(1.0, name="c"), case(2.0, name="d")),
            [
                "arm: faster in 2 of 4 cases, x1.26 to x2.01 (noisy: 2 of 15 rounds undisturbed)",
                "arm: slower in 1 of 4 cases, x0.50",
            ],
        ),
        ((case(1.0), FEW), ["no difference shown"]),
        ((FEW,), ["measured"]),
        ((SKIPPED,), ["measured"]),
    ],
)
def test_an_experiment_is_answered_by_its_cases(cases: tuple[CaseResult, ...], expected: list[str]) -> None:
    assert [*reporting._answer(experiment("x", *cases))] == expected


def test_a_case_has_a_row_for_each_arm_and_the_baseline_again_or_one_for_all() -> None:
    (alone,) = reporting._case_rows(unmeasured("x", records.SKIPPED, "no GPU"))
    assert (alone.name, alone.verdict) == ("all arms", "skipped: no GPU")
    assert [row.name for row in reporting._case_rows(case(0.5))] == ["baseline", "arm", "baseline again"]


def test_cases_that_compare_the_same_arm_share_a_chart() -> None:
    """Each has a row; arms of several names have a heading for each case."""
    chart = reporting.draw_chart(experiment("x", case(0.5), case(0.8, name="other"), SKIPPED))
    assert texts(str(chart)) == ["arm", "centre", "other"]
    first = case(0.5)
    second = replace(first, arms=(*first.arms, replace(first.arms[1], name="more")))
    assert texts(str(reporting.draw_chart(experiment("x", first, replace(second, name="other"))))) == [
        "centre", "arm", "other", "arm", "more",
    ]  # fmt: skip


# --- a run -----------------------------------------------------------------------------------------------------------


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
    (tmp_path / "printed.json").write_text(capsys.readouterr().out)
    assert decode((tmp_path / "printed.json").read_bytes(), BenchReport) == report(experiment("jpeg", case(0.5)))


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


def test_reports_that_cannot_be_written_are_noticed_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "reports").write_text("a file")
    with pytest.raises(UsageError, match=r"cannot write to .*/reports: "):
        command.run("tfbuild:x", (), Settings(mode="quick", budget=60), tmp_path / "reports", json=True)
