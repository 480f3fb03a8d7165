"""The tamperings and trials in docs/threat-model.md: each names a test that exists."""

import re
from pathlib import Path

from tests.rows import each

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "threat-model.md").read_text(encoding="utf-8")
ROW = re.compile(
    r"^\| (?P<fault>[^|]+) (?:\| [^|]+ ){1,2}"
    r"\| `{1,2} ?(?P<file>[\w/]+\.py)::(?P<test>\w+)(?:\[(?P<case>.+)\])? ?`{1,2} \|$"
)
HEAD = re.compile(r"\| (?:tampering|kind) \|")


@each("title, fewest", [("Tamperings that were tried", 62), ("Trials", 19)])
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
