"""The count of false and missed differences fails when it should, and when there is too little to count."""

import pytest

from benchmarks import aa
from tests.bench.test_report import case, experiment
from tfbuild.measure.records import CaseResult, ExperimentResult


def rows(*, same: list[CaseResult], asleep: list[CaseResult]) -> list[ExperimentResult]:
    return [experiment("one process", *same), experiment(aa.ASLEEP, *asleep)]


NONE, SLOWER, FEW = case(1.0), case(1.1), case(1.0, count=4)


def test_each_repeat_that_says_what_is_there_is_no_trouble() -> None:
    results = rows(same=[NONE] * 19 + [SLOWER], asleep=[SLOWER] * 19 + [NONE])
    assert list(aa.troubles(results, 20)) == []


@pytest.mark.parametrize(
    ("same", "asleep", "complaint"),
    [
        ([NONE] * 18 + [SLOWER] * 2, [SLOWER] * 20, "one process: 2 of 20 repeats do not say 'no difference shown'"),
        ([NONE] * 20, [SLOWER] * 18 + [NONE] * 2, "a tenth asleep: 2 of 20 repeats do not say 'slower'"),
        ([NONE] * 10 + [FEW] * 10, [SLOWER] * 20, "one process: only 10 of 20 repeats had rounds enough"),
        (
            [NONE] * 20,
            [case(1.19)] * 20,
            "a tenth asleep: the planted tenth was not measured: the median is 0.84",
        ),
        ([], [SLOWER] * 20, "one process: only 0 of 20 repeats had rounds enough"),
    ],
)
def test_a_false_a_missed_and_an_unmeasured_difference_are_troubles(
    same: list[CaseResult], asleep: list[CaseResult], complaint: str
) -> None:
    (results,) = aa.troubles(rows(same=same, asleep=asleep), 20)
    assert results.startswith(complaint)
