"""The README's figures are those of the committed reports."""

import tomllib

import pytest

from benchmarks import figures
from benchmarks.harness import RESULTS


def test_the_readme_has_the_reports_own_figures() -> None:
    text = figures.README.read_text(encoding="utf-8")
    assert text == figures.replaced(text, figures.table()), "python -m benchmarks.figures"


def test_every_report_is_read_by_somebody() -> None:
    rows = tomllib.loads(figures.ROWS.read_text(encoding="utf-8"))["figure"]
    text = figures.README.read_text(encoding="utf-8")
    for path in RESULTS.glob("*.json"):
        assert path.stem in {row["report"] for row in rows} or f"benchmarks.{path.stem}`" in text, path


def test_a_figure_that_no_report_has_is_no_figure() -> None:
    for spec in (
        {"experiment": "jpeg", "case": "centre", "arm": "decode, then slice", "time": "wall"},
        {"path": "experiments.nothing"},
    ):
        with pytest.raises((KeyError, ValueError)):
            figures.value("guide", spec)


def test_a_noisy_case_says_so() -> None:
    spec = {"experiment": "models", "case": "transformer block"}
    noisy = figures.case_of("models", spec)["noisy"]
    assert ("undisturbed" in figures.caveat("models", spec)) == noisy
