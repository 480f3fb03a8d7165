"""Reports of earlier versions are shown in today's words, and their numbers stay."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests import checkout
from tests.bench.test_report import case, experiment, report, sizes
from tfbuild import facts
from tfbuild.bench import advise, command, findings, rewording
from tfbuild.bench import report as reporting
from tfbuild.measure import experiments, records
from tfbuild.measure.records import BenchReport, Finding

DATA = Path(__file__).parents[1] / "data" / "bench"
COMMITTED = checkout.ROOT / "benchmarks" / "results"
OLD = [COMMITTED / "guide.json", COMMITTED / "models.json", DATA / "guide.json", DATA / "models.json"]
PHRASES = facts.load("rewordings", rewording.PhraseTable).phrase


def numbers(one: BenchReport) -> list[object]:
    return [
        (row.name, each.name, each.rounds, each.band, arm.name, arm.cpu, arm.wall, arm.seconds, arm.effect)
        for row in one.experiments
        for each in row.cases
        for arm in each.arms
    ]


@pytest.mark.parametrize("path", OLD, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_an_old_report_has_today_s_words_and_its_own_numbers(path: Path) -> None:
    old = reporting.read(path)
    new = rewording.reworded(old)
    assert numbers(new) == numbers(old)
    assert rewording.reworded(new) == new
    before, after = reporting.to_json(old), reporting.to_json(new)
    assert any(phrase.was in before for phrase in PHRASES) or path.stem != "guide"
    assert not any(phrase.was in after for phrase in PHRASES)
    assert "seen once" not in after, "sentences that follow from numbers are derived again"
    texts = {row.name: row for row in experiments.known()}
    for row in new.experiments:
        if row.name in texts and row.cases:
            assert (row.question, row.changes) == (texts[row.name].question, texts[row.name].changes)
        texts_of_row = [one.text for one in row.findings]
        assert len(set(texts_of_row)) == len(texts_of_row), "nothing is told twice"


def test_every_phrase_differs_from_what_it_becomes() -> None:
    for row in PHRASES:
        assert rewording.phrase(f"x {row.was} 7") == f"x {row.now} 7"
        assert rewording.phrase(row.now) == row.now


def test_what_was_observed_is_kept_beside_what_is_derived_again() -> None:
    sized = sizes(1e-3, 1e-4, 1, 2, 4, 8, 16, 32)
    (derived,) = findings.of("batch_size", [sized])
    stale = replace(derived, text="dense: older words")
    memory = Finding(
        text="dense: an item of a batch takes 3 KiB beside 500 MiB (seen up to batch 8)", values={"a b": 1}
    )
    row = rewording.reworded(report(experiment("batchsize", sized, findings=(stale, memory)))).experiments[0]
    assert [one.text for one in row.findings] == [
        derived.text,
        "dense: an item of a batch takes 3 KiB in addition to 500 MiB (measured up to batch 8)",
    ]


def test_an_experiment_that_is_unknown_or_compares_otherwise_keeps_its_words() -> None:
    unknown, other = experiment("denormals", case(0.5)), experiment("jpeg", case(0.5, name="another case"))
    command_of_a_user = experiment("bottleneck", findings=(Finding(text="train.py: input-bound", values={}),))
    shown = rewording.reworded(report(unknown, other, command_of_a_user)).experiments
    assert shown[0] == unknown
    assert shown[1].compares == other.compares
    assert shown[1].question != other.question
    assert shown[2] == command_of_a_user


def test_a_line_of_code_is_today_s(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = next(row for row in experiments.known() if row.name == "jpeg")
    measured = case(0.5, name=row.case[0].name, env={}, code="an_older_line()")
    arms = tuple(replace(arm, name=today.name) for arm, today in zip(measured.arms, row.arm, strict=True))
    old = report(experiment("jpeg", replace(measured, arms=arms, baseline=arms[0].name)))
    (advice,) = advise.advise(rewording.reworded(old))
    assert advice.code == row.arm[1].code != "an_older_line()"
    (tmp_path / "old.json").write_text(reporting.to_json(old))
    command.advise(str(tmp_path / "old.json"), "", json=False)
    assert row.arm[1].code in capsys.readouterr().out


def test_a_cut_case_says_so_in_today_s_words() -> None:
    old = replace(case(0.5), status=records.TRUNCATED, reason="its time was over after 6 rounds")
    (row,) = rewording.reworded(report(experiment("jpeg", old))).experiments
    assert row.cases[0].reason == "stopped by the time budget after 6 rounds"
