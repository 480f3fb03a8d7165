"""Durations and limits are measured by a clock that nobody can set."""

import ast
from pathlib import Path

from tests.commandline import ROOT

# The clock that people set tells dates. Each use of it, and why that is no duration.
DATES = {
    ("bench/session.py", "datetime.now"): "when a report was made",
    ("verify/session.py", "datetime.now"): "when a report was made",
    ("oci/transport.py", "datetime.now"): "named where a certificate's dates are wrong by it",
    ("pipeline/base_image.py", "datetime.now"): "the age of a base, in days",
    ("pipeline/compiling.py", "time.time"): "a limit on the engine's clock, where the engine does not tell it",
    ("pipeline/compiling.py", "time.time_ns"): "a number that no other run has",
    ("sitting.py", "time.time"): "when a sitting began, was last seen, and ended",
}


def uses(path: Path) -> set[str]:
    """The calls and default factories that read the clock of dates."""
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)]
    names = {ast.unparse(node) for node in nodes}
    return names & {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "date.today", "time.localtime"}


def test_the_clock_that_people_set_is_read_for_dates_alone() -> None:
    tops = (ROOT / "tfbuild", ROOT / "templates")
    files = [(path, path.relative_to(top).as_posix()) for top in tops for path in top.rglob("*.py")]
    found = {(name, use) for path, name in files for use in uses(path)}
    assert found == DATES.keys()
