"""What `docker pull`, without tfbuild, takes of an index whose entries name their level as platform.variant."""

import secrets
import subprocess
from collections.abc import Iterator

import pytest

from tests import debian
from tests.with_engine import second
from tests.with_engine.registry import Server
from tests.with_engine.test_registry import build, label, push, server
from tfbuild import facts
from tfbuild.context.labels import read_labels
from tfbuild.cpu import detect, isa
from tfbuild.engine import Engine
from tfbuild.oci.client import Registry

__all__ = ["server"]  # fixture
pytestmark = [pytest.mark.engine, pytest.mark.nightly]
SETS = ("x86-64-v4-vnni", "f16c", "x86-64-v3", "x86-64-v4", "x86-64-v2")
SLOWEST = SETS[-1]


@pytest.fixture(scope="module")
def published(engine: Engine, server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    place = server.place(f"test/{secrets.token_hex(4)}")
    folder, names = tmp_path_factory.mktemp("plain"), []
    for name in SETS:
        names.append(label(engine, folder, build(name)))
        push(engine, names[-1], place, folder)
    yield place
    for name in names:
        engine.remove(name)


def taken(engine: Engine, place: Registry, platform: str = "") -> str:
    """The instruction set of the image that plain docker pulls."""
    ref = f"{place.repository}:latest-mkl"
    option = [f"--platform={platform}"] if platform else []
    env = engine.environ
    subprocess.run(["docker", "pull", "--quiet", *option, ref], env=env, check=True, capture_output=True)
    try:
        return read_labels(engine.image(ref).labels).get("instruction-set")
    finally:
        engine.remove(ref)


def own_level() -> str:
    """The largest of SETS that is a level and that this host runs."""
    features = set(isa.all_of_cpu(detect()).features)
    levels = [row.name for row in facts.levels("x86_64") if set(row.features) <= features]
    return max((name for name in SETS if name in levels), default=SLOWEST)


@pytest.mark.parametrize(
    ("suite", "containerd", "takes"),
    [
        (debian.OLDER, False, {"slowest"}),
        (debian.NEWER, False, {"own level"}),
        (debian.NEWEST, False, {"own level"}),
        # containerd's store knows no level of its host before moby's change 52773, of June 2026.
        (debian.NEWER, True, {"slowest", "own level"}),
        (debian.NEWEST, True, {"slowest", "own level"}),
    ],
)
def test_plain_docker_takes_the_level_of_its_host_or_the_slowest(
    published: Registry, suite: str, containerd: bool, takes: set[str]
) -> None:
    with second.newer(suite, containerd=containerd) as host:
        engine = Engine.connect(host)
        answers = {"slowest": SLOWEST, "own level": own_level()}
        assert taken(engine, published) in {answers[name] for name in takes}
        rows = {"": SLOWEST, "/v2": SLOWEST, "/v3": "x86-64-v3", "/v4": "x86-64-v4"}
        if suite == debian.OLDER:
            del rows["/v2"]  # only newer engines take a lower one
        for platform, own in rows.items():
            assert taken(engine, published, f"linux/amd64{platform}") == own
