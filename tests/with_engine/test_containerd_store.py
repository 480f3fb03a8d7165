"""An engine that keeps images with containerd knows them by other digests: an image stays the same one everywhere."""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cpu.machines import machine
from tests.with_engine import second
from tests.with_engine.test_registry import build, label, made, place, push, server
from tfbuild.engine import Engine
from tfbuild.oci.client import Registry
from tfbuild.publish import pushing
from tfbuild.util.progress import Progress

__all__ = ["made", "place", "server"]  # fixtures
pytestmark = [pytest.mark.engine, pytest.mark.nightly]
Invoke = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def newer(engine: Engine) -> Iterator[Engine]:
    with second.newer() as host:
        connected = Engine.connect(host)
        info = connected.client.info()
        assert ["driver-type", "io.containerd.snapshotter.v1"] in info["DriverStatus"]
        yield connected


def test_what_is_pushed_from_there_is_described_and_pulled_here(
    engine: Engine, newer: Engine, place: Registry, tmp_path: Path
) -> None:
    one = build("x86-64-v3")
    name = label(newer, tmp_path, one)
    done = push(newer, name, place, tmp_path)
    assert done.uploaded
    # There an image is known by its manifest, here by its configuration.
    assert done.digest == newer.image(name).id
    assert not push(newer, name, place, tmp_path).uploaded
    found = pushing.find_published(place, one.id)
    pushing.refuse_unfinished(place, found, None)
    engine.pull(found.reference, Progress())
    try:
        assert engine.image(found.reference).id == found.manifest.config != done.digest
    finally:
        engine.remove(found.reference)


def test_what_is_pushed_from_here_is_pulled_there(
    engine: Engine, newer: Engine, made: Callable[..., str], place: Registry, tmp_path: Path, invoke: Invoke
) -> None:
    one = build("avx")
    image = made(one, more={"io.tfbuild.context": "sha256:0"})
    digest = push(engine, image, place, tmp_path).digest
    (tmp_path / "cpuinfo").write_text(machine("rhel7-haswell").cpuinfo())
    env = newer.environ
    arguments = ("--registry", str(place.repository), "--cpuinfo", str(tmp_path / "cpuinfo"), "--json")
    pulled = json.loads(invoke("pull", *arguments, env=env).stdout)
    assert pulled["reference"] == f"{place.repository}@{digest}"
    assert newer.image(pulled["image"]).id == digest
