"""The figures in README.md and docs/figures.md are those of the committed reports."""

import pytest

from benchmarks.harness import RESULTS
from tools import figures


def test_every_report_is_read_by_somebody() -> None:
    rows = figures.rows()
    facts = (figures.ROOT / "tfbuild" / "facts").glob("*.toml")
    text = "".join(page.read_text(encoding="utf-8") for page in (*(figures.ROOT / "docs").glob("*.md"), *facts))
    for path in RESULTS.glob("*.json"):
        assert path.stem in {row["report"] for row in rows} or f"{path.stem}.json" in text, path


def test_a_figure_that_no_report_has_is_no_figure() -> None:
    for spec in (
        {"experiment": "jpeg", "case": "centre", "arm": "decode, then slice", "time": "wall"},
        {"path": "experiments.nothing"},
    ):
        with pytest.raises((KeyError, ValueError)):
            figures.value("guide", spec)
