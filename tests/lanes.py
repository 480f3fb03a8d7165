"""A plugin of pytest's: which tests of pytest-xdist's one worker runs one after the other.

Each file is a lane of its own, but for those that share something that took long to make, or a name in the engine.
pytest-xdist's own marker xdist_group says the same; pytest 9.2 ignores it (pytest-xdist 3.8 sets Item._nodeid).
"""

from pathlib import PurePosixPath

import pytest
from xdist.scheduler import LoadScopeScheduling

# Real wheels of TensorFlow in images; compiles with Bazel. All else on the engine needs only small images.
TENSORFLOW = {
    "test_bench", "test_bench_models", "test_build", "test_ci_steps", "test_dockerfiles", "test_image", "test_inspect",
    "test_installed", "test_old_release", "test_supply", "test_untrusted", "test_verify",
}  # fmt: skip
COMPILE = {
    "test_bad_input", "test_bazel", "test_compile", "test_configure", "test_mirror", "test_offline", "test_remote",
}  # fmt: skip
ROOMS = {"with_engine", "contract"}


def lane(node: str) -> str:
    path = PurePosixPath(node.partition("::")[0])
    if not ROOMS & set(path.parts):
        return str(path)
    return "tensorflow" if path.stem in TENSORFLOW else "compile" if path.stem in COMPILE else "small"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The long lanes come first, so that the short ones fill the processors beside and after them."""
    items.sort(key=lambda item: "/" in lane(item.nodeid))


class Lanes(LoadScopeScheduling):  # type: ignore[misc]  # pytest-xdist's scheduler is not typed
    def _split_scope(self, nodeid: str) -> str:
        return lane(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Lanes:
    return Lanes(config, log)
