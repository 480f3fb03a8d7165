"""A cache that builders share, on a real engine: real Bazel of the generated Dockerfile against a real BuildGrid."""

import base64
import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.context.test_remote_options import options as remote_options
from tests.contract import newbazel
from tests.ports import free_port
from tests.with_engine import buildgrid, mirror, saved
from tests.with_engine.buildgrid import Pair, Server
from tests.with_engine.conftest import ROOT, Site
from tests.with_engine.test_compile import KERNELS, RELEASE, TREE, begun, command, maker, small
from tests.with_engine.test_compile import log as log_of
from tfbuild import plan
from tfbuild.engine import Engine
from tfbuild.errors import UsageError
from tfbuild.plan import Request

CPU = "x86-64-v2"


@dataclass(frozen=True, kw_only=True)
class Certificates:
    """An authority, and the pairs that it signed; `bundle`: it and all the authorities of this machine."""

    authority: Pair
    server: Pair
    client: Pair
    bundle: Path


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    folder = tmp_path / "buildgrid"
    folder.mkdir()
    with buildgrid.serve(folder) as server:
        yield server


def openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True, cwd=folder)


def authority(folder: Path, name: str) -> Pair:
    pair = Pair(certificate=folder / f"{name}.pem", key=folder / f"{name}.key")
    out = ("-keyout", pair.key.name, "-out", pair.certificate.name)
    openssl(folder, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}", *out)
    return pair


def signed(by: Pair, name: str) -> Pair:
    """A key and a certificate for 127.0.0.1, in the authority's folder."""
    folder = by.key.parent
    pair = Pair(certificate=folder / f"{name}.pem", key=folder / f"{name}.key")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    request = ("-keyout", pair.key.name, "-out", f"{name}.csr")
    openssl(folder, "req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}", *request)
    issuer = ("-CA", by.certificate.name, "-CAkey", by.key.name, "-CAcreateserial", "-extfile", "names")
    openssl(folder, "x509", "-req", "-in", f"{name}.csr", *issuer, "-out", pair.certificate.name)
    return pair


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    ours = authority(tmp_path, "tests")
    others = os.environ.get("SSL_CERT_FILE")
    bundle = tmp_path / "bundle.pem"
    bundle.write_text((Path(others).read_text() if others else "") + ours.certificate.read_text())
    return Certificates(authority=ours, server=signed(ours, "server"), client=signed(ours, "client"), bundle=bundle)


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


@pytest.mark.nightly
@pytest.mark.parametrize("also_another", [False, True])
def test_a_second_builder_takes_its_actions_from_the_cache_and_another_instruction_set_no_kernel(
    also_another: bool, site: Site, server: Server, tmp_path: Path
) -> None:
    shared = ("--remote-cache", server.url, "--source", str(small(tmp_path / "tree", uuid.uuid4().hex)))
    first = build(site, tmp_path, *shared)
    assert f"remote cache {server.url}" in first
    hits, actions = taken(first)
    assert hits == 0
    assert actions > KERNELS
    before = server.stored()
    assert before
    hits, again = taken(build(site, tmp_path, *shared))
    assert again == actions
    assert hits >= 0.95 * actions
    if not also_another:
        return
    # One that may only read has all to compile, and leaves nothing there.
    untrusted = build(site, tmp_path, *shared, "--remote-readonly", cpu="ivybridge")
    assert f"remote cache {server.url}, read only" in untrusted
    hits, again = taken(untrusted)
    assert hits <= again - KERNELS
    assert server.stored() == before


def test_a_cache_that_never_answers_is_told_before_the_compile(site: Site, tmp_path: Path) -> None:
    url = f"grpc://127.0.0.1:{free_port()}"
    output = build(site, tmp_path, "--remote-cache", url, code=23)
    assert f"tfbuild: the remote cache {url} does not answer: [Errno 111] Connection refused" in output
    assert f"error: the remote cache {url} cannot be used" in output
    assert "hint: is it up, and does it accept the credentials?" in output
    assert "Analyzed" not in output


@pytest.mark.nightly
@pytest.mark.parametrize("signal_", [signal.SIGKILL, signal.SIGSTOP])
def test_a_cache_that_dies_or_hangs_on_the_way_costs_its_hits_alone(
    signal_: signal.Signals, site: Site, server: Server, tmp_path: Path
) -> None:
    flags = (other().partition("=")[2], "--subcommands")
    log = log_of(TREE, cpu=CPU, bazel_flag=flags)
    line = words(
        site, tmp_path, *(f"--bazel-flag={flag}" for flag in flags), "--jobs", "1", "--remote-cache", server.url
    )
    with subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        while begun(log) < 2 and process.poll() is None:
            time.sleep(0.2)
        server.process.send_signal(signal_)
        output, _ = process.communicate()
    assert process.returncode == 0, output[-6000:]
    assert f"lost the remote cache {server.url}; compiled the rest locally" in output
    output = log.read_text(errors="replace")
    assert f"tfbuild: the remote cache {server.url} does not answer" in output
    assert "tfbuild: going on without it" in output
    # What was compiled before was not compiled again.
    assert begun(log) == KERNELS
    assert len(re.findall(r"SUBCOMMAND: # //tensorflow/double:kernel_\d+ \[action 'Compiling", output)) < 2 * KERNELS


# --- credentials ------------------------------------------------------------------------------------------------------


def test_no_credential_is_in_what_a_run_says_and_leaves(site: Site, server: Server, tmp_path: Path) -> None:
    """A wrong flag makes Bazel print all its options, the headers among them."""
    secret = f"secret-{uuid.uuid4().hex}"
    headers = tmp_path / "headers"
    headers.write_text(f"Authorization=Bearer {secret}\n")
    wrong = f"--no_such_flag_{uuid.uuid4().hex}"
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    options = ("--remote-cache", server.url, "--remote-header-file", str(headers), f"--bazel-flag={wrong}")
    line = words(site, tmp_path, *options, version=mirror.BAZEL)
    env = os.environ | {"TMPDIR": str(scratch)}
    done = subprocess.run(line, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == UsageError.exit_code, done.stderr[-6000:]
    folder = log_of(TREE, cpu=CPU, bazel=mirror.BAZEL, bazel_flag=(wrong,)).parent
    log = (folder / "build.log").read_text(errors="replace")
    assert f"Unrecognized option: {wrong}" in log
    assert "--remote_header=Authorization=***\n" in log
    for text in (done.stdout, done.stderr, *(path.read_text(errors="replace") for path in folder.rglob("*.*"))):
        assert secret not in text
    assert not list(scratch.iterdir())


# In place of the tree's own: Bazel 2.1.0, which knows headers, would download rules for C++ and for programs.
COPIED = """genrule(
    name = "copied",
    srcs = ["build_pip_package.sh"],
    outs = ["build_pip_package"],
    cmd = "cp $< $@",
    executable = 1,
)
"""
PLACES = {
    "$0.runfiles/org_tensorflow/tensorflow": "/src/tensorflow",
    "$files/double/libtensorflow_double.so": "/usr/lib/x86_64-linux-gnu/libdl.so.2",
}


def uncompiled(tree: Path) -> Path:
    """Copy the double to `tree`; its library is now the system's, and no cache has what Bazel makes."""
    shutil.copytree(TREE, tree)
    (tree / "tensorflow/tools/pip_package/BUILD").write_text(COPIED)
    script = tree / "tensorflow/tools/pip_package/build_pip_package.sh"
    text = f"{script.read_text()}# {uuid.uuid4().hex}\n"
    for old, new in PLACES.items():
        assert old in text
        text = text.replace(old, new)
    script.write_text(text)
    return tree


@pytest.mark.nightly
def test_no_credential_is_in_an_image_that_was_compiled_with_them(site: Site, engine: Engine, tmp_path: Path) -> None:
    """The cache asks for the header. The mirror takes any password; that of test_reproducible.py asks for it."""
    header, password = uuid.uuid4().hex, uuid.uuid4().hex
    tree = str(uncompiled(tmp_path / "tree"))
    request = Request(
        target="mkl",
        release=RELEASE,
        bazel=mirror.BAZEL,
        compiler="clang-16",
        cpu=CPU,
        base=site.base,
        source=tree,
        with_headers=True,
    )
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


def pieces(pem: Path) -> set[bytes]:
    """A line out of the middle of a PEM file's one block, and the bytes that it stands for."""
    lines = pem.read_bytes().splitlines()
    middle = lines[len(lines) // 2]
    return {middle, base64.b64decode(middle)}


def unpacked(folder: Path) -> Iterator[bytes]:
    for path in folder.rglob("*"):
        if path.is_file():
            yield gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


@pytest.mark.nightly
def test_no_client_certificate_is_in_an_image_that_was_compiled_with_it(
    site: Site, certificates: Certificates, engine: Engine, tmp_path: Path
) -> None:
    """Debian's newer Bazel, and a cache that refuses clients without a certificate of the tests' authority."""
    tree = small(tmp_path / "tree", uuid.uuid4().hex)
    folders = {name: tmp_path / name for name in ("buildgrid", "stranger", "scratch")}
    for folder in folders.values():
        folder.mkdir()
    client, stranger = certificates.client, authority(folders["stranger"], "client")
    line = [sys.executable, "-m", "invoke", "build", "--target", "mkl", "--release", RELEASE, "--cpu", CPU]
    line += ["--bazel", newbazel.VERSION, "--source", str(tree), *site.options()]
    line += ["--with-headers", "--no-verify", "--json", "--ca-cert", str(certificates.bundle), "--remote-cache"]
    env = os.environ | {"TMPDIR": str(folders["scratch"])}

    def attempt(url: str, pair: Pair | None, code: int) -> "subprocess.CompletedProcess[str]":
        given = (f"--remote-client-cert={pair.certificate}", f"--remote-client-key={pair.key}") if pair else ()
        done = subprocess.run([*line, url, *given], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
        return done

    accepted = certificates.authority.certificate
    with buildgrid.serve(folders["buildgrid"], tls=certificates.server, clients=accepted) as server:
        for wrong in (None, stranger):
            assert f"error: the remote cache {server.url} cannot be used" in attempt(server.url, wrong, 23).stderr
            assert not server.stored()
        done = attempt(server.url, client, 0)
        assert server.stored()
    image = json.loads(done.stdout)["image"]
    try:
        secret = set().union(*map(pieces, (client.certificate, client.key, accepted)))
        # The search finds what is there: a file's text and a label, and what the compile itself wrote.
        there = {b"A test double, not TensorFlow", b"io.tfbuild.plan"}
        assert saved.found(saved.everything(engine, image), *secret, *there) == there
        assert not list(folders["scratch"].iterdir())
        kept = ROOT / "build" / image.removeprefix("tfbuild:").removesuffix("-unverified")
        wrote = {b"Compiling tensorflow/double/kernel.cc", server.url.encode()}
        said = (done.stdout.encode(), done.stderr.encode())
        assert saved.found((*said, *unpacked(kept)), *secret, *wrote) == wrote
    finally:
        engine.remove(image)
