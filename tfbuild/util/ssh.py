"""Hosts that the system's ssh reaches, with the user's keys and settings: names, commands, and why one failed."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tfbuild.errors import UsageError

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
    ("timed out", "is it switched on, and reachable from here?"),
)
# Override settings of the user that would interfere with a single command.
OPTIONS = ("-T", "-o", "BatchMode=yes", "-o", "RemoteCommand=none", "-o", "ClearAllForwardings=yes")


@dataclass(frozen=True, kw_only=True)
class Destination:
    """The host to connect to; `port`: 0 for the default of ssh."""

    host: str
    port: int = 0

    def __str__(self) -> str:
        return f"ssh://{self.host}" + (f":{self.port}" if self.port else "")


def destination(text: str) -> Destination:
    """Parse ``ssh://user@host:port`` or ``ssh user@host``. Raises UsageError for anything else."""
    match = DESTINATION.fullmatch(text)
    port = int((match and match["port"]) or 0)
    if match is None or port > 65535:
        raise UsageError(f"{text!r} names no ssh host", hint="ssh://user@host, ssh://user@host:2222 or ssh host")
    return Destination(host=(match["user"] or "") + match["host"].strip("[]"), port=port)


def command(machine: Destination, run: str, *options: str, timeout: int) -> list[str]:
    """Return the ssh command that runs the command line `run` there; `timeout`: seconds to connect."""
    port = ("-p", str(machine.port)) if machine.port else ()
    return ["ssh", *OPTIONS, "-o", f"ConnectTimeout={timeout}", *options, *port, "--", machine.host, run]


def reason(output: str, code: int) -> str:
    """Return the last line of ssh or the command; the lines before it are banners and warnings."""
    lines = ["".join(filter(str.isprintable, line)).strip() for line in output.splitlines()]
    last = next((line for line in reversed(lines) if line), "")
    if any(CHANGED in line for line in lines) and last:
        return f"{CHANGED}: {last}"
    return last or (f"ssh ended with {code}" if code == NOT_CONNECTED else f"the command there ended with {code}")


def advice(machine: Destination, reason: str, run: str, rows: Sequence[tuple[str, str]] = ()) -> str:
    """Return the hint of the first of `rows` and HINTS (a part of the reason, the hint) that matches `reason`.

    If none matches, the hint is to run the command line `run` there by hand.
    """
    by_hand = f"see what this prints: ssh -o BatchMode=yes {{host}} {run}"
    return next((hint for part, hint in (*rows, *HINTS) if part in reason), by_hand).format(host=machine.host)
