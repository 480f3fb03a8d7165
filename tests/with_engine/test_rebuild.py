"""A published image whose base was updated is rebuilt by CI without compiling, and again nothing is to be done.

Real engine, real registry for base and images, the script of the workflows.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.checkout import ROOT
from tests.facts import newest
from tests.with_engine.registry import Server
from tests.with_engine.test_registry import server
from tfbuild.cli.options import certificates
from tfbuild.context.labels import configured_labels, read_labels
from tfbuild.engine import Engine
from tfbuild.oci.client import Registry
from tfbuild.pipeline import base_image as bases
from tfbuild.util.progress import Progress

__all__ = ["server"]  # a fixture
# Two pushes of a gigabyte.
pytestmark = [pytest.mark.engine, pytest.mark.nightly]
ID = newest.official("cpu")
INVOKE = f"{shlex.quote(sys.executable)} -m invoke --search-root {shlex.quote(str(ROOT))}"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of CI in a folder of its own, on a base that a registry has under a tag."""

    base: str
    registry: Registry
    folder: Path

    def run(self, script: str, **env: str) -> "subprocess.CompletedProcess[str]":
        settings = {
            "INVOKE": INVOKE,
            "TFBUILD_REGISTRY": str(self.registry.repository),
            "TFBUILD_BUILD_OPTIONS": f"--base {self.base} --no-throughput --need-disk 5",
        }
        return subprocess.run(
            [ROOT / "ci" / script, ID, "--target cpu --wheel official"],
            cwd=self.folder, env={**os.environ, **settings, **env}, capture_output=True, text=True,
            check=False,
        )  # fmt: skip

    def state(self) -> str:
        done = self.run("state.sh")
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def labels(self) -> Mapping[str, str]:
        manifest = self.registry.manifest(ID)
        assert manifest is not None
        return configured_labels(self.registry.config(manifest))


@pytest.fixture
def row(server: Server, engine: Engine, tmp_path: Path) -> Iterator[Row]:
    made = bases.bootstrap(engine, "bookworm", progress=Progress(), log=tmp_path / "log", ca_cert=certificates(""))
    base = f"127.0.0.1:{server.port}/our/base:12"
    engine.tag(made.reference, base)
    engine.push(base, Progress())
    names = [f"tfbuild:{ID}{suffix}" for suffix in ("", "-failed", "-unverified")]
    mine = [name for name in names if not engine.exists(name)]
    yield Row(base=base, registry=server.place("us/rebuilt"), folder=tmp_path)
    for name in (*mine, base):
        if engine.exists(name):
            engine.untag(name)


def test_an_updated_base_asks_for_a_rebuild_that_compiles_nothing(
    row: Row, engine: Engine, derived: Callable[..., str]
) -> None:
    assert row.state() == "build"
    first = row.run("image.sh")
    assert first.returncode == 0, first.stderr[-6000:]
    # The options of all rows are part of the context: a base of one's own does not rebuild every row each time.
    assert row.state().startswith(f"published {row.registry.repository}@sha256:")
    before, digest = row.labels(), row.registry.digest(ID)

    update = derived(row.base, "RUN echo updated > /etc/updated")
    engine.tag(update, row.base)
    engine.push(row.base, Progress())
    assert row.state() == "replace --no-cache"

    # As a row from source is rebuilt: nothing is installed.
    reference = f"{row.registry.repository}@{digest}"
    options = f"--base {row.base} --no-throughput --need-disk 5 --no-cache --reuse {reference}"
    second = row.run("image.sh", TFBUILD_BUILD_OPTIONS=options)
    assert second.returncode == 0, second.stderr[-6000:]
    assert "pip install" not in (row.folder / "build" / ID / "build.log").read_text(encoding="utf-8")
    assert row.state().startswith(f"published {row.registry.repository}@sha256:")
    now = row.labels()
    assert read_labels(now).base_digest != read_labels(before).base_digest
    assert now["io.tfbuild.reused"] == f"{row.registry.repository}:{ID}@{digest}"
