"""Another user than root, who may read and write everything."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65534


@contextmanager
def nobody() -> Iterator[None]:
    """As a user who may read and write only what all may, where this one is root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@contextmanager
def open_folder(mode: int = 0o755) -> Iterator[Path]:
    """A folder that everybody can reach; pytest's own, and perhaps TMPDIR's, are only this user's."""
    with tempfile.TemporaryDirectory(prefix="tfbuild-test-", dir="/tmp") as name:
        Path(name).chmod(mode)
        yield Path(name)
