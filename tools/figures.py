"""Write the tables of figures: each number from a committed report, with its machine and its caveats.

`invoke generate` writes them into docs/figures.md and README.md. The rows are in figures.toml.
"""

import json
import re
import tomllib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.harness import RESULTS
from tools.reference import with_section

ROWS = Path(__file__).with_suffix(".toml")
ROOT = Path(__file__).parents[1]
README, PAGE = Path("README.md"), Path("docs") / "figures.md"
BEGIN, END = "<!-- figures -->\n", "<!-- end of figures -->\n"
# What vendors write around a processor's name.
DECORATION = re.compile(r"\((R|TM)\)|\b(CPU|Processor)\b")


def pages() -> dict[Path, str]:
    """Return the files with figures, by their paths in the repository: the page with all rows, the README with some."""
    tables = {PAGE: table(rows()), README: table(row for row in rows() if row.get("readme"))}
    texts = {path: (ROOT / path).read_text(encoding="utf-8") for path in tables}
    return {path: with_section(texts[path], BEGIN, END, table) for path, table in tables.items()}


def rows() -> list[dict[str, Any]]:
    return list(tomllib.loads(ROWS.read_text(encoding="utf-8"))["figure"])


def table(some: Iterable[dict[str, Any]]) -> str:
    lines = ["| what | figure | report, machine |", "|---|---|---|"]
    for row in some:
        where = f"`{row['report']}.json`, {machine(row['report'])}"
        lines.append(f"| {row['what']} | {shown(row)} | {where} |")
    return "\n".join(lines) + "\n"


def shown(row: dict[str, Any]) -> str:
    found = [value(row["report"], spec) for spec in row["of"]]
    if "text" in row:
        return str(row["text"]).format(*found)
    return "; ".join(
        f"{spec.get('name', '')} {interval(ratio, spec)}{caveat(row['report'], spec)}".strip()
        for spec, ratio in zip(row["of"], found, strict=True)
    )


def interval(ratio: dict[str, float], spec: dict[str, str]) -> str:
    # What is measured by whole processes, or by instructions alone, is known more closely than a TensorFlow operation.
    digits = 3 if "path" in spec else 2
    median, low, high = (f"{ratio[name]:.{digits}f}" for name in ("median", "low", "high"))
    return f"{median} [{low}, {high}]"


def value(report: str, spec: dict[str, Any]) -> Any:
    """The number, or the ratio with its interval, that a row asks for; KeyError where the report has it not."""
    if "path" in spec:
        found = read(report)
        for name in spec["path"].split("."):
            found = row_of(found, name.split()) if isinstance(found, list) else found[name]
        return found / spec["unit"] if "unit" in spec else found
    (arm,) = [arm for arm in case_of(report, spec)["arms"] if arm["name"] == spec["arm"]]
    if arm[spec["time"]] is None:
        raise KeyError(f"{report}.json has no ratio for {spec}")
    return arm[spec["time"]]


def row_of(rows: list[dict[str, Any]], words: list[str]) -> Any:
    (found,) = [row for row in rows if set(words) <= {one for one in row.values() if isinstance(one, str)}]
    return found


def caveat(report: str, spec: dict[str, str]) -> str:
    if "case" not in spec:
        return ""
    case = case_of(report, spec)
    return f" (noisy: {case['clean']} of {len(case['rounds'])} rounds undisturbed)" if case["noisy"] else ""


def case_of(report: str, spec: dict[str, str]) -> dict[str, Any]:
    (experiment,) = [one for one in read(report)["experiments"] if one["name"] == spec["experiment"]]
    found, *_ = [case for case in experiment["cases"] if case["name"].startswith(spec["case"])]
    return dict(found)


def machine(report: str) -> str:
    """The processor that the report was made on, and the day."""
    document = read(report)
    own = document.get("machine", {})
    cpu = " ".join(DECORATION.sub(" ", own.get("cpu") or document["host"]["cpu"]).split())
    return f"{cpu}, {document['created'][:10]}"


@cache
def read(report: str) -> Any:
    return json.loads((RESULTS / f"{report}.json").read_text(encoding="utf-8"))
