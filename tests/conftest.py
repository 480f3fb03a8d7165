"""Pure tests have no engine in reach: the SDK and every `docker` program are out of their way."""

import os
from pathlib import Path

import pytest

os.environ.setdefault("NO_COLOR", "1")


@pytest.fixture(autouse=True)
def no_engine_in_reach(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever is not marked `engine` talks to a socket that is not there."""
    if request.node.get_closest_marker("engine") is None:
        monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-engine.sock")
        monkeypatch.delenv("DOCKER_CONTEXT", raising=False)
