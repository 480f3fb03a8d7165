"""Pure tests have no engine in reach; the others have a real one, and where CI is set fail for want of it."""

import os
import signal
from collections.abc import Generator

import hypothesis
import pytest

from tfbuild import errors
from tfbuild.engine import Engine
from tfbuild.errors import EngineMissing
from tfbuild.oci import transport

os.environ.setdefault("NO_COLOR", "1")
# A slow example is a busy machine, never a failure. `invoke test --nightly` tries many more.
hypothesis.settings.register_profile(
    "quick", max_examples=30, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.register_profile("thorough", hypothesis.settings.get_profile("quick"), max_examples=400)
hypothesis.settings.load_profile("quick")
# Made by no test: a folder of its own for each of thousands of tests would take longer than most of them.
NO_ENGINE = "unix:///nonexistent/no-engine.sock"
# Whoever runs the tests in the background or under nohup hands ignored signals on, to those that tests end as well.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def no_secrets_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one test sent as a password is not hidden in what another prints."""
    monkeypatch.setattr(errors, "_sent", {})


@pytest.fixture(autouse=True)
def no_engine_in_reach(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is not marked `engine` talks to a socket that is not there."""
    if request.node.get_closest_marker("engine") is None:
        monkeypatch.setenv("DOCKER_HOST", NO_ENGINE)
        monkeypatch.delenv("DOCKER_CONTEXT", raising=False)
        # Registries that do not answer are asked again at once.
        monkeypatch.setattr(transport, "BACKOFF", 0)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where CI is set, a test that would be skipped for want of something that CI can have has failed."""
    report = yield
    needs = any(item.get_closest_marker(name) for name in ("engine", "contract", "sshd", "browser"))
    if report.skipped and os.environ.get("CI") and needs:
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
