"""What a build does with names on an engine that other runs use too."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tfbuild import dockerfile, pipeline, plan
from tfbuild.compiling import Options
from tfbuild.engine import Engine
from tfbuild.engine.base import Base
from tfbuild.engine.builder import Builder
from tfbuild.errors import DiskFull
from tfbuild.pipeline import Maker
from tfbuild.plan import Request


class Names(Engine):
    """An engine's names alone, and what they stand for."""

    def __init__(self, **names: str) -> None:
        self.names = names

    def exists(self, ref: str) -> bool:
        return ref in self.names

    def image(self, ref: str) -> Any:
        return type("Found", (), {"id": self.names[ref]})


def test_what_a_compiled_image_is_compared_with_keeps_when_its_own_run_renames_it(tmp_path: Path) -> None:
    compiled = plan.select(Request(target="mkl", release="2.20.0", cpu="x86-64-v3", platform="linux/amd64"), None)
    official = plan.select(
        Request(target="mkl", release="2.20.0", python=compiled.python, wheel="official", platform="linux/amd64"), None
    )
    unverified = pipeline.name(official, "-unverified")
    maker = Maker(base="auto", work=tmp_path, reports=tmp_path, options=Options())
    engine = Names(**{unverified: "sha256:1"})
    maker.__dict__["engine"] = engine
    found = maker._baseline("x", dockerfile.labels(compiled))
    assert found is not None
    engine.names = {pipeline.name(official): "sha256:1"}
    # It runs by what stays, and is called what it was.
    assert (found.ref, found.image) == (unverified, "sha256:1")
    assert found.image in engine.names.values()


def saving(*chunks: bytes) -> Engine:
    """An engine with a builder elsewhere, whose images are saved as these chunks; then the disk is full."""

    def save() -> Iterator[bytes]:
        yield from chunks
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    images = SimpleNamespace(get=lambda _: SimpleNamespace(save=save))
    engine = Engine.__new__(Engine)
    engine.client = SimpleNamespace(images=images)
    engine.__dict__["builder"] = Builder(name="far", driver="remote")
    return engine


def test_a_base_that_does_not_fit_on_the_disk_leaves_nothing_there(tmp_path: Path) -> None:
    build = plan.select(Request(target="mkl", release="2.20.0", cpu="avx", platform="linux/amd64"), None)
    maker = Maker(base="auto", work=tmp_path, reports=tmp_path, options=Options())
    maker.__dict__["engine"] = saving(b"some of it")
    base = Base(reference="tfbuild-base:bookworm", name="x", digest="sha256:1")
    with pytest.raises(DiskFull, match=r"no space is left for .*base"), maker._handed(build, base):
        pytest.fail("there is no base")
    assert list((tmp_path / build.id).iterdir()) == []
