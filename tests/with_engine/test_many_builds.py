"""Builds at once, of ten identifiers and twice of one: each ends well and is right, and what they share stays whole."""

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tests.with_engine import mirror, objectcode
from tests.with_engine.conftest import ROOT, Site
from tests.with_engine.test_compile import RELEASE, small
from tfbuild import facts
from tfbuild.context.labels import UNVERIFIED
from tfbuild.engine import Engine
from tfbuild.plan import source

pytestmark = pytest.mark.nightly
CPUS = (
    "x86-64", "core2", "nehalem", "avx", "sandybridge", "ivybridge", "bulldozer", "piledriver", "avx2,fma", "x86-64-v3",
)  # fmt: skip
TWICE = "x86-64-v3"
LIBRARY = "/opt/tensorflow/lib/python3.11/site-packages/tensorflow/libtensorflow_double.so"
SECONDS = 3600


def command(cpu: str, tree: Path, site: Site, *options: str) -> list[str]:
    plan = ("--target", "mkl", "--release", RELEASE, "--python", "3.11", "--bazel", mirror.BAZEL, "--cpu", cpu)
    run = (*site.options(), "--source", str(tree), "--jobs", "1", "--no-verify", "--with-headers", *options)
    return [sys.executable, "-m", "invoke", "--search-root", str(ROOT), "build", *plan, *run]


def check(engine: Engine, plan: Path, folder: Path) -> str:
    """That the image of a plan has the machine code that the plan says; the digest of its library."""
    planned = json.loads(plan.read_text())
    ref, wanted = f"tfbuild:{planned['id']}{UNVERIFIED}", set(planned["features"])
    assert engine.image(ref).labels["io.tfbuild.id"] == planned["id"]
    library = engine.read_file(ref, LIBRARY, folder / f"{planned['id']}.so", 1 << 24)
    found = objectcode.read_library(library)
    assert found.macros == {facts.feature(name).macro for name in wanted}, planned["id"]
    assert found.used <= wanted, planned["id"]
    return source.digest(library)


def test_ten_builds_at_once_and_two_of_one_identifier_are_all_right(site: Site, engine: Engine, tmp_path: Path) -> None:
    tree, folder = small(tmp_path / "tree", uuid.uuid4().hex), tmp_path / "work"
    folder.mkdir()
    started = [
        subprocess.Popen(
            command(cpu, tree, site), cwd=folder, env=dict(os.environ), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        for cpu in (*CPUS, TWICE)
    ]  # fmt: skip
    try:
        said = [process.communicate(timeout=SECONDS)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    for process, output in zip(started, said, strict=True):
        assert process.returncode == 0, output[-6000:]
    waited = [output for output in said if "another run is building" in output]
    assert len(waited) == 1
    assert waited[0] in (said[CPUS.index(TWICE)], said[-1])
    plans = sorted(folder.glob("build/*/plan.json"))
    assert len(plans) == len(CPUS)
    digests = {plan.parent.name: check(engine, plan, tmp_path) for plan in plans}
    assert len(set(digests.values())) == len(CPUS)
    try:
        # Its compile runs once more, by what the caches have.
        again = subprocess.run(
            command(TWICE, tree, site, "--no-cache"), cwd=folder, capture_output=True, text=True, check=False
        )
        assert again.returncode == 0, again.stderr[-6000:]
        assert {plan.parent.name: check(engine, plan, tmp_path) for plan in plans} == digests
    finally:
        for name in digests:
            engine.untag(f"tfbuild:{name}{UNVERIFIED}")
