"""The figures in README.md and docs/figures.md are those of the committed reports."""

import pytest

from benchmarks.harness import RESULTS
from tools import figures


def test_the_readme_has_five_rows_and_the_page_has_all() -> None:
    shown = {path: text.partition(figures.BEGIN)[2].partition(figures.END)[0] for path, text in figures.pages().items()}
    lines = {path: [line for line in text.splitlines() if ".json`" in line] for path, text in shown.items()}
    assert len(lines[figures.README]) == 5
    assert len(lines[figures.PAGE]) == len(figures.rows())
    assert set(lines[figures.README]) <= set(lines[figures.PAGE])


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
