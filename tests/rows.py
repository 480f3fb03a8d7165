"""One test for a whole table: for each of thousands of rows, pytest's own work would take longer than the row."""

from collections.abc import Callable, Iterable
from functools import wraps
from inspect import signature
from itertools import product
from typing import Any

import pytest

Test = Callable[..., None]
# Tracebacks shown of rows that fail alike. All failing rows are named.
SHOWN = 5


def each(names: str, rows: Iterable[Any]) -> Callable[[Test], Test]:
    """Run a test for every row, and name all rows that fail.

    `names` and `rows` are those of pytest.mark.parametrize, and several decorators combine in the same way. The rows
    share the test's fixtures.
    """
    columns = [name.strip() for name in names.split(",")]
    table = [dict(zip(columns, row if len(columns) > 1 else (row,), strict=True)) for row in rows]
    assert table, f"no rows of {names}"

    def decorate(test: Test) -> Test:
        check: Test = getattr(test, "check", test)
        rows: list[dict[str, Any]] = [outer | inner for outer, inner in product(table, getattr(test, "rows", [{}]))]

        @wraps(check)
        def every(**fixtures: Any) -> None:
            failures = list(filter(None, (_failure(check, row, fixtures) for row in rows)))
            if failures:
                failed = "; ".join(error.__notes__[-1] for error in failures)
                raise BaseExceptionGroup(f"{len(failures)} of {len(rows)} rows fail: {failed}", failures[:SHOWN])

        own = signature(check)
        fixtures = [parameter for name, parameter in own.parameters.items() if name not in rows[0]]
        vars(every).update(check=check, rows=rows, __signature__=own.replace(parameters=fixtures))
        return every

    return decorate


def _failure(check: Test, row: dict[str, Any], fixtures: dict[str, Any]) -> BaseException | None:
    try:
        check(**row, **fixtures)
    except (Exception, pytest.fail.Exception) as error:  # the latter is what pytest.raises ends with
        error.add_note(", ".join(f"{name}={_label(value)}" for name, value in row.items()))
        return error
    return None


def _label(value: object) -> str:
    """Return what a reader knows a row by: its name, or its value."""
    return str(getattr(value, "name", value))
