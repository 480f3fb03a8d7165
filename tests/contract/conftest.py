"""The contract with TensorFlow's real source tree. Where CI is set these tests fail for want of it; else they skip."""

import os
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.contract import archive
from tests.contract.archive import Tree, Unavailable
from tfbuild.engine import Engine, base
from tfbuild.engine.progress import Progress
from tfbuild.errors import EngineMissing

HERE = Path(__file__).parent
IMAGE = "tfbuild-test:contract"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.contract)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where CI is set, a test that would be skipped for want of something has failed."""
    report = yield
    if report.skipped and os.environ.get("CI") and item.get_closest_marker("contract"):
        report.outcome = "failed"
    return report


@pytest.fixture(scope="session")
def tree() -> Tree:
    try:
        return archive.read(archive.fetch(archive.cache()))
    except Unavailable as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"TensorFlow's source cannot be had: {error}")


@pytest.fixture(scope="session")
def engine() -> Engine:
    try:
        return Engine.connect()
    except EngineMissing as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"{error}; invoke engine")


@pytest.fixture(scope="session")
def builder(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image with real compilers and a real Bazel. It stays for the next run: it is as good as its Dockerfile."""
    log = tmp_path_factory.mktemp("builder")
    found = base.bootstrap(engine, "bookworm", progress=Progress(), log=log / "base.log")
    engine.build(
        HERE / "builder",
        tag=IMAGE,
        build_args={"BASE": found.reference},
        log=log / "image.log",
        progress=Progress(),
    )
    return IMAGE
