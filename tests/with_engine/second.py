"""A second engine on this machine, whose containers see another CPU, and the ways that lead to it: ssh and TLS.

It has data, containerd and a bridge of its own, in the network namespace of the first one: its builds reach what the
host does. It writes no rule of a firewall, and its bridge has no traffic: containers here have no network, or the
host's.
"""

import getpass
import json
import os
import secrets
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import debian
from tests.cpu.machines import machine
from tests.ports import free_port
from tests.util import sshd

MACHINE = "rhel7-haswell"
# One of 32 parts of a block that is kept for documentation; nothing is sent to it.
BRIDGE = "198.51.100.{}/29"
# As lxcfs does: each container gets a file of its own over the kernel's. runc allows that for a few files of /proc.
RUNTIME = """#!{python}
import json, os, sys
words = sys.argv[1:]
if "create" in words:
    path = os.path.join(words[words.index("--bundle") + 1], "config.json")
    with open(path) as file:
        config = json.load(file)
    config["mounts"].append(
        {{"destination": "/proc/cpuinfo", "source": {cpuinfo!r}, "type": "bind", "options": ["bind", "ro"]}}
    )
    with open(path, "w") as file:
        json.dump(config, file)
os.execvp("runc", ["runc", *words])
"""


@dataclass(frozen=True, kw_only=True)
class Second:
    """`host`: its socket; `port`: where it speaks TLS, with the files in `folder`/tls."""

    folder: Path
    host: str
    port: int


@contextmanager
def engine() -> Iterator[Second]:
    """Started, and gone at the end with all of its data."""
    with place() as (folder, bridge):
        certificates(folder / "tls")
        second = Second(folder=folder, host=f"unix://{folder}/docker.sock", port=free_port())
        with dockerd(second, bridge):
            yield second


@contextmanager
def newer() -> Iterator[str]:
    """The engine of a newer Debian, which keeps images with containerd, as new Docker 29 does; its address."""
    with place() as (folder, bridge):
        programs = debian.unpack(folder / "programs", "docker.io", "containerd", suite=debian.NEWER)
        if subprocess.run([programs / "usr/sbin/dockerd", "--version"], capture_output=True, check=False).returncode:
            pytest.skip(f"{debian.NEWER}'s engine needs libraries newer than this system's")
        (folder / "settings").write_text(json.dumps({"features": {"containerd-snapshotter": True}}))
        host = f"unix://{folder}/docker.sock"
        path = f"{programs}/usr/sbin:{programs}/usr/bin:{os.environ['PATH']}"
        command = [
            f"{programs}/usr/sbin/dockerd", f"--config-file={folder}/settings", f"--host={host}",
            *own(folder, bridge),
        ]  # fmt: skip
        with running(command, folder / "log", (folder / "docker.sock").is_socket, {**os.environ, "PATH": path}):
            yield host


@contextmanager
def place() -> Iterator[tuple[Path, str]]:
    """A folder and a bridge for an engine, which go with all that it leaves in them."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "dockerd", "openssl"))):
        pytest.skip("a second engine needs root, iproute2, dockerd and openssl")
    # Short, for the kernel gives a socket's path 107 bytes.
    folder, bridge = Path(tempfile.mkdtemp(prefix="tfb-")), f"tfb{secrets.token_hex(4)}"
    subprocess.run(["ip", "link", "add", bridge, "type", "bridge"], check=True)
    try:
        subprocess.run(
            ["ip", "address", "add", BRIDGE.format(8 * secrets.randbelow(32) + 1), "dev", bridge], check=True
        )
        yield folder, bridge
    finally:
        subprocess.run(["ip", "link", "delete", bridge], check=True)
        remove(folder)


@contextmanager
def dockerd(found: Second, bridge: str, *, other_cpu: bool = True) -> Iterator[None]:
    folder = found.folder
    (folder / "cpuinfo").write_text(machine(MACHINE).cpuinfo())
    runtime = folder / "runtime"
    runtime.write_text(RUNTIME.format(python=sys.executable, cpuinfo=str(folder / "cpuinfo")))
    runtime.chmod(0o755)
    command = [
        "dockerd", f"--host={found.host}", f"--host=tcp://127.0.0.1:{found.port}", "--tlsverify",
        f"--tlscacert={folder}/tls/ca.pem", f"--tlscert={folder}/tls/cert.pem", f"--tlskey={folder}/tls/key.pem",
        *own(folder, bridge), f"--add-runtime=other-cpu={runtime}",
        *(["--default-runtime=other-cpu"] if other_cpu else []),
    ]  # fmt: skip
    with running(command, folder / "log", lambda: answers(found.host)):
        yield


def own(folder: Path, bridge: str) -> tuple[str, ...]:
    """Options of a dockerd that shares nothing with another one, and leaves the machine's network as it is."""
    return (
        f"--data-root={folder}/data", f"--exec-root={folder}/exec", f"--pidfile={folder}/pid",
        f"--bridge={bridge}", "--iptables=false", "--ip6tables=false", "--ip-masq=false", "--ip-forward=false",
    )  # fmt: skip


@contextmanager
def running(
    command: Sequence[str], log: Path, ready: Callable[[], bool], env: Mapping[str, str] | None = None
) -> Iterator[None]:
    """A dockerd that is `ready`, until the block ends."""
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output, env=env) as process:
        try:
            deadline = time.monotonic() + 60
            while not ready():
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.1)
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            finally:
                process.kill()


def left_running(folder: Path) -> list[int]:
    """The processes that name the folder, containerd and a shim for each container, and those in its containers."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            mounts = (path / "mountinfo").read_text().splitlines()
            roots = "".join(line for line in mounts if line.split()[4] == "/")
            if str(folder) in f"{(path / 'cmdline').read_text()} {roots}":
                found.append(int(path.name))
    return found


def remove(folder: Path) -> None:
    """What a dockerd that was killed leaves running, what any leaves mounted in its folder, and the folder."""
    while running := left_running(folder):
        for pid in running:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)
    unmount(folder)
    shutil.rmtree(folder)


def unmount(folder: Path) -> None:
    for line in reversed(Path("/proc/self/mounts").read_text().splitlines()):
        if Path(point := line.split()[1]).is_relative_to(folder):
            subprocess.run(["umount", "--lazy", point], check=False)


def answers(host: str) -> bool:
    return subprocess.run(["docker", "--host", host, "version"], capture_output=True, check=False).returncode == 0


def certificates(folder: Path) -> None:
    """A CA, and a certificate by it that serves the engine and its clients; `stranger` is another CA."""
    folder.mkdir()

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    new = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    for name in ("ca", "stranger"):
        openssl(*new, "-subj", f"/CN={name}", "-keyout", f"{name}-key.pem", "-out", f"{name}.pem")
    (folder / "more").write_text("subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n")
    openssl(*new[:1], *new[2:6], "-nodes", "-subj", "/CN=engine", "-keyout", "key.pem", "-out", "request.pem")
    openssl(
        "x509", "-req", "-in", "request.pem", "-CA", "ca.pem", "-CAkey", "ca-key.pem", "-CAcreateserial",
        "-days", "2", "-extfile", "more", "-out", "cert.pem",
    )  # fmt: skip
    ssl.create_default_context(cafile=folder / "ca.pem").load_cert_chain(folder / "cert.pem", folder / "key.pem")


@contextmanager
def ssh_server(second: Second) -> Iterator[Path]:
    """A server on 127.0.0.1, and the folder for PATH whose `ssh` knows it by names: each is another way to answer.

    `second` forwards; `confined` does not; `stranger`'s and `changed`'s host keys are not those that are known;
    `locked-out` has no right; `closed` does not listen.
    """
    sshd.program()
    folder, port = second.folder / "ssh", free_port()
    folder.mkdir()
    configured(folder, port)
    with sshd.serve(folder, port):
        yield folder / "bin"


def configured(folder: Path, port: int) -> None:
    forced = {"second": "", "confined": "restrict"}
    allowed = [f"{options} {sshd.key(folder, name)}" for name, options in forced.items()]
    (folder / "authorized").write_text("\n".join(allowed) + "\n")
    for name in ("locked-out", "other"):
        sshd.key(folder, name)
    own, other = sshd.key(folder, "host"), (folder / "other.pub").read_text().strip()
    (folder / "known").write_text(f"[127.0.0.1]:{port} {own}\n")
    (folder / "known-otherwise").write_text(f"[127.0.0.1]:{port} {other}\n")
    (folder / "none-known").write_text("")
    (folder / "sshd_config").write_text(sshd.SETTINGS.format(port=port, folder=folder))
    common = sshd.COMMON.format(user=getpass.getuser())
    names = dict.fromkeys((*forced, "locked-out"), "known") | {"stranger": "none-known", "changed": "known-otherwise"}
    entries = [
        f"Host {name}\n{common}Port {port}\nUserKnownHostsFile {folder}/{known}\n"
        f"IdentityFile {folder}/{name if name in (*forced, 'locked-out') else 'second'}\n"
        for name, known in names.items()
    ]
    entries.append(f"Host closed\n{common}Port 1\n")
    entries.append("Host *\nGlobalKnownHostsFile /dev/null\nStrictHostKeyChecking yes\nRemoteCommand true\n")
    (folder / "ssh_config").write_text("".join(entries))
    (folder / "bin").mkdir()
    program = folder / "bin" / "ssh"
    program.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/ssh_config "$@"\n')
    program.chmod(0o755)


def processes(mark: str) -> list[str]:
    """The command lines of all processes that have `mark` in it."""
    records = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if mark in line:
                records.append(line)
    return records


def context(configuration: Path, name: str, docker: str, **endpoint: object) -> None:
    """Makes a context as its users do; there is no config.json beside it."""
    words = ",".join(f"{key}={value}" for key, value in endpoint.items())
    env = {**os.environ, "DOCKER_CONFIG": str(configuration)}
    subprocess.run([docker, "context", "create", name, "--docker", words], env=env, check=True, capture_output=True)
    assert json.loads(next(configuration.glob("contexts/meta/*/meta.json")).read_text())
