"""Pure tests have no engine in reach; the others have a real one, and where CI is set fail for want of it."""

import os
import signal
from collections.abc import Generator
from pathlib import Path

import hypothesis
import pytest

from tfbuild.engine import Engine
from tfbuild.errors import EngineMissing

os.environ.setdefault("NO_COLOR", "1")
# What an example takes is the machine's load, never the test's verdict.
hypothesis.settings.register_profile("tfbuild", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("tfbuild")
# Whoever runs the tests in the background or under nohup hands ignored signals on, to those that tests end as well.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def no_engine_in_reach(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever is not marked `engine` talks to a socket that is not there."""
    if request.node.get_closest_marker("engine") is None:
        monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-engine.sock")
        monkeypatch.delenv("DOCKER_CONTEXT", raising=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where CI is set, a test that would be skipped for want of something that CI can have has failed."""
    report = yield
    needs = any(item.get_closest_marker(name) for name in ("engine", "contract", "sshd", "browser"))
    if report.skipped and os.environ.get("CI") and needs and not item.get_closest_marker("sources"):
        report.outcome = "failed"
    return report


@pytest.fixture(scope="session")
def engine() -> Engine:
    try:
        return Engine.connect()
    except EngineMissing as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"{error}; invoke engine")
