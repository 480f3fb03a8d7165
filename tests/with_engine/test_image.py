"""The image itself, built from the official wheel by a real engine: what works in it and what it leaves out.

One build without cache, with a CA that no other build has seen, serves all tests.
"""

import io
import json
import os
import re
import shlex
import ssl
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest

from tests.cpu.machines import machine
from tests.servers import FileHandler, serving
from tests.with_engine import saved
from tests.with_engine.conftest import ROOT
from tfbuild import plan
from tfbuild.context import dockerfile
from tfbuild.engine import Engine
from tfbuild.engine.build import BuildSettings, find_program
from tfbuild.errors import BuildFailed
from tfbuild.pipeline import base_image, build_context
from tfbuild.pipeline.build_context import Base
from tfbuild.plan import Build, Request
from tfbuild.util.progress import Progress

pytestmark = pytest.mark.engine

SCRIPTS = Path(__file__).parents[1] / "data" / "image"
NETWORK = dockerfile.TEMPLATES / "network.sh"
TAG = "tfbuild-test-image"
SITE = "/opt/tensorflow/lib/python3.11/site-packages"
GIGABYTE = 1_000_000_000


@pytest.fixture(scope="module")
def build() -> Build:
    return plan.select(Request(wheel="official", release="2.21.0", python="3.11", platform="linux/amd64"), None)


@pytest.fixture(scope="module")
def work() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tfbuild-test-") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def certificate(work: Path) -> Path:
    """A self-signed certificate for localhost, with its key beside it (server.key)."""
    target = work / "server.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=tfbuild test CA",
         "-addext", "subjectAltName=DNS:localhost", "-keyout", work / "server.key", "-out", target],
        check=True, capture_output=True,
    )  # fmt: skip
    return target


@pytest.fixture(scope="module")
def ca(work: Path, certificate: Path) -> Path:
    """What a user gives with --ca-cert: this site's bundle, if it needs one, and a CA that no image can know."""
    site = os.environ.get("SSL_CERT_FILE", "")
    bundle = work / "ca.pem"
    bundle.write_text((Path(site).read_text() if site else "") + certificate.read_text())
    return bundle


@pytest.fixture(scope="module")
def ground(engine: Engine, build: Build, work: Path, ca: Path) -> Base:
    base = os.environ.get("TFBUILD_TEST_BASE", "auto")
    image, distribution = build.base_image, build.base_distribution
    return base_image.resolve(engine, image, distribution, base, progress=Progress(), log=work / "base.log", ca_cert=ca)


@pytest.fixture(scope="module")
def image(engine: Engine, build: Build, ground: Base, work: Path, ca: Path) -> Iterator[str]:
    with made(engine, build, ground, work, ca, no_cache=True) as name:
        yield name


@contextmanager
def made(engine: Engine, build: Build, on: Base, work: Path, ca: Path, *, no_cache: bool = False) -> Iterator[str]:
    """The image of `build` under a name of its own; gone afterwards."""
    folder = Path(tempfile.mkdtemp(dir=work))
    context = build_context.write_context(build, folder / "context")
    name = f"{TAG}:{folder.name.lower()}"
    settings = BuildSettings(
        log=folder / "log",
        progress=Progress(),
        tag=name,
        secrets={"ca": ca},
        no_cache=no_cache,
        build_args=build_context.build_args(on, context),
    )
    engine.build(context.folder, settings)
    try:
        yield name
    finally:
        # Its name only: another lane may have built the same, which is then the same image.
        engine.untag(name)


@contextmanager
def derived(
    engine: Engine,
    work: Path,
    text: str,
    *,
    ca: Path | None = None,
    network: str = "",
    files: Mapping[str, bytes] = MappingProxyType({}),
) -> Iterator[str]:
    """An image from a Dockerfile of a test's own, beside which stands network.sh; gone afterwards."""
    folder = Path(tempfile.mkdtemp(dir=work))
    for name, content in {"Dockerfile": text.encode(), "network.sh": NETWORK.read_bytes(), **files}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    name, log = f"{TAG}:{folder.name.lower()}", folder.with_suffix(".log")
    secrets = {"ca": ca} if ca else {}
    settings = BuildSettings(log=log, progress=Progress(), tag=name, secrets=secrets, network=network)
    engine.build(folder, settings)
    try:
        yield name
    finally:
        engine.remove(name)


MOUNTS = """--mount=type=tmpfs,target=/mnt --mount=type=secret,id=ca,target=/mnt/ca \
 --mount=type=bind,source=network.sh,target=/mnt/network.sh"""


# --- what works -------------------------------------------------------------------------------------------------------


USED = ("keras_fit", "jpeg", "tflite", "saved_model", "jit", "sysconfig_flags", "packages", "libraries")


@pytest.fixture(scope="module")
def outcomes(engine: Engine, image: str) -> dict[str, tuple[int, str, str]]:
    """Exit code, output and errors of each script of USED."""
    paths = {name: f"/tmp/{name}.py" for name in USED}
    files = {path: (SCRIPTS / f"{name}.py").read_bytes() for name, path in paths.items()}
    command = ["python", "/tmp/each.py", *paths.values()]
    done = engine.run(image, command, files=files | {"/tmp/each.py": (SCRIPTS / "each.py").read_bytes()}, timeout=900)
    assert done.exit_code == 0, done.stderr[-3000:]
    answers = json.loads(done.stdout)
    return {name: tuple(answers[path]) for name, path in paths.items()}


@pytest.mark.parametrize("script", USED)
def test_nothing_that_users_call_is_broken(outcomes: dict[str, tuple[int, str, str]], script: str) -> None:
    code, out, err = outcomes[script]
    assert (code, out.splitlines()[-1:]) == (0, ["passed"]), err[-3000:]


def test_import_compiles_nothing(engine: Engine, image: str) -> None:
    """Python -v names for each module whether its code came from a .pyc or from the source."""
    done = engine.run(image, ["python", "-B", "-v", "-c", "import tensorflow"])
    origins = re.findall(r"^# code object from '?([^'\n]+?)'?$", done.stderr, re.MULTILINE)
    assert sum(origin.endswith(".pyc") for origin in origins) > 1500
    assert [origin for origin in origins if not origin.endswith(".pyc")] == []


def test_pip_installs_into_a_derived_image(engine: Engine, image: str, work: Path) -> None:
    """As its users write it: no path, no virtual environment; the environment belongs to root."""
    wheel = io.BytesIO()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny.py", "print('tiny runs')")
        archive.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        archive.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("tiny-1.0.dist-info/RECORD", "")
    name = "tiny-1.0-py3-none-any.whl"
    text = (
        f"FROM {image}\nCOPY {name} /tmp/\nUSER root\nRUN pip install --no-index /tmp/{name} && pip check\nUSER 1000\n"
    )
    with derived(engine, work, text, files={name: wheel.getvalue()}) as tiny:
        assert engine.run(tiny, ["python", "-m", "tiny"]).stdout == "tiny runs\n"


@pytest.mark.nightly
def test_a_custom_op_compiles_against_an_image_with_headers(
    engine: Engine, build: Build, ground: Base, work: Path, ca: Path
) -> None:
    with made(engine, replace(build, with_headers=True), ground, work, ca) as name:
        text = (
            f"FROM {name}\nUSER root\nRUN {MOUNTS} . /mnt/network.sh && apt-get update && apt-get install --yes g++\n"
            "COPY zero_out.cc compile.py /op/\nRUN python /op/compile.py\n"
        )
        files = {file: (SCRIPTS / file).read_bytes() for file in ("zero_out.cc", "compile.py")}
        with derived(engine, work, text, ca=ca, files=files) as op:
            load = "import tensorflow as tf; zero_out = tf.load_op_library('/op/zero_out.so').zero_out"
            done = engine.run(op, ["python", "-c", f"{load}; print(zero_out([5, 4, 3]).numpy().tolist())"])
            assert done.stdout == "[5, 0, 0]\n", done.stderr[-2000:]


# --- locked down ------------------------------------------------------------------------------------------------------


def locked_down(image: str) -> list[str]:
    """The manual's `docker run`, of this image."""
    page = (ROOT / "docs" / "verification.md").read_text(encoding="utf-8").partition("\n## Locked down\n")[2]
    block = page.partition("```sh\n")[2].partition("```")[0]
    program, *words = shlex.split(block.replace("\\\n", " "))
    assert program == "docker"
    return [image if word.startswith("tfbuild:") else word for word in words]


def test_the_locked_down_image_passes_its_own_smoke_benchmark(engine: Engine, image: str) -> None:
    run, *words = locked_down(image)
    limits = {"--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--network", "none"}
    assert limits < set(words)
    assert words[-2:] == [image, "tfbuild-smoke"]
    command = [find_program(engine.environ)[0], run, *words, "--json"]
    done = subprocess.run(command, env=engine.environ, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    shown = json.loads(done.stdout)
    assert shown["verdict"] == "pass"
    assert {check["name"]: check["status"] for check in shown["checks"]} == {
        "import": "pass",
        "tcmalloc": "pass",
        "onednn": "pass",
        "numerics": "pass",
        "cuda": "skip",
    }


# --- the guard --------------------------------------------------------------------------------------------------------


def test_the_guard_takes_less_than_20_ms_of_a_processor(engine: Engine, image: str) -> None:
    """In pairs, against /bin/true without it, in one container; whoever else runs takes none of its own time."""
    timing = (SCRIPTS / "guard_time.py").read_bytes()
    done = engine.run(image, ["python", "/tmp/guard_time.py"], files={"/tmp/guard_time.py": timing})
    assert 0 < float(done.stdout) < 20, done


@pytest.mark.parametrize("preload", [dockerfile.TCMALLOC, ""])
def test_a_cpu_that_lacks_a_feature_is_refused_before_python_starts(engine: Engine, image: str, preload: str) -> None:
    old = machine("rocky9-zen5").core(0, without=("avx",)).encode()
    env = {"TFBUILD_CPUINFO": "/tmp/cpuinfo", "LD_PRELOAD": preload}
    done = engine.run(image, ["python", "-c", "print(1)"], env=env, files={"/tmp/cpuinfo": old})
    assert (done.exit_code, done.stdout) == (86, "")
    assert done.stderr == (
        "tfbuild: this CPU lacks avx, and this image (2.21.0-mkl-py3.11-f16c) was compiled for f16c; "
        "use the image tfbuild:2.21.0-mkl-py3.11-x86-64-v2\n"
    )


def test_tcmalloc_is_preloaded_and_says_nothing_of_large_tensors(engine: Engine, image: str) -> None:
    code = "import ctypes; bytearray(3 << 30); print(any('tcmalloc' in line for line in open('/proc/self/maps')))"
    done = engine.run(image, ["python", "-c", code])
    assert (done.stdout, done.stderr) == ("True\n", "")


# --- what is left out -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def layers(engine: Engine, image: str, work: Path) -> list[Path]:
    """Each layer's tar file, the base's first."""
    folder = work / "saved"
    archive = work / "image.tar"
    with archive.open("wb") as stream:
        for chunk in engine.client.images.get(image).save(chunk_size=1 << 22):
            stream.write(chunk)
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    archive.unlink()
    (manifest,) = json.loads((folder / "manifest.json").read_text())
    return [folder / name for name in manifest["Layers"]]


@pytest.fixture(scope="module")
def entries(engine: Engine, ground: Base, layers: list[Path]) -> list[tarfile.TarInfo]:
    """What lies in the layers on top of the base."""
    below = len(engine.client.api.inspect_image(ground.reference)["RootFS"]["Layers"])
    found = []
    for layer in layers[below:]:
        with tarfile.open(layer) as files:
            found += files.getmembers()
    return found


def test_no_mount_point_cache_list_or_log_is_left_and_no_file_is_there_twice(entries: list[tarfile.TarInfo]) -> None:
    left = r"(mnt|run|tmp|root|media|var/log|var/cache/apt|var/lib/apt/lists)(/.*)?|.*\.deb|.*/\.cache(/.*)?|dev(/.*)?"
    assert [entry.name for entry in entries if not entry.isdir() and re.fullmatch(left, entry.name)] == []
    files = [entry.name for entry in entries if entry.isfile() and entry.size > 0]
    assert len(files) == len(set(files))


def test_no_compiler_and_no_tool_of_the_build_is_left(engine: Engine, image: str) -> None:
    tools = "gcc g++ cc c++ clang ld as strip bazel git curl make"
    done = engine.run(image, ["sh", "-c", f"for tool in {tools}; do command -v $tool; done; true"])
    assert done.stdout == ""


def privileged(engine: Engine, image: str) -> set[str]:
    """The names of the setuid and setgid files in a container's file system."""
    container = engine.client.containers.create(image, ["true"])
    command = [find_program(engine.environ)[0], "export", container.id]
    try:
        with subprocess.Popen(command, env=engine.environ, stdout=subprocess.PIPE) as export:
            assert export.stdout is not None
            with tarfile.open(fileobj=export.stdout, mode="r|") as files:
                names = {Path(file.name).name for file in files if file.isreg() and file.mode & 0o6000}
            export.stdout.read()
        assert export.returncode == 0
    finally:
        container.remove()
    return names


def test_no_file_is_setuid_or_setgid(engine: Engine, image: str, ground: Base) -> None:
    assert {"su", "mount", "passwd"} <= privileged(engine, ground.reference)
    assert privileged(engine, image) == set()


# --- the CA -----------------------------------------------------------------------------------------------------------


def body(pem: str) -> list[bytes]:
    """The lines of base64 of each certificate's middle, by which it would be found in any file."""
    blocks = re.findall(r"-----BEGIN CERTIFICATE-----\n(.+?)\n-----END", pem, re.DOTALL)
    return [block.splitlines()[len(block.splitlines()) // 2].encode() for block in blocks]


def test_the_ca_is_in_no_layer_and_not_in_the_history(
    engine: Engine, image: str, layers: list[Path], certificate: Path, work: Path
) -> None:
    (needle,) = body(certificate.read_text())
    assert [layer for layer in layers if saved.found(saved.read(layer), needle)] == []
    history = json.dumps(engine.client.api.history(image)) + json.dumps(engine.client.api.inspect_image(image))
    assert needle.decode() not in history
    # The search finds what is there: certifi's own certificates are in the image.
    certifi = engine.read_file(image, f"{SITE}/certifi/cacert.pem", work / "cacert.pem", GIGABYTE)
    assert any(saved.found(saved.read(layer), body(certifi.read_text())[0]) for layer in layers)


class Site(FileHandler):
    """An index for pip and a repository for apt, with nothing in either but their front pages."""

    def do_GET(self) -> None:
        signed = Path(self.path).name in ("InRelease", "Release", "Release.gpg")
        self.send_response(404 if signed else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()


@pytest.fixture
def site(certificate: Path) -> Iterator[int]:
    """The port of a server on the loopback whose certificate only the test's CA knows."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    with serving(Site, context) as host:
        yield int(host.rpartition(":")[2])


REACH = {
    "pip": "pip download --retries 0 --no-deps --dest /tmp --index-url https://localhost:{port}/ nothing 2>&1"
    " | tee /tmp/said; ! grep -i 'certificate' /tmp/said",
    "python": """python -c 'import urllib.request as u; u.urlopen("https://localhost:{port}/")'""",
    "apt": "echo 'deb [trusted=yes] https://localhost:{port}/ ./' > /tmp/list; apt-get update"
    " -o Dir::Etc::sourcelist=/tmp/list -o Dir::Etc::sourceparts=- -o APT::Update::Error-Mode=any",
}


@pytest.mark.parametrize("client", REACH)
def test_the_ca_is_what_lets_a_build_through(
    engine: Engine, image: str, work: Path, certificate: Path, site: int, client: str
) -> None:
    """Every client reaches a server of that CA with the secret, and none without it."""
    step = f"RUN {MOUNTS} . /mnt/network.sh; {REACH[client].format(port=site)}"
    text = f"FROM {image}\nUSER root\n{step}\n"
    with pytest.raises(BuildFailed, match=r"(?i)certificate"), derived(engine, work, text, network="host"):
        pass
    with derived(engine, work, text, ca=certificate, network="host"):
        pass


# --- other bases ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def local_python(engine: Engine, ground: Base, work: Path, ca: Path) -> Iterator[str]:
    """A base as the official python:3.11-slim is: its Python is in /usr/local, without bytecode."""
    text = (SCRIPTS / "local-python.Dockerfile").read_text().format(base=ground.reference, mounts=MOUNTS)
    with derived(engine, work, text, ca=ca) as name:
        yield name


PYTHONS = "readlink -f $(command -v python3.11); ls /usr/bin/python* 2>&1 | grep -c 3; true"
OWN = ["/usr/local/bin/python3.11", "0"]


@pytest.mark.nightly  # it installs a Python, and removes it again
def test_a_base_that_has_its_own_python_keeps_it(
    engine: Engine, build: Build, local_python: str, work: Path, ca: Path
) -> None:
    """Shown by the stage on which all others stand."""
    texts = dockerfile.files(build)
    stage = texts["Dockerfile"].partition("\n# --- venv:")[0].replace("${BASE}", local_python)
    scripts = {f"scripts/{name}": (dockerfile.TEMPLATES / name).read_bytes() for name in ("network.sh", "times.sh")}
    with derived(engine, work, stage, ca=ca, files=scripts) as name:
        assert engine.run(name, ["sh", "-c", PYTHONS]).stdout.split() == OWN
        cached = "import json, os; print(os.path.exists(json.__cached__))"
        assert engine.run(name, ["python3.11", "-B", "-c", cached]).stdout == "True\n"
