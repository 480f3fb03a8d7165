"""Builds without a network: an engine in a network namespace that has nothing but loopback builds from a bundle.

One bundle serves both proofs: an official wheel's image, verified, and the test double, compiled by Bazel.
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
from typing import Any

import pytest

from tests.pipeline.test_mirror import small_disk
from tests.servers import FileHandler, serving
from tests.with_engine import mirror, objectcode, second
from tests.with_engine.conftest import ROOT, debian
from tests.with_engine.test_compile import RELEASE, TREE, features
from tfbuild.engine import Engine
from tfbuild.pipeline import bundle as bundles
from tfbuild.pipeline.base_image import REPOSITORY

# Minutes for a way that little else shares: what of it changes often has quick tests in
# tests/pipeline/test_mirror.py and tests/contract/test_mirror.py.
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
class Site:
    """A bundle, and the double's options for it."""

    folder: Path
    work: Path
    double: tuple[str, ...]


@pytest.fixture(scope="module")
def site(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Filled on a disk that is too small at first: the second run goes on where the first one stopped."""
    if shutil.which("npm") is None or engine.platform != "linux/amd64":
        pytest.skip("npm must be here, which has Bazel's binaries, and the engine's machine be x86-64")
    top = tmp_path_factory.mktemp("site")
    folder, work, base = top / "bundle", top / "work", f"tfbuild-test:offline-{uuid.uuid4().hex[:8]}"
    work.mkdir()
    double = (
        "--target", "mkl", "--release", RELEASE, "--bazel", mirror.BAZEL, "--cpu", "x86-64-v3", "--source", str(TREE),
        "--base", base, "--need-disk", "5",
    )  # fmt: skip
    bundle = ("bundle", "--output", str(folder), "--json")
    debian(engine, top / "base", base, "libeigen3-dev")
    try:
        with small_disk(folder, "200m"):
            _, output = ended(invoke(work, *bundle, *OFFICIAL), 21)
            assert f"no space is left for the bundle in {folder}" in output
            before = bundles.open_bundle(folder)
            assert before.files > 3
            assert not list(folder.rglob(f"{bundles.PART}*"))
            kept = {row.path: (folder / row.path).stat().st_ino for row in before.listing.files}
            subprocess.run(["mount", "-o", "remount,size=4g", str(folder)], check=True)
            out, _ = ended(invoke(work, *bundle, *OFFICIAL))
            assert json.loads(out)["builds"] == [ID]
            assert {path: (folder / path).stat().st_ino for path in kept} == kept
            mirror.fill(folder)
            ended(invoke(work, *bundle, *double, "--wheel-only"))
            yield Site(folder=folder, work=work, double=double)
    finally:
        # By name: another run's image can be the same.
        for name in (base, f"{REPOSITORY}:bundle-{engine.image(base).id.removeprefix('sha256:')[:12]}"):
            if engine.exists(name):
                engine.untag(name)


@dataclass(frozen=True, kw_only=True)
class Island:
    """An engine at `host` that no network reaches; `inside`: the command that goes there."""

    host: str
    inside: tuple[str, ...]


@contextmanager
def island(data: Path | None = None) -> Iterator[Island]:
    """A namespace with loopback alone, and a dockerd in it, with data of its own; both gone at the end."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "nsenter", "dockerd"))):
        pytest.skip("a network namespace with an engine in it needs root, iproute2 and dockerd")
    # Short, for the kernel gives a socket's path 107 bytes.
    name, folder = f"tfb-{uuid.uuid4().hex[:8]}", Path(tempfile.mkdtemp(prefix="tfb-"))
    inside = ("nsenter", f"--net=/run/netns/{name}")
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
        with dockerd(inside, folder, data or folder / "data") as host:
            yield Island(host=host, inside=inside)
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)
        second.remove(folder)


@contextmanager
def dockerd(inside: tuple[str, ...], folder: Path, data: Path) -> Iterator[str]:
    """It writes no rule of a firewall and makes no bridge, here or there."""
    host = f"unix://{folder}/docker.sock"
    command = [
        *inside, "dockerd", f"--host={host}", f"--data-root={data}", f"--exec-root={folder}/exec",
        f"--pidfile={folder}/pid", "--bridge=none", "--iptables=false", "--ip-masq=false",
    ]  # fmt: skip
    with second.running(command, folder / "log", (folder / "docker.sock").is_socket):
        yield host


def test_without_a_network_the_bundle_builds_and_verifies_an_image_and_compiles_a_wheel(
    site: Site, tmp_path: Path
) -> None:
    with island() as there:
        links = subprocess.run([*there.inside, "ip", "-json", "link"], check=True, capture_output=True, text=True)
        assert [link["ifname"] for link in json.loads(links.stdout)] == ["lo"]
        subprocess.run([*there.inside, sys.executable, "-c", NETWORK_UNREACHABLE], check=True)

        start = partial(invoke, tmp_path, inside=there.inside, host=there.host)
        _, output = ended(start("build", *OFFICIAL, "--base", "registry"), 26)
        assert "no registry provides" in output

        mirrored = ("--mirror", str(site.folder), "--json")
        image = start("build", *OFFICIAL, *mirrored)
        wheel = start("wheel", *site.double, *mirrored, "--output", "dist")
        try:
            report = json.loads(ended(image)[0])
            made = json.loads(ended(wheel)[0])
        finally:
            for process in (image, wheel):
                process.kill()

        assert (report["id"], report["verdict"]) == (ID, "pass")
        checks = {check["name"]: check["status"] for check in report["checks"]}
        assert {checks[name] for name in ("guard", "import", "isa", "onednn", "tcmalloc", "numerics")} == {"pass"}
        code_features = objectcode.read(tmp_path / made["wheel"], tmp_path)
        assert {"avx2", "fma"} <= code_features.used <= features("x86-64-v3")


# --- what a mirror can do wrong ---------------------------------------------------------------------------------------


def test_a_bundle_that_was_made_for_another_build_says_what_it_lacks(site: Site) -> None:
    """Nothing of this compiler's step is in a cache, for it fails each time."""
    command = ("wheel", *site.double, "--compiler", "clang-13", "--mirror", str(site.folder), "--no-cache")
    _, output = ended(invoke(site.work, *command), 18)
    assert "was not made for this build, which needs more" in output
    assert "clang-13_" in output
    assert "hint: invoke bundle with the same options" in output


class Static(FileHandler):
    """Any web server, with the bundle's folder; `broken`: what the end of a path has that stops half-way."""

    broken = ""
    protocol_version = "HTTP/1.1"

    def copyfile(self, source: Any, outputfile: Any) -> None:
        if self.broken and self.path.partition("?")[0].endswith(self.broken):
            outputfile.write(source.read(1000))
            self.close_connection = True
        else:
            super().copyfile(source, outputfile)


@pytest.mark.parametrize(("broken", "lacks"), [("_amd64.deb", ""), ("", "deb.debian.org")], ids=["half", "missing"])
def test_a_mirror_elsewhere_that_breaks_is_named(broken: str, lacks: str, site: Site, tmp_path: Path) -> None:
    """Whatever of the bundle the mirror has is there by links."""
    for part in site.folder.iterdir():
        if part.name != lacks:
            (tmp_path / part.name).symlink_to(part)
    handler = type("Broken", (Static,), {"broken": broken})
    with serving(partial(handler, directory=str(tmp_path))) as host:
        url = f"http://{host}"
        command = ("build", *OFFICIAL, "--mirror", url, "--network", "host", "--no-cache", "--no-verify")
        _, output = ended(invoke(site.work, *command), 18)
    assert f"the mirror {url} lacks something, or broke off" in output
    assert "Traceback" not in output


def test_a_bundle_that_was_changed_is_refused_before_anything_starts(site: Site) -> None:
    path = next(site.folder.glob("files.pythonhosted.org/**/wheel-*.whl"))
    before = path.read_bytes()
    path.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
    try:
        command = ("build", *OFFICIAL, "--mirror", str(site.folder))
        _, output = ended(invoke(site.work, *command, host="unix:///nowhere.sock"), 18)
    finally:
        path.write_bytes(before)
    assert f"{path} was changed" in output


def test_an_engine_whose_disk_is_full_is_said_so(site: Site, tmp_path: Path) -> None:
    with small_disk(tmp_path / "data", "260m"), island(tmp_path / "data") as there:
        command = ("build", *OFFICIAL, "--mirror", str(site.folder), "--need-disk", "0")
        _, output = ended(invoke(tmp_path, *command, inside=there.inside, host=there.host), 21)
    assert "the build ran out of disk space" in output
