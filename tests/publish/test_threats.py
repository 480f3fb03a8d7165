"""The tamperings and trials in docs/threat-model.md: each names a test that exists, and a trial how many cases it has.

`python -m tests.publish.test_threats` writes those numbers into the page.
"""

import re
from importlib import import_module
from math import prod
from pathlib import Path

from benchmarks import figures
from tests.rows import each

TESTS = Path(__file__).parents[1]
FILE = TESTS.parent / "docs" / "threat-model.md"
PAGE = FILE.read_text(encoding="utf-8")
ROW = re.compile(
    r"^\| (?P<fault>[^|]+) (?:\| [^|]+ ){1,3}"
    r"\| `{1,2} ?(?P<file>[\w/]+\.py)::(?P<test>\w+)(?:\[(?P<case>.+)\])? ?`{1,2} \|$"
)
TRIAL = re.compile(r"^(\| .+ \| .+ \| .+) \| [\d,-]+ \| `([\w/]+)\.py::(\w+)` \|$", re.MULTILINE)
HEAD = re.compile(r"\| (?:tampering|kind) \|")


@each("title, fewest", [("Tamperings that were tried", 62), ("Trials", 22)])
def test_each_row_names_a_test_that_tries_it(title: str, fewest: int) -> None:
    table = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    lines = [line for line in table.splitlines() if line.startswith("| ") and not HEAD.match(line)]
    rows = [match for line in lines if (match := ROW.match(line))]
    assert len(rows) == len(lines) >= fewest
    assert len({row["fault"] for row in rows}) == len(rows)
    missing = []
    for row in rows:
        text = (TESTS / row["file"]).read_text(encoding="utf-8")
        named = re.search(rf"^def {row['test']}\(", text, re.MULTILINE)
        if not named or (row["case"] or "") not in text:
            missing.append(row[0])
    assert missing == []


def cases(module: str, name: str) -> str:
    """How many rows the tables of a test have, or verbs the last recorded soak; "-" for a test without tables."""
    test = getattr(import_module(f"tests.{module.replace('/', '.')}"), name)
    if test.__name__ == "soak":
        return f"{figures.read('soak')['results']['struck']:,}"
    marks = [mark for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"]
    number = len(getattr(test, "rows", [{}])) * prod(len(mark.args[1]) for mark in marks)
    return f"{number:,}" if number > 1 else "-"


def with_numbers() -> str:
    return TRIAL.sub(lambda row: f"{row[1]} | {cases(row[2], row[3])} | `{row[2]}.py::{row[3]}` |", PAGE)


def test_a_trial_has_as_many_cases_as_the_page_says() -> None:
    assert len(TRIAL.findall(PAGE)) >= 22
    assert with_numbers() == PAGE, "python -m tests.publish.test_threats"
    assert figures.read("soak")["results"]["found"] == 0


if __name__ == "__main__":
    FILE.write_text(with_numbers(), encoding="utf-8")
