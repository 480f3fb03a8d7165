"""What the CPUs of other machines say, fetched by the system's own ssh with the user's own keys and settings.

Nothing is installed there: `cat` and, where glibc's loader is, its list of CPUID words, for what no kernel prints.
"""

import re
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tfbuild.errors import UsageError

# By sh, whatever shell the user has there. The empty line keeps the loader's words out of the last core's block.
LOADER = "/lib64/ld-linux-x86-64.so.2"
COMMAND = f"sh -c 'cat /proc/cpuinfo && echo && {{ env -i {LOADER} --list-diagnostics 2>/dev/null || true; }}'"
AT_ONCE = 16
# ssh's own exit code where it did not get as far as the command.
NOT_CONNECTED = 255
# Never an option: a destination starts with neither "-" nor a character that a shell would read.
DESTINATION = re.compile(
    r"ssh(://|\s+)(?P<user>[A-Za-z0-9_][\w.+-]*@)?(?P<host>[A-Za-z0-9_][\w.-]*|\[[0-9A-Fa-f:.%\w]+\])(:(?P<port>\d{1,5}))?/?"
)
# It stands above ssh's last line, which says no more than that of a host that is not known yet.
CHANGED = "IDENTIFICATION HAS CHANGED"
HINTS = (
    (CHANGED, "its key is another than before: find out why, then ssh-keygen -R"),
    ("Permission denied", "BatchMode asks nothing: give it a key (ssh-copy-id {host}), or load yours (ssh-add)"),
    ("Host key verification failed", "look at its key and accept it once by hand: ssh {host}"),
    ("Could not resolve hostname", "is the name right? ~/.ssh/config is heeded"),
    ("Connection refused", "no sshd answers on that port: ssh://{host}:PORT"),
    ("No route to host", "is it switched on, and reachable from here?"),
    ("timed out", "is it switched on, and reachable from here? --timeout gives it more seconds"),
)
OF_RECORDINGS = ("/proc/cpuinfo", "it is no Linux: record its CPU there and name the file")
# What a user's own settings may hold that is in the way of one command.
OPTIONS = ("-T", "-o", "BatchMode=yes", "-o", "RemoteCommand=none", "-o", "ClearAllForwardings=yes")
OTHERWISE = "see what this says: ssh -o BatchMode=yes {host} cat /proc/cpuinfo"


@dataclass(frozen=True, kw_only=True)
class Destination:
    """Where ssh goes; `port` is 0 for ssh's own choice."""

    host: str
    port: int = 0

    def __str__(self) -> str:
        return f"ssh://{self.host}" + (f":{self.port}" if self.port else "")


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What came back: the text of a recording, or why there is none and what to do about it."""

    text: str = ""
    reason: str = ""
    hint: str = ""


def destination(text: str) -> Destination:
    """The destination of ``ssh://user@host:port`` or ``ssh user@host``; UsageError for anything else."""
    found = DESTINATION.fullmatch(text)
    if found is None or int(found["port"] or 0) > 65535:
        raise UsageError(f"{text!r} names no ssh host", hint="ssh://user@host, ssh://user@host:2222 or ssh host")
    return Destination(host=(found["user"] or "") + found["host"].strip("[]"), port=int(found["port"] or 0))


def fetch(destinations: Sequence[Destination], *, timeout: int, config: Path | None = None) -> list[Answer]:
    """What each machine says, in their order, AT_ONCE asked at a time for at most `timeout` seconds each.

    `config` takes the place of the user's ~/.ssh/config. Raises UsageError where there is no ssh.
    """
    if not destinations:
        return []
    program = find()
    if program is None:
        raise UsageError("there is no ssh on PATH", hint="apt-get install openssh-client, or record the CPUs in files")
    pool = ThreadPoolExecutor(max_workers=AT_ONCE)
    try:
        return list(pool.map(lambda one: _ask(program, one, timeout, config), destinations))
    finally:
        pool.shutdown(cancel_futures=True)  # interrupted: those that have not been asked are not


def find() -> str | None:
    """The path of the system's ssh; None where it has none."""
    return shutil.which("ssh")


def command(program: str, where: Destination, run: str, *options: str, timeout: int) -> list[str]:
    """The call of ssh that runs the command line `run` there; `timeout`: seconds until it is connected."""
    port = ("-p", str(where.port)) if where.port else ()
    return [program, *OPTIONS, "-o", f"ConnectTimeout={timeout}", *options, *port, "--", where.host, run]


def _ask(program: str, where: Destination, timeout: int, config: Path | None) -> Answer:
    options = ("-F", str(config)) if config else ()
    try:
        done = subprocess.run(
            command(program, where, COMMAND, *options, timeout=timeout),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return _failed(where, f"timed out: no answer within {timeout} s")
    if done.returncode == 0:
        return Answer(text=done.stdout.decode("utf-8", errors="replace"))
    return _failed(where, reason(done.stderr.decode("utf-8", errors="replace"), done.returncode))


def reason(said: str, code: int) -> str:
    """The last line that ssh or the command wrote: the ones before it are banners and warnings."""
    lines = ["".join(filter(str.isprintable, line)).strip() for line in said.splitlines()]
    last = next((line for line in reversed(lines) if line), "")
    if any(CHANGED in line for line in lines) and last:
        return f"{CHANGED}: {last}"
    return last or (f"ssh ended with {code}" if code == NOT_CONNECTED else f"the command there ended with {code}")


def advice(where: Destination, reason: str, rows: Sequence[tuple[str, str]], otherwise: str) -> str:
    """What to do about `reason`: the first of the rows (a part of the reason, the hint) that fits it."""
    return next((hint for part, hint in rows if part in reason), otherwise).format(host=where.host)


def _failed(where: Destination, reason: str) -> Answer:
    return Answer(reason=reason, hint=advice(where, reason, (*HINTS, OF_RECORDINGS), OTHERWISE))
