"""Read the CPUs of other machines through the system's ssh, with the user's keys and settings.

Nothing is installed there. It runs `cat` and, where glibc has it, the loader's list of CPUID words, because kernels do
not print all features.
"""

import re
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tfbuild.errors import UsageError

# Run by sh, whatever the user's shell. The empty line separates the loader's output from the last core's block.
LOADER = "/lib64/ld-linux-x86-64.so.2"
COMMAND = f"sh -c 'cat /proc/cpuinfo && echo && {{ env -i {LOADER} --list-diagnostics 2>/dev/null || true; }}'"
AT_ONCE = 16
# ssh's own exit code where it did not reach the command.
NOT_CONNECTED = 255
# A destination cannot be taken for an option, nor begin with a character that is special to a shell.
DESTINATION = re.compile(
    r"ssh(://|\s+)(?P<user>[A-Za-z0-9_][\w.+-]*@)?(?P<host>[A-Za-z0-9_][\w.-]*|\[[0-9A-Fa-f:.%\w]+\])(:(?P<port>\d{1,5}))?/?",
    re.ASCII,
)
# Printed above ssh's last line, which is the same as for an unknown host.
CHANGED = "IDENTIFICATION HAS CHANGED"
HINTS = (
    (CHANGED, "its host key has changed: find out why, then ssh-keygen -R"),
    ("Permission denied", "ssh must not prompt: install a key (ssh-copy-id {host}), or load yours (ssh-add)"),
    ("Host key verification failed", "check its key and accept it once by hand: ssh {host}"),
    ("Could not resolve hostname", "is the name right? ~/.ssh/config applies"),
    ("Connection refused", "no sshd answers on that port: ssh://{host}:PORT"),
    ("No route to host", "is it switched on, and reachable from here?"),
    ("timed out", "is it switched on, and reachable from here? --timeout gives it more time"),
)
OF_RECORDINGS = ("/proc/cpuinfo", "it does not run Linux: record its CPU there, and give the file")
# Override settings of the user that would interfere with a single command.
OPTIONS = ("-T", "-o", "BatchMode=yes", "-o", "RemoteCommand=none", "-o", "ClearAllForwardings=yes")
OTHERWISE = "see what this prints: ssh -o BatchMode=yes {host} cat /proc/cpuinfo"


@dataclass(frozen=True, kw_only=True)
class Destination:
    """The host to connect to; `port`: 0 for the default of ssh."""

    host: str
    port: int = 0

    def __str__(self) -> str:
        return f"ssh://{self.host}" + (f":{self.port}" if self.port else "")


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A machine's recording, or why there is none and what to do about it."""

    text: str = ""
    reason: str = ""
    hint: str = ""


def destination(text: str) -> Destination:
    """Parse ``ssh://user@host:port`` or ``ssh user@host``. Raises UsageError for anything else."""
    match = DESTINATION.fullmatch(text)
    port = int((match and match["port"]) or 0)
    if match is None or port > 65535:
        raise UsageError(f"{text!r} names no ssh host", hint="ssh://user@host, ssh://user@host:2222 or ssh host")
    return Destination(host=(match["user"] or "") + match["host"].strip("[]"), port=port)


def fetch(destinations: Sequence[Destination], *, timeout: int, config: Path | None = None) -> list[Answer]:
    """Return the answers of all machines in order; AT_ONCE run at a time, for at most `timeout` seconds each.

    `config` replaces the user's ~/.ssh/config. Raises UsageError where there is no ssh.
    """
    if not destinations:
        return []
    program = find()
    if program is None:
        raise UsageError("there is no ssh on PATH", hint="apt-get install openssh-client, or record the CPUs in files")
    # On an interrupt, `map` skips the machines still waiting.
    with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
        return list(pool.map(lambda machine: _ask(program, machine, timeout, config), destinations))


def find() -> str | None:
    """Return the path of the system's ssh; None where it has none."""
    return shutil.which("ssh")


def command(program: str, machine: Destination, run: str, *options: str, timeout: int) -> list[str]:
    """Return the ssh command that runs the command line `run` there; `timeout`: seconds to connect."""
    port = ("-p", str(machine.port)) if machine.port else ()
    return [program, *OPTIONS, "-o", f"ConnectTimeout={timeout}", *options, *port, "--", machine.host, run]


def _ask(program: str, machine: Destination, timeout: int, config: Path | None) -> Answer:
    options = ("-F", str(config)) if config else ()
    try:
        completed = subprocess.run(
            command(program, machine, COMMAND, *options, timeout=timeout),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return _failed(machine, f"timed out: no answer within {timeout} s")
    if completed.returncode == 0:
        return Answer(text=completed.stdout)
    return _failed(machine, reason(completed.stderr, completed.returncode))


def reason(output: str, code: int) -> str:
    """Return the last line of ssh or the command; the lines before it are banners and warnings."""
    lines = ["".join(filter(str.isprintable, line)).strip() for line in output.splitlines()]
    last = next((line for line in reversed(lines) if line), "")
    if any(CHANGED in line for line in lines) and last:
        return f"{CHANGED}: {last}"
    return last or (f"ssh ended with {code}" if code == NOT_CONNECTED else f"the command there ended with {code}")


def advice(machine: Destination, reason: str, rows: Sequence[tuple[str, str]], otherwise: str) -> str:
    """Return the hint of the first row (a part of the reason, the hint) that matches `reason`."""
    return next((hint for part, hint in rows if part in reason), otherwise).format(host=machine.host)


def _failed(machine: Destination, reason: str) -> Answer:
    return Answer(reason=reason, hint=advice(machine, reason, (*HINTS, OF_RECORDINGS), OTHERWISE))
