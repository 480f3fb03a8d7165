"""A plugin of pytest's: which tests of pytest-xdist's one worker runs one after the other, and what begins first.

Each file is a lane of its own, but for those of LANES, which share something that took long to make or to import, or
a name in the engine. pytest-xdist's own marker xdist_group says the same; pytest 9.2 ignores it (pytest-xdist 3.8 sets
Item._nodeid).
"""

from pathlib import PurePosixPath

import pytest
from xdist.scheduler import LoadScopeScheduling

LANES = {
    # The first one installs TensorFlow without a cache; all others that need it, in any lane, find its layers.
    "tensorflow": ("test_image", "test_verify", "test_inspect"),
    # One toolchain for all compiles with Bazel.
    "compile": (
        "test_compile", "test_remote", "test_bazel", "test_configure", "test_offline",
    ),
    # One image with Debian's compilers.
    "compilers": ("test_compilers", "test_emulated"),
    # Names of the image of the official wheel.
    "build": ("test_build", "test_rebuild"),
    # The environment with TensorFlow, which the first one makes.
    "in_container": tuple(f"tests/in_container/test_{name}.py" for name in ("smoke", "worker", "workloads")),
    # JSON Schema, whose import takes a second.
    "schemas": (
        "tests/bench/test_report.py", "tests/ci/test_workflows.py", "tests/project/test_cluster.py",
        "tests/publish/test_sbom.py", "tests/verify/test_report.py",
    ),
}  # fmt: skip
# Long lanes first, so that the short ones fill the processors beside and after them. While Debian is made, for which
# the first two wait, the third makes an environment with TensorFlow. What needs an image's layers comes when they are
# there.
ORDER = (
    "tensorflow", "compile", "in_container", "compilers", "test_registry", "test_ci_steps", "build",
    "test_bench", "test_reproducible", "test_engine", "test_no_container", "test_faults",
)  # fmt: skip
ROOMS = {"with_engine", "contract"}
LANE_OF = {file: lane for lane, files in LANES.items() for file in files}


def name_of(node: str) -> str:
    """The test's file as LANES names it: by its stem if it is in one of ROOMS."""
    path = PurePosixPath(node.partition("::")[0])
    return path.stem if ROOMS & set(path.parts) else str(path)


def lane(node: str) -> str:
    file = name_of(node)
    return LANE_OF.get(file, file)


def rank(node: str) -> tuple[int, int]:
    """By ORDER, then the others that need an engine, then those that need none; in a lane its files in their order."""
    name, file = lane(node), name_of(node)
    place = ORDER.index(name) if name in ORDER else len(ORDER) + ("/" in file)
    return place, LANES[name].index(file) if name in LANES else 0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: rank(item.nodeid))


class Lanes(LoadScopeScheduling):  # type: ignore[misc]  # pytest-xdist's scheduler is not typed
    def _split_scope(self, nodeid: str) -> str:
        return lane(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Lanes:
    return Lanes(config, log)
