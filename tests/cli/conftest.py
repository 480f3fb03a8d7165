"""A folder for tests that run as another user (tests/users.py)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.users import open_folder


@pytest.fixture
def here() -> Iterator[Path]:
    with open_folder() as top:
        (top / "here").mkdir()
        yield top / "here"
