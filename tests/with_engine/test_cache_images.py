"""A compile in links: each on an engine with empty disks, with Bazel's cache as an image in a registry between them."""

import json
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.with_engine import registry as registries
from tests.with_engine import second as seconds
from tests.with_engine.conftest import ROOT, Site
from tests.with_engine.test_compile import ENDLESS, KERNELS, NAMED, command, executed, small
from tfbuild.engine import Engine

pytestmark = [pytest.mark.engine, pytest.mark.nightly]
CPU = "x86-64-v3"


@pytest.fixture
def trees(tmp_path: Path) -> tuple[Path, Path]:
    """Trees with the same kernels, new to every cache: one whose compile does not end, and one whose compile does."""
    new = uuid.uuid4().hex
    endless, whole = small(tmp_path / "endless", new), small(tmp_path / "whole", new)
    build = endless / "tensorflow/double/BUILD"
    build.write_text(build.read_text().replace('"features.cc", ', '"features.cc", "endless.h", ') + ENDLESS)
    return endless, whole


@contextmanager
def empty_engine(engine: Engine, site: Site) -> Iterator[str]:
    """An engine that has the base image and nothing else."""
    with seconds.engine() as second:
        there = Engine.connect(second.host)
        there.client.images.load(b"".join(engine.client.images.get(site.base).save(named=True)))
        yield second.host


def test_three_links_on_empty_disks_compile_each_action_once(
    engine: Engine, site: Site, trees: tuple[Path, Path], tmp_path: Path
) -> None:
    endless, whole = trees
    said = []
    with registries.serve(tmp_path) as server:
        cache = f"oci://127.0.0.1:{server.port}/us/cache"
        for tree, code in ((endless, 75), (endless, 75), (whole, 0)):
            with empty_engine(engine, site) as host:
                limit = ("--time-limit", "3m") if code else ()
                words = command(CPU, tmp_path / "dist", *site.options(), "--source", str(tree), *limit, *NAMED)
                # A busy machine may need the time of several runs until it compiles.
                for _ in range(5):
                    done = subprocess.run(
                        [*words, "--engine", host, "--remote-cache", cache],
                        cwd=ROOT, capture_output=True, text=True, check=False,
                    )  # fmt: skip
                    assert done.returncode == code, done.stderr[-6000:]
                    if "before anything was compiled" not in done.stderr:
                        break
                left = {tag for image in Engine.connect(host).client.images.list() for tag in image.tags}
                assert not any("cache" in tag for tag in left), left
            said.append(done.stderr)
    assert "no cache yet" in said[0]
    assert all("pull 127.0.0.1" in text and "build: restoring" in text for text in said[1:])
    assert not any("was not saved" in text for text in said)
    # Each kernel's text is new: what the last link did not run, an earlier one had compiled.
    assert executed(said[2]) < KERNELS
    answer = json.loads(done.stdout)
    record = (ROOT / "build" / answer["id"] / "sittings.jsonl").read_text()
    sittings = [json.loads(line) for line in record.splitlines()]
    # The record travels with the cache.
    assert len(sittings) >= 3
    assert sittings[-1]["why"] == "done"
    assert sittings[-1]["from_cache"] > 0
