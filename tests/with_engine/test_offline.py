"""Builds without a network: an engine in a network namespace that has nothing but loopback builds from a bundle.

An official wheel's image is verified, and the test double is compiled by Bazel.
"""

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.with_engine import mirror, objectcode, second
from tests.with_engine.conftest import ROOT, Site
from tests.with_engine.test_compile import RELEASE, TREE, features
from tfbuild.engine import Engine
from tfbuild.pipeline.bundle import read_bundle

pytestmark = pytest.mark.nightly
OFFICIAL = ("--target", "mkl", "--wheel", "official", "--release", "2.21.0", "--python", "3.11")
ID = "2.21.0-mkl-py3.11-f16c"
NETWORK_UNREACHABLE = f"""
import socket, sys
try:
    socket.create_connection(("192.0.2.1", 443), 5)
except OSError as error:
    sys.exit(error.errno != {errno.ENETUNREACH})
sys.exit("something answered")
"""


def invoke(work: Path, *arguments: str, inside: "tuple[str, ...]" = (), host: str = "") -> "subprocess.Popen[str]":
    """Starts `invoke ...` as a user would, in a folder of its own; `inside`: the command that enters the namespace."""
    command = [*inside, sys.executable, "-m", "invoke", "--search-root", str(ROOT), *arguments]
    env = os.environ | ({"DOCKER_HOST": host} if host else {})
    return subprocess.Popen(command, cwd=work, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process: "subprocess.Popen[str]", code: int = 0) -> tuple[str, str]:
    out, err = process.communicate()
    assert process.returncode == code, f"exit code {process.returncode}\n{out[-2000:]}\n{err[-6000:]}"
    return out, err


@dataclass(frozen=True, kw_only=True)
class Bundles:
    """One of the official wheel's image and one of the double's, and the double's options without its mirror."""

    official: Path
    double: Path
    options: tuple[str, ...]


@pytest.fixture(scope="module")
def bundles(engine: Engine, site: Site, tmp_path_factory: pytest.TempPathFactory) -> Bundles:
    folder = tmp_path_factory.mktemp("bundles")
    options = (
        "--target", "mkl", "--release", RELEASE, "--bazel", mirror.BAZEL, "--cpu", "x86-64-v3", "--source", str(TREE),
        "--base", site.base, "--compiler", "clang-16", "--with-headers", "--need-disk", "5",
    )  # fmt: skip
    made = Bundles(official=folder / "official.tar", double=folder / "double.tar", options=options)
    answer = json.loads(ended(invoke(folder, "bundle", *OFFICIAL, "--output", str(made.official), "--json"))[0])
    assert answer["builds"] == [ID]
    assert answer["bytes"] == made.official.stat().st_size
    # The image of the double has the requirements of the official wheel.
    words = ("bundle", *options, *site.options()[4:8], "--output", str(made.double), "--json")
    assert len(json.loads(ended(invoke(folder, *words))[0])["builds"]) == 2
    assert not any(engine.exists(name) for name in read_bundle(made.double).listing.layers)
    return made


@contextmanager
def island() -> Iterator[tuple[str, tuple[str, ...]]]:
    """An engine that no network reaches, and the command that goes there.

    It is a namespace with loopback alone, and a dockerd in it, which writes no rule of a firewall and makes no bridge.
    """
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "nsenter", "dockerd"))):
        pytest.skip("a network namespace with an engine in it needs root, iproute2 and dockerd")
    # Short, for the kernel gives a socket's path 107 bytes.
    name, folder = f"tfb-{uuid.uuid4().hex[:8]}", Path(tempfile.mkdtemp(prefix="tfb-"))
    inside, host = ("nsenter", f"--net=/run/netns/{name}"), f"unix://{folder}/docker.sock"
    command = [
        *inside, "dockerd", f"--host={host}", f"--data-root={folder}/data", f"--exec-root={folder}/exec",
        f"--pidfile={folder}/pid", "--bridge=none", "--iptables=false", "--ip-masq=false",
    ]  # fmt: skip
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
        with second.running(command, folder / "log", (folder / "docker.sock").is_socket):
            yield host, inside
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)
        second.remove(folder)


def test_without_a_network_the_bundles_build_and_verify_an_image_and_compile_another(
    bundles: Bundles, tmp_path: Path
) -> None:
    with island() as (host, inside):
        links = subprocess.run([*inside, "ip", "-json", "link"], check=True, capture_output=True, text=True)
        assert [link["ifname"] for link in json.loads(links.stdout)] == ["lo"]
        subprocess.run([*inside, sys.executable, "-c", NETWORK_UNREACHABLE], check=True)

        start = partial(invoke, tmp_path, inside=inside, host=host)
        _, output = ended(start("build", *OFFICIAL, "--base", "registry"), 26)
        assert "no registry provides" in output
        report = json.loads(ended(start("build", *OFFICIAL, "--mirror", str(bundles.official), "--json"))[0])
        assert (report["id"], report["verdict"]) == (ID, "pass")
        checks = {check["name"]: check["status"] for check in report["checks"]}
        assert {checks[name] for name in ("guard", "import", "isa", "onednn", "tcmalloc", "numerics")} == {"pass"}

        mirrored = (*bundles.options, "--mirror", str(bundles.double), "--json")
        made = json.loads(ended(start("wheel", *mirrored, "--output", "dist"))[0])
        code_features = objectcode.read(tmp_path / made["wheel"], tmp_path)
        assert {"avx2", "fma"} <= code_features.used <= features("x86-64-v3")
        image = json.loads(ended(start("build", *mirrored, "--no-verify"))[0])["image"]
        assert image.endswith("-unverified")
