"""A cache that builders share, on a real engine: real Bazel of the generated Dockerfile against a real BuildGrid."""

import re
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine import buildgrid
from tests.engine.buildgrid import Server
from tests.engine.conftest import ROOT
from tests.engine.test_compile import TREE, Site, command, fresh, site

__all__ = ["fresh", "site"]
CPU = "x86-64-v2"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    folder = tmp_path / "buildgrid"
    folder.mkdir()
    with buildgrid.serve(folder) as found:
        yield found


def other() -> str:
    """A flag that changes nothing but the step's key, so that BuildKit runs the compile again."""
    return f"--bazel-flag=--tool_tag={uuid.uuid4().hex}"


def build(site: Site, output: Path, *options: str, cpu: str = CPU, code: int = 0) -> str:
    """Runs `invoke wheel` as a user would, and gives what it said."""
    words = command(cpu, output, *site.options(), "--source", str(TREE), other(), *options)
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    return done.stderr


def taken(said: str) -> tuple[int, int]:
    """How many actions came from the cache, and how many there were, by tfbuild's last line about them."""
    (line,) = [line for line in said.splitlines() if line.startswith("bazel: ") and "process" in line]
    hits = re.search(r"(\d+) remote cache hit", line)
    total = re.match(r"bazel: (\d+) process", line)
    assert total is not None
    return int(hits[1]) if hits else 0, int(total[1])


def test_a_second_builder_takes_its_actions_from_the_cache_and_another_instruction_set_none(
    site: Site, server: Server, tmp_path: Path
) -> None:
    """Bazel 0.26.1 has no disk cache beside one over gRPC: what is not from there is compiled."""
    first = build(site, tmp_path, "--remote-cache", server.url)
    hits, actions = taken(first)
    assert hits == 0
    assert actions >= 10
    assert f"remote cache {server.url}" in first
    assert server.stored()
    hits, again = taken(build(site, tmp_path, "--remote-cache", server.url))
    assert again == actions
    assert hits >= 0.95 * actions
    hits, _ = taken(build(site, tmp_path, "--remote-cache", server.url, cpu="ivybridge"))
    assert hits == 0
