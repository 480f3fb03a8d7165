"""Compiles whose actions run on real workers: BuildGrid schedules them, buildbox runs them in tfbuild's own builder."""

import json
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.contract import newbazel
from tests.with_engine import cluster
from tests.with_engine.cluster import Cluster, docker
from tests.with_engine.conftest import ROOT, Site
from tests.with_engine.test_compile import RELEASE, TREE, command
from tests.with_engine.test_remote import CPU
from tfbuild.cli.options import certificates
from tfbuild.engine import Engine

pytestmark = pytest.mark.nightly
# Actions of the double that an executor can run.
ACTIONS = 10


@dataclass(frozen=True, kw_only=True)
class Client:
    """Who compiles the double with a cluster, with Debian's newer Bazel."""

    site: Site
    cluster: Cluster
    tree: Path
    dist: Path
    worker: str

    def words(self, *options: str) -> list[str]:
        given = (*self.site.options(), "--source", str(self.tree), *options)
        return command(CPU, self.dist, *given, version=newbazel.VERSION)

    def remote(self, *options: str) -> list[str]:
        return self.words(new_actions(), "--remote-executor", f"{self.cluster.server.url}", *options)

    def wheel(self, line: list[str], code: int = 0) -> "subprocess.CompletedProcess[str]":
        done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
        return done

    def start_workers(self, count: int) -> None:
        """Start workers in the image of the stage `toolchain`, as docs/remote-cache.md says."""
        context, mirror = self.dist.with_name("context"), self.dist.with_name("mirror")
        options = (
            "--source", str(self.tree), "--compiler", "clang-16", "--bazel", newbazel.VERSION, "--release", RELEASE,
            "--target", "mkl", "--cpu", CPU, "--base", self.site.base, "--output", str(context),
        )  # fmt: skip
        self.wheel([sys.executable, "-m", "invoke", "dockerfile", *options])
        mirror.write_text(f"{self.site.url}\n")
        words = ["--target=toolchain", "--network=host", f"--secret=id=mirror,src={mirror}"]
        words += [f"--secret=id=ca,src={ca}"] if (ca := certificates("")) else []
        docker("build", *words, f"--build-arg=BASE={self.site.base}", f"--tag={self.worker}", str(context))
        for _ in range(count):
            self.cluster.add_worker(cluster.worker(self.worker))


def new_actions() -> str:
    """A property that no action had: no cache has what this makes."""
    return f"--bazel-flag=--remote_default_exec_properties=run={uuid.uuid4().hex}"


@pytest.fixture
def client(site: Site, engine: Engine, tmp_path: Path) -> Iterator[Client]:
    tree = shutil.copytree(TREE, tmp_path / "tree")
    # As in TensorFlow's own trees, some of which name genrules too: the plan must have the last word.
    with (tree / ".bazelrc").open("a") as rc:
        rc.write("build --spawn_strategy=standalone\nbuild --strategy=Genrule=standalone\n")
    worker = f"tfbuild-test:worker-{uuid.uuid4().hex[:8]}"
    try:
        with cluster.start(engine, tmp_path / "cluster") as made:
            yield Client(site=site, cluster=made, tree=tree, dist=tmp_path / "dist", worker=worker)
    finally:
        if engine.exists(worker):
            engine.untag(worker)


def summary(said: str) -> str:
    """Return what Bazel says of the processes: 16 processes: 6 internal, 10 remote."""
    (line,) = [line for line in said.splitlines() if re.match(r"bazel: \d+ process", line)]
    return line


def test_two_workers_compile_the_wheel_that_one_machine_compiles(client: Client) -> None:
    client.start_workers(2)
    far = client.wheel(client.remote("--remote-fallback", "no"))
    assert re.search(rf": \d+ internal, {ACTIONS} remote\.$", summary(far.stderr))
    assert [worker for worker in client.cluster.workers if "buildbox-worker" not in docker("top", worker)] == []
    here = client.wheel(client.words(new_actions()))
    assert "remote" not in summary(here.stderr)
    assert json.loads(far.stdout)["sha256"] == json.loads(here.stdout)["sha256"]


def test_an_executor_whose_workers_run_in_another_image_is_known_before_the_compile(client: Client) -> None:
    client.cluster.add_worker(cluster.worker("tfbuild-base:bookworm"))
    said = client.wheel(client.remote(), code=23).stderr
    assert "error: the remote executor cannot be used: its worker runs in another image than this builder's" in said
    assert "hint: does it accept the property cache-silo-key" in said
    assert "Compiling tensorflow" not in said
