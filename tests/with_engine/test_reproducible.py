"""Two builds of one context make the same layers, and root owns the files.

A small wheel takes TensorFlow's place: the steps are the same, and what they write is what differed. The second build
downloads all from a mirror that asks for a password, of which the image has no trace.
"""

import base64
import io
import json
import tarfile
import uuid
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.with_engine import mirror, saved
from tests.with_engine.mirror import Mirror
from tfbuild import plan
from tfbuild.cli.options import certificates
from tfbuild.engine import Engine
from tfbuild.engine.build import BuildSettings
from tfbuild.pipeline import base_image, build_context
from tfbuild.plan import Build, Request, source
from tfbuild.plan.build import Wheel
from tfbuild.util.progress import Progress

pytestmark = pytest.mark.engine
NAME = "tensorflow-0.1-py3-none-any.whl"
EPOCH = 315532800
WHEEL_FILE = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
# pip asks an index for this one.
METADATA = "Metadata-Version: 2.1\nName: tensorflow\nVersion: 0.1\nRequires-Dist: six\n"
MODULE = "NAMES = {'b', 'a'}\ndef f(x):\n    return x in {'one', 'two', 'three'}\n"
# Whose times differ: the engine puts resolv.conf and hosts there while a step runs. So do those of the marks that stand
# for a file of the base which a step removed.
LISTED = {"etc"}
REMOVED = ".wh."
# Mode, owner, group, kind, link, content and time.
Entry = tuple[int, int, int, bytes, str, bytes, float]


def small(folder: Path, library: str = "libdl.so.2") -> Build:
    """An image of the official wheel, with a wheel that has what slim.sh looks for; its code is that of `library`."""
    machine_code = next(Path("/usr/lib").rglob(library)).read_bytes()
    wheel = folder / NAME
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tensorflow/__init__.py", MODULE)
        archive.writestr("tensorflow/broken.py", "print 'of another Python'\n")
        archive.writestr("tensorflow/include/cpu_info.h", "")
        archive.writestr("tensorflow/libtensorflow_framework.so.2", machine_code)
        archive.writestr("tensorflow-0.1.dist-info/METADATA", METADATA)
        archive.writestr("tensorflow-0.1.dist-info/WHEEL", WHEEL_FILE)
        archive.writestr("tensorflow-0.1.dist-info/RECORD", "")
    build = plan.select(Request(wheel="official", release="2.21.0", python="3.11", platform="linux/amd64"), None)
    sha256 = source.digest(wheel)
    return replace(build, wheel=Wheel(kind="file", requirement=NAME, constraints=(), path=wheel, sha256=sha256))


@pytest.fixture(scope="module")
def guard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Mirror, str]]:
    """A mirror that asks for a password, and its login."""
    login = f"us:{uuid.uuid4().hex}"
    with mirror.serve(tmp_path_factory.mktemp("mirror"), base64.b64encode(login.encode()).decode()) as server:
        yield server, login


@pytest.fixture(scope="module")
def make(
    engine: Engine, guard: tuple[Mirror, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., None]]:
    """Builds an image of a build under a name, on request from the mirror; the images are removed at the end."""
    folder = tmp_path_factory.mktemp("pair")
    ca = certificates("")
    base = base_image.bootstrap(engine, "bookworm", progress=Progress(), log=folder / "base.log", ca_cert=ca)
    secrets = {"ca": ca} if ca else {}
    server, login = guard
    (folder / "mirror").write_text(f"http://{login}@127.0.0.1:{server.server_port}\n")
    made = set()

    def make(build: Build, name: str, *, no_cache: bool = False, mirrored: bool = False) -> None:
        context = build_context.write_context(build, folder / name)
        settings = BuildSettings(
            log=folder / "log",
            progress=Progress(),
            tag=name,
            secrets=secrets | ({"mirror": folder / "mirror"} if mirrored else {}),
            network="host" if mirrored else "",
            no_cache=no_cache,
            build_args=build_context.build_args(base, context),
        )
        engine.build(context.folder, settings)
        made.add(name)

    yield make
    for name in made:
        engine.remove(name)


@pytest.fixture(scope="module")
def pair(make: Callable[..., None], engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Two images of one context: the second from the mirror without a cache, the first by cached steps if it can be."""
    build = small(tmp_path_factory.mktemp("small"))
    own = uuid.uuid4().hex[:8]
    names = (f"tfbuild-test-pair:one-{own}", f"tfbuild-test-pair:two-{own}")
    make(build, names[0])
    make(build, names[1], no_cache=True, mirrored=True)
    if packages(engine, names[0]) != packages(engine, names[1]):
        # The cache is older than Debian's last update.
        make(build, names[0], no_cache=True)
    return names


def packages(engine: Engine, name: str) -> str:
    """What is installed: Debian's packages, and Python's."""
    return engine.run(name, ["sh", "-c", "dpkg-query --show; pip list"]).stdout


def layers(engine: Engine, name: str) -> list[dict[str, Entry]]:
    """The layers' entries, in order: for each path all but its time, and then that."""
    image = io.BytesIO(b"".join(engine.client.images.get(name).save()))
    found = []
    with tarfile.open(fileobj=image) as archive:

        def read(path: str) -> bytes:
            file = archive.extractfile(path)
            assert file is not None
            return file.read()

        (manifest,) = json.loads(read("manifest.json"))
        for path in manifest["Layers"]:
            with tarfile.open(fileobj=io.BytesIO(read(path))) as layer:
                found.append({member.name: (*described(layer, member), member.mtime) for member in layer})
    return found


def described(layer: tarfile.TarFile, member: tarfile.TarInfo) -> tuple[int, int, int, bytes, str, bytes]:
    file = layer.extractfile(member) if member.isreg() else None
    # A mark has the link of another one that is the same to the kernel.
    link = "" if REMOVED in member.name else member.linkname
    kind = b"" if REMOVED in member.name else member.type
    return member.mode, member.uid, member.gid, kind, link, file.read() if file else b""


def test_two_builds_of_one_context_have_the_same_layers_but_for_what_is_listed(
    engine: Engine, pair: tuple[str, str]
) -> None:
    ones, twos = (layers(engine, name) for name in pair)
    assert len(ones) == len(twos) > 4
    for one, two in zip(ones, twos, strict=True):
        assert list(one) == list(two)
        differing = {path for path in one if one[path] != two[path]}
        assert {path for path in differing if path not in LISTED and REMOVED not in path} == set()
        assert {path for path in differing if one[path][:-1] != two[path][:-1]} == set()


def test_all_that_the_build_added_has_one_time_and_the_environment_belongs_to_root(
    engine: Engine, pair: tuple[str, str]
) -> None:
    found = {path: entry for layer in layers(engine, pair[0]) for path, entry in layer.items()}
    environment = {path: entry for path, entry in found.items() if path.startswith(("opt/", "usr/local/bin/tfbuild"))}
    assert {entry[6] for entry in environment.values()} == {EPOCH}
    assert {entry[1] for entry in environment.values()} == {0}
    assert "opt/tfbuild/smoke/__main__.py" in environment
    assert sum(path.endswith(".pyc") for path in environment) > 100
    refused = engine.run(pair[0], ["sh", "-c", "touch /opt/tensorflow/x || { id -un; id -u; }"])
    assert refused.stdout == "tensorflow\n1000\n"
    assert json.loads(engine.run(pair[0], ["cat", "/opt/tfbuild/plan.json"]).stdout)["release"] == "2.21.0"


def test_the_password_of_a_mirror_is_in_no_layer_and_not_in_the_history(
    engine: Engine, pair: tuple[str, str], guard: tuple[Mirror, str]
) -> None:
    server, login = guard
    assert "/pypi.org/simple/six/" in server.requested
    assert any(path.endswith(".deb") for path in server.requested)
    # The search finds what is there: a file's text, and a label.
    there = (MODULE.encode(), b"io.tfbuild.plan")
    secret = {login.partition(":")[2].encode(), server.login.encode()}
    assert saved.found(saved.everything(engine, pair[1]), *secret, *there) == set(there)


@pytest.mark.nightly
def test_images_of_two_instruction_sets_share_all_layers_but_those_of_the_compiled_code(
    make: Callable[..., None], engine: Engine, tmp_path: Path
) -> None:
    names = []
    for cpu, library in (("x86-64-v2", "libdl.so.2"), ("x86-64-v3", "libm.so.6")):
        request = Request(wheel="official", release="2.21.0", python="3.11", platform="linux/amd64")
        other = plan.select(replace(request, wheel="", cpu=cpu), None)
        (tmp_path / cpu).mkdir()
        build = small(tmp_path / cpu, library)
        names.append(f"tfbuild-test-shared:{cpu}-{uuid.uuid4().hex[:8]}")
        make(replace(build, instruction_set=other.instruction_set, variant=(cpu,)), names[-1])
    one, two = (list(engine.image(name).layers) for name in names)
    same = [ours == theirs for ours, theirs in zip(one, two, strict=True)]
    # The base, its system and Python's packages; then TensorFlow's libraries, and the plan with the entry point.
    assert same[:3] == [True] * 3
    assert same[3:5] == [False] * 2
