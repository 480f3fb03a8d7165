"""What a build does with names on an engine that other runs use too."""

import errno
import os
from collections.abc import Iterator
from dataclasses import replace
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
from tfbuild.verify import session as verifying
from tfbuild.verify.verification import Baseline


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


def test_a_release_whose_official_wheel_has_no_onednn_is_compared_with_that_of_target_cpu(tmp_path: Path) -> None:
    base = "python-base:3.7-bullseye"
    asked = Request(target="mkl", release="2.0.4", python="3.7", platform="linux/amd64", base=base)
    official = pipeline.official(asked.release, asked.target, asked.python, asked.platform, base)
    assert (official.id, official.base_image) == ("2.0.4-cpu-py3.7-avx", base)
    labels = {f"io.tfbuild.{name}": getattr(asked, name) for name in ("release", "python", "platform")}
    maker = Maker(base=base, work=tmp_path, reports=tmp_path, options=Options())
    maker.__dict__["engine"] = Names(**{pipeline.name(official): "sha256:1"})
    found = maker._baseline("x", {**labels, "io.tfbuild.target": "mkl", "io.tfbuild.wheel": "source"})
    assert found is not None
    # Before 2.5 nothing switches oneDNN on, so that nothing is to be taken back.
    assert (found.ref, found.env) == ("tfbuild:2.0.4-cpu-py3.7-avx", {"LD_PRELOAD": ""})


def test_an_official_wheel_is_compared_with_itself_without_its_tuning(tmp_path: Path) -> None:
    maker = Maker(base="auto", work=tmp_path, reports=tmp_path, options=Options())
    for release, env in (("2.4.4", {"LD_PRELOAD": ""}), ("2.5.0", {"LD_PRELOAD": "", "TF_ENABLE_ONEDNN_OPTS": ""})):
        found = maker._baseline("x", {"io.tfbuild.wheel": "official", "io.tfbuild.release": release})
        assert found == Baseline(ref="x", env=env)


def test_a_verification_without_throughput_has_no_baseline_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    official = plan.select(Request(wheel="official", release="2.20.0", platform="linux/amd64"), None)
    image = SimpleNamespace(labels=dockerfile.labels(official))
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(verifying, "verify", lambda *_, **how: asked.append(how))
    maker = Maker(base="auto", work=tmp_path, reports=tmp_path, options=Options())
    for timed in (True, False):
        one = replace(maker, throughput=timed)
        one.__dict__["engine"] = SimpleNamespace(image=lambda _: image)
        one._prove("x")
    compared, left_out = asked
    assert compared["baseline"].ref == "x"
    assert left_out["baseline"] is None
    assert left_out["untimed"] == "it was left out (--no-throughput)"
