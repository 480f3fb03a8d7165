"""The free space on the disk where an engine keeps its images."""

import shutil
from pathlib import Path
from typing import Protocol

from tfbuild.errors import DiskFull

# With less free, the disk is why the engine failed, whatever it says; it leaves a little to itself when it cleans up.
FULL_BYTES = 16 << 20
HINT = "docker builder prune, docker image prune; then run the same command again: what was built is kept"


class Keeper(Protocol):
    """An engine, as far as its disk is concerned."""

    @property
    def local(self) -> bool: ...
    @property
    def data_root(self) -> Path: ...


def free(engine: Keeper) -> int | None:
    """Return the free bytes where the engine keeps its images; None where that is on another machine or in a VM."""
    root = engine.data_root
    if not engine.local or not root.is_dir():
        return None
    return shutil.disk_usage(root).free


def is_full(engine: Keeper) -> bool:
    """Return whether the engine's disk is seen to be full."""
    space = free(engine)
    return space is not None and space < FULL_BYTES


def require_some(engine: Keeper, use: str) -> None:
    """Raise DiskFull where the engine's disk is full. `use`: what it was to do."""
    if is_full(engine):
        raise DiskFull(f"the engine's disk is full: no space is left on {engine.data_root} for {use}", hint=HINT)


def require(engine: Keeper, required: int) -> None:
    """Raise DiskFull where fewer than `required` bytes are free."""
    space = free(engine)
    if space is not None and space < required:
        raise DiskFull(
            f"{required / 1e9:.1f} GB are needed on {engine.data_root}, {space / 1e9:.1f} GB are free",
            hint="free unused data: docker builder prune, docker image prune",
        )
