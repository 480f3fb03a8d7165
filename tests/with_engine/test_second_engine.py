"""A second engine, reached by ssh and by TLS in a context: what is asked of it happens there.

Its containers see another CPU than this machine's (tests/with_engine/second.py), so that whose CPU was read shows.
"""

import json
import os
import secrets
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cpu.machines import machine
from tests.with_engine import second as seconds
from tests.with_engine.second import MACHINE, Second, processes
from tfbuild import cpu, plan
from tfbuild.cli.options import certificates
from tfbuild.engine import Engine, connection
from tfbuild.engine.build import BuildSettings, find_program
from tfbuild.errors import EngineMissing
from tfbuild.pipeline import base_image
from tfbuild.plan import Request
from tfbuild.util.progress import Progress

pytestmark = [pytest.mark.engine, pytest.mark.sshd, pytest.mark.nightly]
Invoke = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def second(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Second]:
    """With the base image that the first engine has: making it anew would prove nothing more."""
    bridge = Path("/sys/class/net/docker0/ifindex")
    before = bridge.read_text() if bridge.exists() else ""
    log = tmp_path_factory.mktemp("base") / "log"
    name = base_image.bootstrap(engine, "bookworm", progress=Progress(), log=log, ca_cert=certificates("")).reference
    with seconds.engine() as second:
        there = Engine.connect(second.host)
        there.client.images.load(b"".join(engine.client.images.get(name).save(named=name)))
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


@pytest.fixture
def contexts(second: Second, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contexts for the second engine: by TLS, and by a wrong CA."""
    docker, tls = find_program(os.environ)[0], f"{second.folder}/tls"
    files = {"cert": f"{tls}/cert.pem", "key": f"{tls}/key.pem"}
    for name, ca in (("second-tls", "ca"), ("strange-tls", "stranger")):
        host = f"tcp://127.0.0.1:{second.port}"
        seconds.context(tmp_path / "docker", name, docker, host=host, ca=f"{tls}/{ca}.pem", **files)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))


def build_small(engine: Engine, folder: Path) -> tuple[str, str]:
    """Build an image without a base, and return its name and content."""
    name, content = f"tfbuild-test:second-{secrets.token_hex(4)}", secrets.token_hex(8)
    (folder / "content").write_text(content)
    (folder / "Dockerfile").write_text("FROM scratch\nCOPY content /\n")
    engine.build(folder, BuildSettings(log=folder / "log", progress=Progress(), tag=name))
    return name, content


# --- by ssh -----------------------------------------------------------------------------------------------------------


def test_what_is_built_by_ssh_stays_and_runs_in_the_engine_there(
    engine: Engine, there: Engine, path: str, second: Second, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Streams, a worker that is paused, files out of an image: all that verification is made of."""
    monkeypatch.setenv("PATH", path)
    base = "tfbuild-base:bookworm"
    with connection.tunnel(f"ssh://second{second.host.removeprefix('unix://')}") as address:
        by_ssh = Engine.connect(address)
        name, content = build_small(by_ssh, tmp_path)
        assert (there.exists(name), engine.exists(name)) == (True, False)
        assert by_ssh.read_file(name, "/content", tmp_path / "copy", 100).read_text() == content
        data = os.urandom(300_000).hex()
        done = by_ssh.run(base, ["sh", "-c", "cat; echo told >&2; exit 3"], stdin=data.encode())
        assert (done.exit_code, done.stdout, done.stderr) == (3, data, "told\n")
        assert by_ssh.run(base, ["cat", "/proc/cpuinfo"]).stdout == machine(MACHINE).cpuinfo()
        with by_ssh.worker(base, ["sh", "-c", "while read x; do echo got $x; done"]) as worker:
            assert worker.ask("a", 30) == "got a"
            worker.pause()
            worker.resume()
            assert worker.ask("b", 30) == "got b"
        by_ssh.client.close()
    there.remove(name)
    assert processes(f"{second.folder}/ssh/ssh_config") == []


@pytest.mark.parametrize(
    ("host", "reason", "hint"),
    [
        ("locked-out", "Permission denied", "ssh-copy-id"),
        ("stranger", "Host key verification failed", "by hand: ssh stranger"),
        ("changed", "Host key verification failed", "which is new or has changed"),
        ("closed", "Connection refused", "is the name right, and the host up?"),
        ("no-such-host.invalid", "Could not resolve hostname", "is the name right, and the host up?"),
        # The socket opens, and ends at the first word.
        ("second/nowhere/docker.sock", "", "its engine is down"),
        ("confined", "", "forwards no sockets"),
    ],
)
def test_what_is_wrong_with_an_engine_by_ssh_is_said(
    path: str, host: str, reason: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", path)
    try:
        with pytest.raises(EngineMissing) as error:
            Engine.connect(f"ssh://{host}")
    finally:
        connection.tunnels.close()
    assert f"no container engine answers at ssh://{host}: " in error.value.reason
    assert reason in error.value.reason
    assert hint in error.value.hint


# --- by a context, with TLS -------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("contexts")
def test_the_cpu_that_a_context_s_engine_shows_is_the_one_that_is_built_for(invoke: Invoke) -> None:
    arguments = ("build", "--target", "cpu", "--release", "2.20.0", "--dry-run", "--json", "--base", "bootstrap")
    (document,) = json.loads(invoke(*arguments, "--engine", "second-tls").stdout)
    read = cpu.parse(machine(MACHINE).cpuinfo())
    assert document["id"] == plan.select(Request(target="cpu", release="2.20.0"), read).id
    assert "x86-64-v3" in document["id"]


@pytest.mark.usefixtures("contexts")
@pytest.mark.parametrize(
    ("name", "reason", "hint"),
    [
        ("strange-tls", "unable to get local issuer certificate", "docker --context strange-tls version"),
        ("tcp://127.0.0.1:{port}", "Bad Request", "if it requires TLS"),
    ],
)
def test_an_engine_that_cannot_be_trusted_is_refused(second: Second, name: str, reason: str, hint: str) -> None:
    with pytest.raises(EngineMissing) as error:
        Engine.connect(name.format(port=second.port))
    assert reason in error.value.reason
    assert hint in error.value.hint
