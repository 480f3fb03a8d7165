"""What Bazel itself downloads comes through the mirror: the compile stage's own script, run by a Bazel that can.

The tree is a small one with an archive from elsewhere, as TensorFlow's have hundreds. Its first address is gone.
"""

import hashlib
import io
import tarfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.contract.newbazel import OFFLINE
from tests.contract.test_bazel import SECONDS
from tests.servers import FileHandler, serving
from tfbuild.context import dockerfile
from tfbuild.engine import ContainerRun, Engine
from tfbuild.pipeline import bundle, mirror
from tfbuild.pipeline.mirror import Mirror, Upstream

pytestmark = pytest.mark.engine

SCRIPTS = ("network.sh", "compile.sh", "relay.py", "repack.py", "sitting.py", "system.sh")
LIBRARY = {
    "lib-1/WORKSPACE": "",
    "lib-1/BUILD": 'cc_library(name = "lib", srcs = ["lib.cc"], visibility = ["//visibility:public"])',
    "lib-1/lib.cc": "int lib() { return 1; }",
}
WORKSPACE = """
load("@bazel_tools//tools/build_defs/repo:http.bzl", "http_archive")
http_archive(
    name = "lib",
    sha256 = "{sha256}",
    strip_prefix = "lib-1",
    urls = ["https://gone.example.org/lib-1.tar.gz", "https://files.example.org/lib-1.tar.gz"],
)
"""
BUILD = 'cc_binary(name = "top", srcs = ["top.cc"], deps = ["@lib//:lib"])'
TOP = "int lib(); int main() { return lib() - 1; }"
COLLECT = "sh -c 'bazel-bin/top && python3 -m zipfile --create /wheel/top.whl bazel-bin/top'"


@pytest.fixture
def archive() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, text in LIBRARY.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))
    return buffer.getvalue()


@pytest.fixture
def internet(archive: bytes, tmp_path: Path) -> Iterator[str]:
    folder = tmp_path / "internet"
    (folder / "files.example.org").mkdir(parents=True)
    (folder / "files.example.org" / "lib-1.tar.gz").write_bytes(archive)
    with serving(partial(FileHandler, directory=str(folder))) as host:
        yield f"http://{host}"


def compiled(engine: Engine, builder: str, server: Mirror, sha256: str, *collect: str) -> ContainerRun:
    """Runs compile.sh where the builder reaches the mirror and nothing of what the archive's addresses name."""
    files = {f"mnt/{name}": (dockerfile.TEMPLATES / name).read_bytes() for name in SCRIPTS}
    rc = "".join(f"build {flag}\n" for flag in OFFLINE)
    texts = {
        "mnt/mirror": f"{server.url}\nbundle\n",
        "mnt/truststore.py": "",
        "mnt/bazelrc": rc,
        "opt/tfbuild/builder": "0",
        "opt/tfbuild/source": "",
        "src/configure.py": "",
        "src/WORKSPACE": WORKSPACE.format(sha256=sha256),
        "src/BUILD": BUILD,
        "src/top.cc": TOP,
    }
    files |= {name: text.encode() for name, text in texts.items()}
    command = " ".join(["sh /mnt/compile.sh name //:top", *collect])
    env = {"PYTHON_BIN_PATH": "/usr/bin/python3", "CC": "/usr/bin/gcc-12"}
    return engine.run(builder, ["sh", "-c", command], files=files, env=env, timeout=SECONDS, network="host")


def test_bazels_own_downloads_are_recorded_and_then_come_from_the_bundle(
    engine: Engine, builder: str, archive: bytes, internet: str, tmp_path: Path
) -> None:
    made, sha256 = bundle.fill(tmp_path / "bundle"), hashlib.sha256(archive).hexdigest()
    with mirror.serve(made, Upstream(base=internet)) as server:
        done = compiled(engine, builder, server, sha256)
        assert done.exit_code == 0, done.stderr
        assert list(server.failures) == ["gone.example.org/lib-1.tar.gz"]
    made.write()
    assert [(row.path, row.sha256) for row in made.listing.files] == [("files.example.org/lib-1.tar.gz", sha256)]

    with mirror.serve(bundle.open_bundle(tmp_path / "bundle")) as server:
        done = compiled(engine, builder, server, sha256, COLLECT)
        assert done.exit_code == 0, done.stderr
        assert "/files.example.org/lib-1.tar.gz" in server.requested


def test_what_the_mirror_lacks_is_named(engine: Engine, builder: str, tmp_path: Path) -> None:
    with mirror.serve(bundle.fill(tmp_path / "bundle")) as server:
        done = compiled(engine, builder, server, "0" * 64, COLLECT)
    assert done.exit_code != 0
    assert "files.example.org/lib-1.tar.gz" in done.stdout
    assert mirror.BROKEN.search(done.stdout)
