"""A clock that goes on only where a test says so, whatever else the machine does."""

import time
from types import ModuleType

import pytest


class Stopped:
    """In place of the module `time`; `now`: its monotonic seconds; `set_by`: how far somebody has set the clock."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.set_by = 0.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return 1_700_000_000.0 + self.now + self.set_by

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
