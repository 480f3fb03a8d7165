"""The contract with TensorFlow's real source tree. Where CI is set these tests fail for want of it; else they skip."""

import os
from pathlib import Path

import pytest

from tests import debian
from tests.contract import archive, newbazel
from tests.contract.archive import Tree
from tests.debian import Unavailable
from tfbuild.engine import Engine

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.contract)
            # The image with a newer Bazel takes minutes to make. The facts that are tested there seldom change, and
            # tests/with_engine/test_compile.py holds the templates to a real Bazel in every run.
            if "builder" in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.nightly)


@pytest.fixture(scope="session")
def tree() -> Tree:
    try:
        return archive.read(archive.fetch(debian.cache()))
    except Unavailable as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"TensorFlow's source cannot be had: {error}")


@pytest.fixture(scope="session")
def builder(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image with real compilers and a real Bazel."""
    return newbazel.image(engine, tmp_path_factory.mktemp("builder"))
