"""The tamperings and trials in docs/threat-model.md: each names a test that exists.

It has the exit codes of a tampering's answer, and a trial says how many cases it has.

`python -m tests.publish.test_threats` writes those numbers into the page.
"""

import re
from collections.abc import Callable
from importlib import import_module
from inspect import getsource
from math import prod
from pathlib import Path

from benchmarks import figures
from tests.publish import test_answers
from tests.rows import each
from tfbuild.errors import TfbuildError

TESTS = Path(__file__).parents[1]
FILE = TESTS.parent / "docs" / "threat-model.md"
PAGE = FILE.read_text(encoding="utf-8")
ROW = re.compile(
    r"^\| (?P<fault>[^|]+) (?P<answer>(?:\| [^|]+ ){1,3})"
    r"\| `{1,2} ?(?P<file>[\w/]+\.py)::(?P<test>\w+)(?:\[(?P<case>.+)\])? ?`{1,2} \|$"
)
TRIAL = re.compile(r"^(\| .+ \| .+ \| .+) \| [\d,-]+ \| `([\w/]+)\.py::(\w+)` \|$", re.MULTILINE)
HEAD = re.compile(r"\| (?:tampering|kind) \|")


def lines_of(title: str) -> list[str]:
    table = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return [line for line in table.splitlines() if line.startswith("| ") and not HEAD.match(line)]


@each("title, fewest", [("Tampering that was tried", 62), ("Trials", 22)])
def test_each_row_names_a_test_that_tries_it(title: str, fewest: int) -> None:
    lines = lines_of(title)
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


def codes_in(text: str) -> set[int]:
    """The exit codes in a text, as numbers or by the names of errors."""
    kinds, known = [TfbuildError], dict[str, int]()
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        known |= {kind.__name__: kind.exit_code, str(kind.exit_code): kind.exit_code}
    return {known[word] for word in re.findall(r"\w+", text) if word in known}


@each("line", lines_of("Tampering that was tried"))
def test_the_exit_codes_of_an_answer_are_in_its_test(line: str) -> None:
    """Those of test_answers.py are in the manual's table of faults, with which it compares all verbs."""
    row = ROW.match(line)
    assert row
    by_table = row["file"] == "publish/test_answers.py"
    text = " ".join(test_answers.table()[row["case"]]) if by_table else getsource(function(row["file"], row["test"]))
    assert codes_in(row["answer"]) <= codes_in(text)


def function(file: str, name: str) -> Callable[..., None]:
    test: Callable[..., None] = getattr(import_module(f"tests.{file.removesuffix('.py').replace('/', '.')}"), name)
    return test


def cases(module: str, name: str) -> str:
    """How many rows the tables of a test have, or verbs the last recorded soak; "-" for a test without tables."""
    test = function(module, name)
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
