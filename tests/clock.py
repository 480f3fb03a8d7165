"""A clock that goes on only where a test says so, whatever else the machine does."""

import time
from types import ModuleType

import pytest


class Stopped:
    """In place of the module `time`; `now`: its monotonic seconds."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def __getattr__(self, name: str) -> object:
        return getattr(time, name)


def stop(patch: pytest.MonkeyPatch, *modules: ModuleType) -> Stopped:
    """Stops the clock that these modules read."""
    stopped = Stopped()
    for module in modules:
        patch.setattr(module, "time", stopped)
    return stopped
