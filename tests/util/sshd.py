"""A real sshd on 127.0.0.1, with keys, port and configuration of its own."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

START_SECONDS = 10
# sshd's folder for privilege separation when it runs as root; Debian's service creates it at start.
SEPARATION = Path("/run/sshd")
SETTINGS = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host
PidFile none
UsePAM no
StrictModes no
AuthorizedKeysFile {folder}/authorized
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
"""
# For each host in ssh's configuration.
COMMON = "HostName 127.0.0.1\nUser {user}\nIdentitiesOnly yes\nIdentityAgent none\n"


def key(folder: Path, name: str) -> str:
    """Make a key pair and return its public half as a line."""
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(folder / name)]
    subprocess.run(command, check=True)
    return (folder / f"{name}.pub").read_text().strip()


def program() -> str:
    """Return the path of sshd; skip the test without it."""
    found = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if found is None or shutil.which("ssh") is None:
        pytest.skip("no sshd and ssh here: apt-get install openssh-server openssh-client")
    return found


@contextmanager
def serve(folder: Path, port: int) -> Iterator[None]:
    """Run sshd with the `sshd_config` in `folder`, until the block ends."""
    created = os.geteuid() == 0 and not SEPARATION.exists()
    if created:
        SEPARATION.mkdir(mode=0o755)
    log = folder / "sshd.log"
    with log.open("wb") as output:
        process = subprocess.Popen([program(), "-D", "-e", "-f", str(folder / "sshd_config")], stderr=output)
    try:
        _wait_for(port, process, log)
        yield
    finally:
        process.terminate()
        process.wait(timeout=START_SECONDS)
        if created:
            SEPARATION.rmdir()


def _wait_for(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    for _ in range(START_SECONDS * 20):
        assert process.poll() is None, log.read_text()
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError(f"sshd does not listen: {log.read_text()}")
