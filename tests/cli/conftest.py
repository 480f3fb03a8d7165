"""A folder for tests that run as another user (tests/users.py)."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def here() -> Iterator[Path]:
    """A folder that everybody can reach; pytest's own are only this user's."""
    with tempfile.TemporaryDirectory(prefix="here-") as name:
        Path(name).chmod(0o755)
        (Path(name) / "here").mkdir()
        yield Path(name) / "here"
