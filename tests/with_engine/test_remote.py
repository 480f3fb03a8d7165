"""A cache that builders share, on a real engine: real Bazel of the generated Dockerfile against a real BuildGrid."""

import os
import re
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests import servers
from tests.plan.test_remote_options import options as remote_options
from tests.with_engine import buildgrid, mirror, saved
from tests.with_engine.buildgrid import Server
from tests.with_engine.conftest import ROOT, Site
from tests.with_engine.test_compile import KERNELS, RELEASE, TREE, begun, command, maker, small
from tests.with_engine.test_compile import log as log_of
from tfbuild import plan
from tfbuild.engine import Engine
from tfbuild.errors import UsageError
from tfbuild.plan import Request

CPU = "x86-64-v2"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    folder = tmp_path / "buildgrid"
    folder.mkdir()
    with buildgrid.serve(folder) as server:
        yield server


def other() -> str:
    """A flag that changes nothing but the step's key, so that BuildKit runs the compile again."""
    return f"--bazel-flag=--tool_tag={uuid.uuid4().hex}"


def words(site: Site, output: Path, *options: str, cpu: str = CPU, version: str = mirror.BAZEL) -> list[str]:
    tree = () if "--source" in options else ("--source", str(TREE))
    return command(cpu, output, *site.options(), *tree, *options, version=version)


def build(site: Site, output: Path, *options: str, cpu: str = CPU, code: int = 0, version: str = mirror.BAZEL) -> str:
    """Runs `invoke wheel` as a user would, and gives what it said."""
    line = words(site, output, other(), *options, cpu=cpu, version=version)
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    return done.stdout + done.stderr


def taken(said: str) -> tuple[int, int]:
    """How many actions came from the cache, and how many there were, by tfbuild's last line about them."""
    (line,) = [line for line in said.splitlines() if line.startswith("bazel: ") and "process" in line]
    hits = re.search(r"(\d+) remote cache hit", line)
    total = re.match(r"bazel: (\d+) process", line)
    assert total is not None
    return int(hits[1]) if hits else 0, int(total[1])


@pytest.mark.nightly  # other compiles at once may keep their own cache mount, which the second builder then finds
def test_a_second_builder_takes_its_actions_from_the_cache(
    site: Site, server: Server, derived: Callable[..., str], tmp_path: Path
) -> None:
    began = int(time.time())
    shared = ("--remote-cache", server.url, "--source", str(small(tmp_path / "tree", uuid.uuid4().hex)))
    first = build(site, tmp_path, *shared)
    assert f"remote cache {server.url}" in first
    hits, actions = taken(first)
    assert hits == 0
    assert actions > KERNELS
    assert server.stored()
    # Another builder's disk cache has none of it, and Bazel asks that one first.
    disk = f"--mount=type=cache,id=tfbuild-bazel-{RELEASE},target=/cache"
    derived(site.base, f"RUN {disk} find /cache/*/disk -type f -newermt @{began} -delete")
    hits, again = taken(build(site, tmp_path, *shared))
    # The others are internal to Bazel.
    assert (again, hits > KERNELS) == (actions, True)


def test_a_cache_that_never_answers_is_told_before_the_compile(site: Site, tmp_path: Path) -> None:
    url = "grpc://127.0.0.1:1"
    output = build(site, tmp_path, "--remote-cache", url, code=23)
    assert f"tfbuild: the remote cache {url} does not answer: [Errno 111] Connection refused" in output
    assert f"error: the remote cache {url} cannot be used" in output
    assert "hint: is it up, and does it accept the credentials?" in output
    assert "Analyzed" not in output


@pytest.mark.nightly
def test_a_cache_that_dies_on_the_way_costs_its_hits_alone(site: Site, server: Server, tmp_path: Path) -> None:
    flags = (other().partition("=")[2], "--subcommands")
    log = log_of(TREE, cpu=CPU, bazel_flag=flags)
    line = words(
        site, tmp_path, *(f"--bazel-flag={flag}" for flag in flags), "--jobs", "1", "--remote-cache", server.url
    )
    with subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        while begun(log) < 2 and process.poll() is None:
            time.sleep(0.2)
        server.process.kill()
        output, _ = process.communicate()
    assert process.returncode == 0, output[-6000:]
    assert f"lost the remote cache {server.url}; compiled the rest locally" in output
    output = log.read_text(errors="replace")
    assert f"tfbuild: the remote cache {server.url} does not answer" in output
    assert "tfbuild: going on without it" in output
    # What was compiled before was not compiled again.
    assert begun(log) == KERNELS
    assert len(re.findall(r"SUBCOMMAND: # //tensorflow/double:kernel_\d+ \[action 'Compiling", output)) < 2 * KERNELS


@pytest.mark.nightly
def test_a_cache_that_asks_for_a_client_certificate_is_used_with_it_alone(site: Site, tmp_path: Path) -> None:
    servers.self_signed(tmp_path)
    tree = small(tmp_path / "tree", uuid.uuid4().hex)
    own = ("--remote-client-cert", str(tmp_path / "x.pem"), "--remote-client-key", str(tmp_path / "key.pem"))
    with buildgrid.serve(tmp_path, tls=True) as server:
        shared = ("--remote-cache", server.url, "--ca-cert", str(tmp_path / "x.pem"), "--source", str(tree))
        refused = build(site, tmp_path, *shared, code=23)
        assert f"error: the remote cache {server.url} cannot be used" in refused
        assert not server.stored()
        build(site, tmp_path, *shared, *own)
        assert server.stored()


# --- credentials ------------------------------------------------------------------------------------------------------


def test_no_credential_is_in_what_a_run_says_and_leaves(site: Site, tmp_path: Path) -> None:
    """A wrong flag makes Bazel print all its options, the headers among them, before it asks the cache for anything."""
    secret = f"secret-{uuid.uuid4().hex}"
    headers = tmp_path / "headers"
    headers.write_text(f"Authorization=Bearer {secret}\n")
    wrong = f"--no_such_flag_{uuid.uuid4().hex}"
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    env = os.environ | {"TMPDIR": str(scratch)}
    with servers.serving(servers.Handler) as host:
        options = ("--remote-cache", f"grpc://{host}", "--remote-header-file", str(headers), f"--bazel-flag={wrong}")
        line = words(site, tmp_path, *options, version=mirror.BAZEL)
        done = subprocess.run(line, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == UsageError.exit_code, done.stderr[-6000:]
    folder = log_of(TREE, cpu=CPU, bazel=mirror.BAZEL, bazel_flag=(wrong,)).parent
    log = (folder / "build.log").read_text(errors="replace")
    assert f"Unrecognized option: {wrong}" in log
    assert "--remote_header=Authorization=***\n" in log
    for text in (done.stdout, done.stderr, *(path.read_text(errors="replace") for path in folder.rglob("*.*"))):
        assert secret not in text
    assert not list(scratch.iterdir())


@pytest.mark.nightly
def test_no_credential_is_in_an_image_that_was_compiled_with_them(site: Site, engine: Engine, tmp_path: Path) -> None:
    """The cache asks for the header. The mirror takes any password; that of test_reproducible.py asks for it."""
    header, password = uuid.uuid4().hex, uuid.uuid4().hex
    request = Request(
        target="mkl", release=RELEASE, bazel=mirror.BAZEL, compiler="clang-16", cpu=CPU, base=site.base,
        source=str(small(tmp_path / "tree", uuid.uuid4().hex)), with_headers=True,
    )  # fmt: skip
    (tmp_path / "headers").write_text(f"x-request-actor={header}\n")
    (tmp_path / "buildgrid").mkdir()
    with buildgrid.serve(tmp_path / "buildgrid", actor=header, instance="main") as server:
        remote = remote_options(cache=server.url, instance="main", header_file=str(tmp_path / "headers"))
        making = maker(site, tmp_path)
        run = replace(making.run, remote=remote, mirror=site.url.replace("://", f"://us:{password}@"))
        made = replace(making, run=run).build(plan.select(request, None))
        assert server.stored()
    try:
        # The search finds what is there: a file's text, and a label.
        there = {b"A test double, not TensorFlow", b"io.tfbuild.plan"}
        found = saved.found(saved.everything(engine, made.image), header.encode(), password.encode(), *there)
        assert found == there
    finally:
        engine.remove(made.image)
