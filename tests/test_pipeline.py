"""What a build does with names on an engine that other runs use too."""

from pathlib import Path
from typing import Any

from tfbuild import dockerfile, pipeline, plan
from tfbuild.compiling import Options
from tfbuild.engine import Engine
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
