"""A push whose engine is killed, and a pull of more than the disk holds: on an engine with a disk of 1 GB."""

import gzip
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.with_engine import registry as registries
from tests.with_engine.conftest import ROOT
from tests.with_engine.registry import Server
from tests.with_engine.test_fault_matrix import Victim, one_message, started
from tests.with_engine.test_registry import build, cpuinfo, label, wait_for_bytes
from tfbuild.engine import Engine
from tfbuild.errors import DiskFull, EngineMissing
from tfbuild.oci import manifests
from tfbuild.oci.client import Registry
from tfbuild.publish import attachments, index_updates, indexes

pytestmark = pytest.mark.engine
SECONDS = 300
BUILD = build("avx")


@pytest.fixture
def victim() -> Iterator[Victim]:
    with started("1g", other_cpu=False) as there:
        there.wait()
        yield there


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "registry").mkdir()
    with registries.serve(tmp_path / "registry") as server:
        yield server


def run(
    victim: Victim, folder: Path, *words: str, strike: Callable[["subprocess.Popen[str]"], None] = lambda _: None
) -> tuple[int, str]:
    """Run `invoke` in the folder, strike, and return the exit code and what was printed."""
    (folder / "tmp").mkdir(exist_ok=True)
    env = os.environ | {"DOCKER_HOST": victim.found.host, "TMPDIR": str(folder / "tmp")}
    command = [sys.executable, "-m", "invoke", "--search-root", str(ROOT), *words]
    with subprocess.Popen(
        command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            strike(process)
            output, _ = process.communicate(timeout=SECONDS)
        finally:
            process.kill()
    return process.returncode, output


def names(victim: Victim) -> list[tuple[str, ...]]:
    there = Engine.connect(victim.found.host)
    found = [image.tags for image in there.labelled("io.tfbuild.id")]
    there.client.close()
    return found


def test_a_push_whose_engine_or_process_is_killed_in_a_layer_is_ended_by_the_next_one(
    victim: Victim, server: Server, tmp_path: Path
) -> None:
    there = Engine.connect(victim.found.host)
    image = label(there, tmp_path, BUILD, megabytes=100)
    there.client.close()
    words = ("push", image, "--registry", server.repository)

    def engine_killed(process: "subprocess.Popen[str]") -> None:
        wait_for_bytes(server)
        assert process.poll() is None
        victim.kill()

    def killed(process: "subprocess.Popen[str]") -> None:
        wait_for_bytes(server)
        process.kill()

    code, output = run(victim, tmp_path, *words, strike=engine_killed)
    assert code == EngineMissing.exit_code, output
    message = one_message(output)
    assert message.startswith("error: the container engine stopped answering during the push: "), message
    assert message.count("error: ") == 1
    assert server.place().tags() == []
    victim.restart()

    code, output = run(victim, tmp_path, *words, strike=killed)
    assert code == -signal.SIGKILL, output
    assert server.place().tags() == []

    code, output = run(victim, tmp_path, *words)
    assert code == 0, output
    assert names(victim) == [(image,)]
    assert server.place().digest(BUILD.id)
    assert not [*(tmp_path / "tmp").iterdir()]


# --- a layer that unpacks to more than the disk holds ----------------------------------------------------------------

BOMB_BYTES = 4 << 30
PART_BYTES = 64 << 20


@dataclass(frozen=True, kw_only=True)
class Layer:
    """`content`: as gzip; `diff_id`: the digest of what it unpacks to."""

    content: bytes
    diff_id: str


def layer(name: str, size: int, part: bytes) -> Layer:
    """A layer with a file that repeats a part."""
    info, end = tarfile.TarInfo(name), bytes(1024)
    info.size = size
    unpacked = hashlib.sha256(info.tobuf())
    for _ in range(size // len(part)):
        unpacked.update(part)
    unpacked.update(end)
    # The members of a gzip file make one.
    head, member, tail = (gzip.compress(content, 1) for content in (info.tobuf(), part, end))
    content = head + size // len(part) * member + tail
    return Layer(content=content, diff_id=f"sha256:{unpacked.hexdigest()}")


def publish_bomb(engine: Engine, image: str, place: Registry, reports: Path) -> None:
    """Publish an image that has the labels of another one, and layers of its own: a small one, then a bomb."""
    described = engine.image(image)
    layers = [layer("small", PART_BYTES, os.urandom(PART_BYTES)), layer("zeros", BOMB_BYTES, bytes(PART_BYTES))]
    config = {
        "architecture": "amd64", "os": "linux", "created": described.created,
        "config": {"Labels": {**described.labels}},
        "rootfs": {"type": "layers", "diff_ids": [one.diff_id for one in layers]},
    }  # fmt: skip

    def uploaded(media_type: str, content: bytes) -> dict[str, object]:
        return {"mediaType": media_type, "digest": place.upload(content), "size": len(content)}

    document = {
        "schemaVersion": 2, "mediaType": manifests.IMAGES[0],
        "config": uploaded("application/vnd.oci.image.config.v1+json", json.dumps(config).encode()),
        "layers": [uploaded("application/vnd.oci.image.layer.v1.tar+gzip", one.content) for one in layers],
    }  # fmt: skip
    assert len(layers[1].content) < 32 << 20
    place.put(BUILD.id, json.dumps(document).encode(), manifests.IMAGES[0])
    manifest = place.manifest(BUILD.id)
    assert manifest is not None
    attachments.attach(engine, described, place, manifest, reports)
    published = indexes.of_config(place.config(manifest), manifest.digest)
    assert published is not None
    index_updates.gather(place, published)


def test_a_layer_that_unpacks_to_more_than_the_disk_holds_is_one_error_and_is_removed(
    victim: Victim, server: Server, tmp_path: Path
) -> None:
    there = Engine.connect(victim.found.host)
    image = label(there, tmp_path, BUILD)
    publish_bomb(there, image, server.place(), tmp_path / "reports")
    there.client.close()
    (tmp_path / "cpuinfo").write_text(cpuinfo("rocky9-zen5"))
    before = shutil.disk_usage(victim.data).free
    code, output = run(victim, tmp_path, "pull", f"--registry={server.repository}", f"--cpuinfo={tmp_path / 'cpuinfo'}")
    assert code == DiskFull.exit_code, output
    message = one_message(output)
    assert message.startswith("error: the engine's disk is full: failed to register layer: "), message
    assert "hint: docker builder prune, docker image prune" in message
    assert before - shutil.disk_usage(victim.data).free < PART_BYTES // 2
    assert names(victim) == [(image,)]
    assert not [*(tmp_path / "tmp").iterdir()]
