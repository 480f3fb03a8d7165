"""Hosts by ssh, from a real sshd on 127.0.0.1 with keys, port and configuration of its own."""

import getpass
import json
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cpu.machines import machine
from tests.ports import free_port
from tests.rows import each
from tests.util import sshd
from tfbuild import cpu, fleet
from tfbuild.errors import Unsupported, UsageError
from tfbuild.fleet import hosts
from tfbuild.fleet.hosts import Skipped
from tfbuild.util import ssh
from tfbuild.util.ssh import Destination

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, kw_only=True)
class Server:
    """`config`: of ssh, with one host for each kind of answer or failure."""

    folder: Path
    config: Path
    port: int


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    sshd.program()
    folder, port = tmp_path_factory.mktemp("sshd"), free_port()
    config = configured(folder, port)
    with sshd.serve(folder, port):
        yield Server(folder=folder, config=config, port=port)


def configured(folder: Path, port: int) -> Path:
    """Configure sshd and ssh. Each key but the first runs a fixed command instead of the requested one."""
    (folder / "cpuinfo").write_text(machine("rhel7-haswell").cpuinfo())
    forced = {"box": "", "haswell": f"cat {folder}/cpuinfo", "slow": "sleep 10", "mute": "true", "broken": "exit 3"}
    forced["mac"] = "cat /nowhere/proc/cpuinfo"
    options = {name: f'command="{run}" ' if run else "" for name, run in forced.items()}
    allowed = [f"{options[name]}{sshd.key(folder, name)}" for name in forced]
    (folder / "authorized").write_text("\n".join(allowed) + "\n")
    sshd.key(folder, "locked-out")
    host_key = sshd.key(folder, "host")
    (folder / "known").write_text(f"[127.0.0.1]:{port} {host_key}\n")
    (folder / "none-known").write_text("")
    (folder / "sshd_config").write_text(sshd.SETTINGS.format(port=port, folder=folder))
    common = sshd.COMMON.format(user=getpass.getuser())
    trusted = f"{common}Port {port}\nUserKnownHostsFile {folder}/known\n"
    entries = [f"Host {name}\n{trusted}IdentityFile {folder}/{name}\n" for name in (*forced, "locked-out")]
    entries.append(f"Host stranger\n{common}Port {port}\nUserKnownHostsFile {folder}/none-known\n")
    entries.append(f"Host closed\n{common}Port {free_port()}\n")
    entries.append("Host *\nGlobalKnownHostsFile /dev/null\nStrictHostKeyChecking yes\nRemoteCommand true\n")
    (folder / "ssh_config").write_text("".join(entries))
    return folder / "ssh_config"


@pytest.mark.sshd
def test_a_host_reads_the_same_by_ssh_as_locally(server: Server) -> None:
    (answer,) = hosts.fetch([Destination(host="box")], timeout=20, config=server.config)
    assert isinstance(answer, str)
    local = cpu.detect()
    remote = cpu.parse(answer)
    assert (remote.arch, remote.model, remote.features) == (local.arch, local.model, local.features)


@pytest.mark.sshd
def test_hosts_of_a_list_are_read_at_once_and_each_keeps_its_answer(server: Server) -> None:
    listed = server.folder / "fleet"
    listed.write_text("# web\nssh box\nssh://haswell  # the old one\n\nssh box\n")
    gathered = hosts.gather([str(listed)], config=server.config)
    assert [host.name for host in gathered.hosts] == ["ssh://box", "ssh://haswell"]
    assert gathered.hosts[1].cpu == cpu.parse(machine("rhel7-haswell").cpuinfo())
    chosen = fleet.choose(gathered.hosts, 2)
    assert {host.name for host in chosen.hosts} == {"ssh://box", "ssh://haswell"}


@pytest.mark.sshd
def test_the_verb_skips_unreachable_hosts_on_request(server: Server) -> None:
    listed = server.folder / "two"
    listed.write_text("ssh haswell\nssh closed\n")
    command = [sys.executable, "-m", "invoke", "fleet", str(listed), f"--ssh-config={server.config}", "--json"]
    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (completed.returncode, completed.stdout) == (Unsupported.exit_code, "")
    assert "ssh://closed: " in completed.stderr
    completed = subprocess.run([*command, "--skip-unreachable"], cwd=ROOT, capture_output=True, text=True, check=False)
    result = json.loads(completed.stdout)
    assert [row["name"] for row in result["hosts"]] == ["ssh://haswell"]
    assert [row["name"] for row in result["skipped"]] == ["ssh://closed"]


@pytest.mark.sshd
def test_user_and_port_of_a_destination_are_used(server: Server) -> None:
    user = getpass.getuser()
    config = server.folder / "by-address"
    entry = f"Host *\nUserKnownHostsFile {server.folder}/known\nIdentityFile {server.folder}/haswell\n"
    config.write_text(entry + "IdentitiesOnly yes\nIdentityAgent none\nStrictHostKeyChecking yes\n")
    gathered = hosts.gather([f"ssh://{user}@127.0.0.1:{server.port}"], config=config)
    assert [host.name for host in gathered.hosts] == [f"ssh://{user}@127.0.0.1:{server.port}"]


@pytest.mark.sshd
@pytest.mark.parametrize(
    ("host", "reason", "hint"),
    [
        ("locked-out", "Permission denied", "ssh-copy-id locked-out"),
        ("stranger", "Host key verification failed", "accept it once by hand: ssh stranger"),
        ("closed", "Connection refused", "no sshd answers on that port"),
        ("no-such-host.invalid", "Could not resolve hostname", "is the name right?"),
        ("broken", "the command there ended with 3", "ssh -o BatchMode=yes broken cat /proc/cpuinfo"),
        ("mac", "/proc/cpuinfo: No such file", "it does not run Linux"),
    ],
)
def test_a_host_that_fails_is_named_with_the_reason_and_what_to_do(
    server: Server, host: str, reason: str, hint: str
) -> None:
    with pytest.raises(Unsupported) as refusal:
        hosts.gather([f"ssh://{host}", "ssh://haswell"], config=server.config)
    assert f"ssh://{host}: " in refusal.value.reason
    assert reason in refusal.value.reason
    assert hint in refusal.value.reason
    assert "--skip-unreachable" in refusal.value.hint
    gathered = hosts.gather([f"ssh://{host}", "ssh://haswell"], config=server.config, skip=True)
    assert [machine.name for machine in gathered.hosts] == ["ssh://haswell"]
    assert [machine.name for machine in gathered.skipped] == [f"ssh://{host}"]


@pytest.mark.sshd
def test_a_host_that_does_not_answer_in_time_is_given_up(server: Server) -> None:
    (answer,) = hosts.fetch([Destination(host="slow")], timeout=1, config=server.config)
    assert isinstance(answer, Skipped)
    assert "timed out" in answer.reason
    assert "--timeout gives it more time" in answer.hint


@pytest.mark.sshd
def test_an_answer_that_describes_no_cpu_is_an_error(server: Server) -> None:
    with pytest.raises(Unsupported, match=r"ssh://mute does not describe a CPU"):
        hosts.gather(["ssh://mute"], config=server.config)


@pytest.mark.parametrize(
    ("text", "destination"),
    [
        ("ssh://web1", Destination(host="web1")),
        ("ssh web1", Destination(host="web1")),
        ("ssh   root@web-1.example.org", Destination(host="root@web-1.example.org")),
        ("ssh://me@10.0.0.1:65535", Destination(host="me@10.0.0.1", port=65535)),
        ("ssh://me@web1/", Destination(host="me@web1")),
        ("ssh://[::1]:22", Destination(host="::1", port=22)),
    ],
)
def test_destinations(text: str, destination: Destination) -> None:
    assert ssh.destination(text) == destination


@each("text", ["ssh://web1", "ssh://me@10.0.0.1:2222"])
def test_a_destination_is_named_as_it_is_given(text: str) -> None:
    assert str(ssh.destination(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "ssh://",
        "ssh -oProxyCommand=id x",
        "ssh://-oProxyCommand=id",
        "ssh a b",
        "ssh://h:65536",
        "ssh://a;b",
        "ssh://web\N{CYRILLIC SMALL LETTER ER}",
        "web3",
        "",
    ],
)
def test_only_a_valid_host_is_passed_to_ssh(text: str) -> None:
    with pytest.raises(UsageError, match="names no ssh host"):
        ssh.destination(text)


def test_a_changed_host_key_is_distinguished_from_an_unknown_one() -> None:
    last = "Host key verification failed."
    assert ssh.reason(f"a banner\n{last}\n", 255) == last
    changed = ssh.reason(f"@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\n{last}\n", 255)
    where = Destination(host="web1")
    assert "accept it once" in ssh.advice(where, last, "x")
    assert "find out why" in ssh.advice(where, changed, "x")


def test_an_end_without_output_says_who_ended() -> None:
    assert ssh.reason("\n", 255) == "ssh ended with 255"
    assert ssh.reason("", 3) == "the command there ended with 3"


def test_ssh_never_prompts_and_forwards_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever the user's own configuration says; `ssh -G` prints what would hold."""
    real = shutil.which("ssh") or pytest.skip("no ssh here")
    config = tmp_path / "config"
    config.write_text("Host *\nBatchMode no\nRemoteCommand true\nLocalForward 1 localhost:2\nRequestTTY force\n")
    (tmp_path / "ssh").write_text(f"#!/bin/sh\nprintf '\\377\\n'\nexec {real} -G \"$@\"\n")
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    (answer,) = hosts.fetch([Destination(host="web1", port=2222)], timeout=7, config=config)
    assert isinstance(answer, str)
    lines = answer.splitlines()
    assert {"batchmode yes", "requesttty false", "forwardx11 no", "connecttimeout 7", "port 2222"} <= {*lines}
    assert "clearallforwardings yes" in lines
    assert not [line for line in lines if line.startswith(("remotecommand", "localforward"))]


def test_a_host_that_is_not_there_is_named_with_what_to_do(tmp_path: Path) -> None:
    if shutil.which("ssh") is None:
        pytest.skip("no ssh here")
    (tmp_path / "none").touch()
    with socket.create_server(("127.0.0.1", 0)) as mute:
        there = [Destination(host="127.0.0.1", port=port) for port in (free_port(), mute.getsockname()[1])]
        closed, silent = hosts.fetch(there, timeout=1, config=tmp_path / "none")
    assert isinstance(closed, Skipped)
    assert isinstance(silent, Skipped)
    assert closed.reason.endswith("Connection refused")
    assert closed.hint == "no sshd answers on that port: ssh://127.0.0.1:PORT"
    assert "timed out" in silent.reason
    assert silent.hint.endswith("--timeout gives it more time")


def test_the_command_prints_the_cpu_and_where_there_is_glibc_what_it_knows_of_it() -> None:
    printed = subprocess.run(hosts.COMMAND, shell=True, check=True, capture_output=True, text=True).stdout
    assert cpu.parse(printed).features == cpu.detect().features
    if platform.machine() == "x86_64" and platform.libc_ver()[0] == "glibc":
        assert "\n\ndl_dst_lib" in printed


def test_without_ssh_on_path_no_host_is_tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="openssh-client"):
        hosts.fetch([Destination(host="web1")], timeout=1)
    assert hosts.fetch([], timeout=1) == []
