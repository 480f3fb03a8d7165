"""Print data to stdout, and everything else to stderr."""

import codecs
import errno
import io
import json
import os
import select
import signal
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tfbuild.errors import DiskFull, TfbuildError, UsageError, fit, without_secrets
from tfbuild.util import terminal
from tfbuild.util.installation import as_typed

# The name of what Python does with letters that stdout cannot encode.
ESCAPED = "tfbuild.escaped"


def out(data: object) -> None:
    """Print one JSON document to stdout, without secrets."""
    print(json.dumps(_shown(data), indent=2, ensure_ascii=False))


def _shown(data: object) -> object:
    if isinstance(data, dict):
        return {name: _shown(value) for name, value in data.items()}
    if isinstance(data, list | tuple):
        return [_shown(value) for value in data]
    return without_secrets(data) if isinstance(data, str) else data


def say(text: str) -> None:
    """Print one line to stderr, without control characters."""
    print(fit(as_typed(text)), file=sys.stderr)


def say_note(text: str) -> None:
    """Print a note to stderr, wrapped if that is a terminal."""
    columns = terminal.width(stream=sys.stderr)
    lines = textwrap.wrap(fit(as_typed(f"note: {text}")), columns, break_long_words=False, break_on_hyphens=False)
    print("\n".join(lines), file=sys.stderr)


def confirmed(question: str, *, otherwise: str) -> bool:
    """Return the user's answer. Raises UsageError where stdin is not a terminal; `otherwise`: what to do then."""
    if not sys.stdin.isatty():
        raise UsageError("cannot prompt: stdin is not a terminal", hint=otherwise)
    say(f"{question} [y/N]")
    return input().strip().lower() in ("y", "yes")


def prepare() -> None:
    """Let stdout print any character: what its encoding lacks becomes an escape, which JSON reads back.

    Raises UsageError where stdout is closed: the next file that is opened would get what is printed.
    """
    for name in ("stdin", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r+", encoding="utf-8"))  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        raise UsageError("standard output is closed", hint="redirect it: >/dev/null")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors=ESCAPED)


def _escaped(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    letters = error.object[error.start : error.end]
    units = letters.encode("utf-16-be", errors="surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4)), error.end


codecs.register_error(ESCAPED, _escaped)


@contextmanager
def refusals() -> Iterator[None]:
    """Turn system errors that no verb handles into errors of tfbuild, and exit if nothing reads stdout any more."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        exit_on_closed_pipe()
        raise
    except OSError as error:
        if (refusal := _refused(error)) is None:
            raise
        raise refusal from error


def _refused(error: OSError) -> TfbuildError | None:
    """Return the error for what the system refuses: stdout, a full disk, a file by its name; None for anything else."""
    path = str(getattr(error, "filename", None) or "")
    try:
        sys.stdout.flush()
    except OSError:
        discard_stdout()
        path = "standard output"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        import tempfile

        # A write that fails does not say where.
        path = path or f"{Path.cwd()}, {tempfile.gettempdir()} or standard output"
        return DiskFull(f"cannot write to {path}: {error.strerror}", hint="free some space: df -h; df -i; ulimit -f")
    if "No usable temporary directory" in str(error):
        return UsageError(f"{error.strerror}", hint="name a folder in TMPDIR; see also df -h and ulimit -n")
    if path:
        return UsageError(f"cannot use {path}: {error.strerror}", hint="check its name and its permissions")
    return None


def discard_stdout() -> None:
    """Discard what is buffered for stdout: Python flushes it once more when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def exit_on_closed_pipe() -> None:
    """Exit as a process killed by SIGPIPE does, where the reader of stdout is gone (`| head`).

    Raises SystemExit then, and returns where stdout is still read.
    """
    poll = select.poll()
    poll.register(sys.stdout, 0)
    if poll.poll(0):
        discard_stdout()
        raise SystemExit(128 + signal.SIGPIPE)
