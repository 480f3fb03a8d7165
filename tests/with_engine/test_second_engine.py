"""A second engine, reached by ssh, by TLS in a context, and by buildx builders: what is asked of it happens there.

Its containers see another CPU than this machine's (tests/with_engine/second.py), so that whose CPU was read shows.
"""

import hashlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import debian
from tests.cpu.machines import machine
from tests.with_engine import registry as registries
from tests.with_engine import second as seconds
from tests.with_engine.conftest import ROOT
from tests.with_engine.second import MACHINE, Second, processes
from tests.with_engine.test_choice import carry
from tests.with_engine.test_registry import label
from tfbuild import cpu, plan
from tfbuild.cli.options import certificates
from tfbuild.engine import Engine, connection, transfer
from tfbuild.engine.build import BuildSettings, find_program
from tfbuild.errors import EngineMissing
from tfbuild.pipeline import base_image
from tfbuild.plan import Request
from tfbuild.publish import pushing
from tfbuild.util.progress import Progress
from tfbuild.util.ssh import Destination

pytestmark = [pytest.mark.engine, pytest.mark.sshd, pytest.mark.nightly]
Invoke = Callable[..., "subprocess.CompletedProcess[str]"]
OFFICIAL = ("--target", "mkl", "--wheel", "official", "--release", "2.21.0", "--python", "3.11", "--base", "bootstrap")
SSH = "ssh://second"


@pytest.fixture(scope="module")
def second(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Second]:
    """With the base image that the first engine has: making it anew would prove nothing more."""
    bridge = Path("/sys/class/net/docker0/ifindex")
    before = bridge.read_text() if bridge.exists() else ""
    log = tmp_path_factory.mktemp("base") / "log"
    name = base_image.bootstrap(engine, "bookworm", progress=Progress(), log=log, ca_cert=certificates("")).reference
    with seconds.engine() as second:
        there = Engine.connect(second.host)
        there.client.images.load(b"".join(engine.client.images.get(name).save(named=True)))
        assert there.exists(name)
        yield second
    assert (bridge.read_text() if bridge.exists() else "") == before
    assert engine.run(name, ["echo", "whole"]).stdout == "whole\n"


@pytest.fixture(scope="module")
def there(second: Second) -> Engine:
    return Engine.connect(second.host)


@pytest.fixture(scope="module")
def path(second: Second) -> Iterator[str]:
    """PATH, with an ssh that has a configuration of its own."""
    with seconds.ssh_server(second) as folder:
        yield f"{folder}:{os.environ['PATH']}"
    assert processes(f"{second.folder}/ssh/ssh_config") == []


@pytest.fixture(scope="module")
def configuration(second: Second, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Docker's folder, with buildx in it, and contexts for the second engine: by its socket, by TLS, by a wrong CA."""
    folder = tmp_path_factory.mktemp("docker")
    docker, tls = find_program(os.environ).path, f"{second.folder}/tls"
    files = {"cert": f"{tls}/cert.pem", "key": f"{tls}/key.pem"}
    seconds.context(folder, "second", docker, host=second.host)
    host = f"tcp://127.0.0.1:{second.port}"
    seconds.context(folder, "second-tls", docker, host=host, ca=f"{tls}/ca.pem", **files)
    seconds.context(folder, "strange-tls", docker, host=host, ca=f"{tls}/stranger.pem", **files)
    plugins = folder / "cli-plugins"
    plugins.mkdir()
    (plugins / "docker-buildx").symlink_to(debian.buildx(tmp_path_factory.mktemp("buildx")))
    return folder


@pytest.fixture
def by_ssh(invoke: Invoke, path: str) -> Invoke:
    def run(*words: str, **options: Any) -> "subprocess.CompletedProcess[str]":
        return invoke(*words, env={**os.environ, "PATH": path}, **options)

    return run


@pytest.fixture
def by_context(invoke: Invoke, configuration: Path) -> Invoke:
    def run(*words: str, env: dict[str, str] | None = None, **options: Any) -> "subprocess.CompletedProcess[str]":
        return invoke(*words, env={**os.environ, "DOCKER_CONFIG": str(configuration), **(env or {})}, **options)

    return run


def labelled(engine: Engine, folder: Path, cpu_name: str) -> str:
    """A small image with the labels of a build for that CPU, and a report that it passed."""
    of = plan.select(Request(target="mkl", release="2.20.0", cpu=cpu_name, platform="linux/amd64"), None)
    return label(engine, folder, of, more={"io.tfbuild.context": "sha256:0"}, name=f"tfbuild-test:{of.id}")


# --- by ssh -----------------------------------------------------------------------------------------------------------


def test_ctrl_c_ends_a_build_by_ssh_with_all_of_its_processes(path: str, second: Second, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "invoke", "--search-root", str(ROOT), "build", *OFFICIAL, "--engine", SSH]
    env = {**os.environ, "PATH": path}
    with subprocess.Popen(
        [*command, "--network", "host"], cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        output = ""
        while "build: wheel ..." not in output:
            line = process.stderr.readline()
            assert line, output
            output += line
        process.send_signal(signal.SIGINT)
        output += process.communicate(timeout=60)[1]
    assert process.returncode == 130, output
    assert processes(f"{second.folder}/ssh/ssh_config") == []


def test_what_is_built_by_ssh_stays_and_runs_in_the_engine_there(
    engine: Engine, there: Engine, path: str, second: Second, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Streams, a worker that is paused, files out of an image: all that verification is made of."""
    monkeypatch.setenv("PATH", path)
    where = connection.Tunnel(Destination(host="second"))
    by_ssh = Engine.connect(where.host)
    name = f"tfbuild-test:ssh-{secrets.token_hex(4)}"
    (tmp_path / "Dockerfile").write_text(f"FROM tfbuild-base:bookworm\nRUN echo {name} > /name\n")
    try:
        by_ssh.build(tmp_path, BuildSettings(log=tmp_path / "log", progress=Progress()), tag=name)
        assert there.exists(name)
        assert not engine.exists(name)
        data = os.urandom(300_000).hex()
        done = by_ssh.run(name, ["sh", "-c", "cat; cat /name >&2; exit 3"], stdin=data.encode())
        assert (done.exit_code, done.stdout, done.stderr) == (3, data, f"{name}\n")
        seen = by_ssh.run(name, ["cat", "/proc/cpuinfo"]).stdout
        assert seen == machine(MACHINE).cpuinfo()
        with by_ssh.worker(name, ["sh", "-c", "while read x; do echo got $x; done"]) as worker:
            assert worker.ask("a", 30) == "got a"
            worker.pause()
            worker.resume()
            assert worker.ask("b", 30) == "got b"
        assert by_ssh.read_file(name, "/name", tmp_path / "name", 100).read_text() == f"{name}\n"
    finally:
        by_ssh.client.close()
        where.close()
        if there.exists(name):
            there.remove(name)
    assert processes(f"{second.folder}/ssh/ssh_config") == []


def test_an_engine_by_ssh_lists_its_images_and_says_what_runs_there(
    there: Engine, by_ssh: Invoke, tmp_path: Path
) -> None:
    names = [labelled(there, tmp_path, cpu_name) for cpu_name in ("x86-64-v3", "x86-64-v4")]
    rows = json.loads(by_ssh("images", "--engine", SSH, "--json").stdout)
    assert {row["name"]: row["runs_here"] for row in rows} == dict(zip(names, (True, False), strict=True))
    there.tag(names[0], "kept:here")
    going = json.loads(by_ssh("prune", "--keep", "kept:*", "--dry-run", "--engine", SSH, "--json").stdout)
    assert set(going["going"]) == set(names)
    by_ssh("prune", "--keep", "kept:*", "--yes", "--engine", SSH)
    assert not any(there.exists(name) for name in names)
    there.remove("kept:here")


@pytest.mark.parametrize(
    ("host", "reason", "hint"),
    [
        ("locked-out", "Permission denied", "ssh-copy-id"),
        ("stranger", "Host key verification failed", "accept it once by hand"),
        ("changed", "IDENTIFICATION HAS CHANGED", "find out why"),
        ("closed", "Connection refused", "no sshd answers on that port"),
        ("no-such-host.invalid", "Could not resolve hostname", "is the name right?"),
        ("poor", "docker: not found", "install Docker there"),
        ("down", "Cannot connect to the Docker daemon", "start the engine there"),
    ],
)
def test_what_is_wrong_with_an_engine_by_ssh_is_said_in_one_line(
    by_ssh: Invoke, second: Second, host: str, reason: str, hint: str
) -> None:
    errors = by_ssh("images", "--engine", f"ssh://{host}", code=20, timeout=60).stderr
    assert f"no container engine answers at ssh://{host}: " in errors
    assert reason in errors
    assert hint in errors
    assert len(errors.splitlines()) == 2
    assert processes(f"{second.folder}/ssh/ssh_config") == []


def test_an_engine_that_says_nothing_is_given_up(path: str, second: Second, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", path)
    monkeypatch.setattr(connection, "ANSWER_SECONDS", 1.0)
    with pytest.raises(EngineMissing, match="timed out: no answer within 1 s"):
        connection.Tunnel(Destination(host="slow"))
    assert processes(f"{second.folder}/ssh/ssh_config") == []


# --- by a context, with TLS -------------------------------------------------------------------------------------------


def test_the_cpu_that_a_context_s_engine_shows_is_the_one_that_is_built_for(by_context: Invoke) -> None:
    arguments = ("build", "--target", "cpu", "--release", "2.20.0", "--dry-run", "--json", "--base", "bootstrap")
    (document,) = json.loads(by_context(*arguments, "--engine", "second-tls").stdout)
    read = cpu.parse(machine(MACHINE).cpuinfo())
    assert document["id"] == plan.select(Request(target="cpu", release="2.20.0"), read).id
    assert "x86-64-v3" in document["id"]


def test_an_engine_s_own_ca_holds_whatever_the_web_s_is(by_context: Invoke, second: Second) -> None:
    """Its CA is in the context, or in DOCKER_CERT_PATH; Requests has a variable of its own, which is for the web."""
    web = {"REQUESTS_CA_BUNDLE": f"{second.folder}/tls/stranger.pem"}
    json.loads(by_context("images", "--engine", "second-tls", "--json", env=web).stdout)
    address = f"tcp://127.0.0.1:{second.port}"
    tls = {"DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": f"{second.folder}/tls"}
    json.loads(by_context("images", "--engine", address, "--json", env={**web, **tls}).stdout)
    # A context is spoken to with its own files alone.
    none = {**tls, "DOCKER_CERT_PATH": "/nowhere"}
    json.loads(by_context("images", "--engine", "second-tls", "--json", env=none).stdout)


@pytest.mark.parametrize(
    ("engine_name", "env", "reason", "hint"),
    [
        ("strange-tls", {}, "certificate verify failed", "of the context strange-tls must be"),
        ("tcp://127.0.0.1:{port}", {}, "Bad Request", "it may require TLS"),
        (
            "tcp://127.0.0.1:{port}",
            {"DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": "{folder}"},
            "certificate",
            "of DOCKER_CERT_PATH must be",
        ),
        ("tcp://127.0.0.1:1", {}, "Connection refused", "is it up"),
        ("third", {}, "there is no Docker context 'third'", "second-tls"),
    ],
)
def test_an_engine_that_cannot_be_trusted_or_reached_is_refused(
    by_context: Invoke, second: Second, tmp_path: Path, engine_name: str, env: dict[str, str], reason: str, hint: str
) -> None:
    shutil.copy(second.folder / "tls" / "ca.pem", tmp_path)  # and no certificate of the client's own
    fill = {"port": second.port, "folder": tmp_path}
    filled = {name: value.format(**fill) for name, value in env.items()}
    errors = by_context("images", "--engine", engine_name.format(**fill), env=filled, code=20, timeout=60).stderr
    error, _, advice = errors.partition("hint: ")
    assert reason in error
    assert hint in advice


def test_push_and_pull_go_through_the_engine_that_is_named_and_fit_its_cpu(
    there: Engine, by_context: Invoke, tmp_path: Path
) -> None:
    with registries.serve(tmp_path) as server:
        place = server.place()
        for cpu_name in ("x86-64-v2", "x86-64-v3", "x86-64-v4"):
            name = labelled(there, tmp_path, cpu_name)
            pushing.push(there, name, place, tmp_path / "reports", force=False, progress=Progress())
            there.remove(name)
        done = by_context("pull", "--engine", "second-tls", "--registry", server.repository, "--json")
    document = json.loads(done.stdout)
    assert document["id"].endswith("-x86-64-v3")
    assert there.exists(document["image"])
    there.remove(document["image"])


# --- by a builder -----------------------------------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A build that needs no base image."""
    folder = tmp_path / "small"
    folder.mkdir()
    (folder / "content").write_text(secrets.token_hex(8))
    (folder / "Dockerfile").write_text("FROM scratch AS kept\nCOPY content /\nFROM scratch\nCOPY --from=kept / /\n")
    return folder


@pytest.fixture
def remote(second: Second, configuration: Path) -> Iterator[str]:
    """A builder of buildx's remote driver: BuildKit itself, as the second engine has it, at a socket of its own."""
    path, name = second.folder / "buildkit.sock", f"far-{secrets.token_hex(4)}"
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.listen()

    def serve() -> None:
        while True:
            try:
                near, _ = listening.accept()
            except OSError:
                return
            far = socket.socket(socket.AF_UNIX)
            far.connect(second.host.removeprefix("unix://"))
            far.sendall(b"POST /grpc HTTP/1.1\r\nHost: engine\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
            answer = b""
            while b"\r\n\r\n" not in answer and (data := far.recv(1)):
                answer += data
            assert b" 101 " in answer
            threading.Thread(target=carry, args=(near, far), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    docker, env = find_program(os.environ).path, {**os.environ, "DOCKER_CONFIG": str(configuration)}
    create = [docker, "buildx", "create", "--name", name, "--driver", "remote", f"unix://{path}"]
    subprocess.run(create, env=env, check=True, capture_output=True)
    yield name
    subprocess.run([docker, "buildx", "rm", name], env=env, check=True, capture_output=True)
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    path.unlink()


def test_a_context_s_own_builder_puts_the_image_into_its_engine(
    engine: Engine, there: Engine, configuration: Path, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(configuration))
    monkeypatch.setenv("DOCKER_CONTEXT", "second-tls")
    monkeypatch.setenv("BUILDX_BUILDER", "second-tls")
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    named = Engine.connect()
    assert (named.local, named.builder) == (False, None)
    name = f"tfbuild-test:second-{secrets.token_hex(4)}"
    named.build(small, BuildSettings(log=small.parent / "log", progress=Progress()), tag=name)
    assert there.exists(name)
    assert not engine.exists(name)
    there.remove(name)


def test_a_builder_elsewhere_compiles_what_is_taken_out_of_it(
    engine: Engine, configuration: Path, small: Path, remote: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `invoke wheel` takes its wheel."""
    monkeypatch.setenv("DOCKER_CONFIG", str(configuration))
    monkeypatch.setenv("BUILDX_BUILDER", remote)
    named = Engine.connect()
    assert str(named.builder) == f"the builder {remote} (remote)"
    out = small.parent / "out"
    settings = BuildSettings(log=small.parent / "log", progress=Progress(), network="host")
    named.export(small, settings, stage="kept", output=out)
    assert (out / "content").read_text() == (small / "content").read_text()


def test_a_folder_served_here_is_no_mirror_for_a_builder_elsewhere(
    by_context: Invoke, remote: str, tmp_path: Path
) -> None:
    (tmp_path / "bundle.json").write_text('{"schema": "tfbuild.bundle/1"}')
    errors = by_context("build", *OFFICIAL, "--builder", f"{remote}", "--mirror", str(tmp_path), code=2).stderr
    assert f"the builder {remote} (remote) has a network of its own" in errors


def test_a_base_that_the_engine_alone_has_is_a_layout_with_the_same_image_in_it(
    engine: Engine, second: Second, tmp_path: Path
) -> None:
    """What builders elsewhere get: a manifest whose blobs are what their digests say."""
    digest = transfer.write_layout(engine.client, "tfbuild-base:bookworm", tmp_path / "base")

    def blob(name: str) -> bytes:
        content = (tmp_path / "base" / "blobs" / "sha256" / name.removeprefix("sha256:")).read_bytes()
        assert f"sha256:{hashlib.sha256(content).hexdigest()}" == name
        return content

    (listed,) = json.loads((tmp_path / "base" / "index.json").read_text())["manifests"]
    assert listed["digest"] == digest
    manifest = json.loads(blob(digest))
    assert manifest["config"]["digest"] == engine.image("tfbuild-base:bookworm").id
    assert len(blob(digest)) == listed["size"]
    config = json.loads(blob(manifest["config"]["digest"]))
    assert [layer["digest"] for layer in manifest["layers"]] == config["rootfs"]["diff_ids"]
    for layer in manifest["layers"]:
        assert len(blob(layer["digest"])) == layer["size"]


@pytest.mark.parametrize(
    ("name", "reason", "hint"),
    [
        ("nobody", 'no builder "nobody" found', "docker buildx ls"),
        ("second", "belongs to another engine, and the image would stay there", "--engine second builds"),
    ],
)
def test_a_builder_that_is_none_of_this_engine_s_is_refused(
    by_context: Invoke, name: str, reason: str, hint: str
) -> None:
    errors = by_context("build", *OFFICIAL, "--builder", f"{name}", "--no-cache", code=20).stderr
    assert reason in errors
    assert hint in errors
