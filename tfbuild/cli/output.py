"""Print data to stdout, in the terminal's width, and everything else to stderr."""

import errno
import io
import json
import os
import re
import signal
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfbuild.errors import DiskFull, TfbuildError, UsageError, fit, without_secrets
from tfbuild.facts import toolchains
from tfbuild.plan import Build
from tfbuild.util import as_typed, terminal

if TYPE_CHECKING:
    from tfbuild.bench.gain import MeasuredGain
    from tfbuild.cpu.isa import CpuEntry
    from tfbuild.plan.explain import FeatureRow
    from tfbuild.publish.choose import Choice
    from tfbuild.publish.pushing import Pushed

# The fields of a plan that people look for first; with --full, the others follow in the order of its JSON.
FIRST = ("id", "release", "python", "target", "platform", "instruction_set", "wheel", "compiler", "copts", "base_image",
         "cuda", "cudnn", "compute_capabilities")  # fmt: skip
# Notes that explain a choice: a fix by its ID, and a base with a compiler that is known to fail.
EXPLAINING_NOTE = re.compile(r"fix [\w-]+: |\S+ on \S+ is passed over ")
# Parts of other fields.
PARTS_OF_FIELDS = ("level", "notes")


def out(data: object) -> None:
    """Print one JSON document to stdout, without secrets."""
    print(json.dumps(_shown(data), indent=2))


def result(document: object, line: str, said: str = "", *, json: bool) -> None:
    """Print what a verb did: as JSON the document; else a line to stdout, if there is one, and one to stderr."""
    if json:
        out(document)
        return
    if line:
        print(line)
    if said:
        say(said)


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


def prepare() -> None:
    """Let stdout print any character, as an escape if its encoding lacks it.

    Raises UsageError if stdout is closed: the output would go into the next file that is opened.
    """
    for name in ("stdin", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r+", encoding="utf-8"))  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        raise UsageError("standard output is closed", hint="redirect it: >/dev/null")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


@contextmanager
def refusals() -> Iterator[None]:
    """Turn system errors that no verb handles into errors of tfbuild, and exit if nobody reads stdout (`| head`)."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # As a process that SIGPIPE kills.
        flush_stdout()
        raise SystemExit(128 + signal.SIGPIPE) from None
    except OSError as error:
        if (refusal := _refused(error)) is None:
            raise
        raise refusal from error


def _refused(error: OSError) -> TfbuildError | None:
    """Return the error for what the system refuses: stdout, a full disk, a file by its name; None for anything else."""
    path = str(getattr(error, "filename", None) or "")
    if not flush_stdout():
        path = "standard output"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        import tempfile

        # A write that fails does not say where.
        path = path or f"{Path.cwd()}, {tempfile.gettempdir()} or standard output"
        return DiskFull(f"cannot write to {path}: {error.strerror}", hint="free some space: df -h; df -i; ulimit -f")
    if "No usable temporary directory" in str(error):
        return UsageError(f"{error.strerror}", hint="name a folder in TMPDIR; see also df -h and ulimit -n")
    if error.errno == errno.ENOENT and not path:  # of getcwd(2)
        return UsageError("the current folder was removed", hint="go to another one: cd")
    if path:
        return UsageError(f"cannot use {path}: {error.strerror}", hint="check its name and its permissions")
    return None


def flush_stdout() -> bool:
    """Flush stdout. If that fails, discard the rest and return False: at its exit Python would try again."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    return True


# --- what verbs print -------------------------------------------------------------------------------------------------


def show_fields(rows: Iterable[tuple[str, str]], *, notes: Sequence[str] = ()) -> None:
    """Print names and values in two columns, then the notes."""
    lines = terminal.two_columns((name, as_typed(value)) for name, value in rows)
    if notes:
        lines += ["", *terminal.two_columns(("note", as_typed(note)) for note in notes)]
    print("\n".join(lines))


def show_plan(build: Build, *, origins: Mapping[str, str] | None = None, full: bool = False) -> None:
    """Print the plan without empty fields: what people look for, or all (`full`). `origins`: of the options given."""
    values = {key: value for key, value in build.to_json().items() if key not in PARTS_OF_FIELDS}
    values["wheel"] = " ".join((build.wheel.kind, build.wheel.requirement, *build.wheel.constraints)).strip()
    if (debian := toolchains.debian_of(build.base_image)) is not None:
        values["base_image"] = f"{build.base_image}, with glibc {debian.glibc}"
    names = [*FIRST, *(name for name in values if full and name not in FIRST)]
    rows = [(name.replace("_", " "), _line(values[name])) for name in names if values[name]]
    if build.toolchain:
        rows.append(("compile takes", build.toolchain.cost.described))
    if origins:
        rows.append(("options", ", ".join(f"{name} ({origin})" for name, origin in origins.items())))
    notes = [note for note in build.notes if full or not EXPLAINING_NOTE.match(note)]
    show_fields(rows, notes=notes)
    if not full:
        say("invoke plan --full shows the rest")


def _line(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{key}={_line(item)}" for key, item in value.items() if item not in (None, ""))
    return " ".join(map(_line, value)) if isinstance(value, list | tuple) else str(value)


def show_features(features: Iterable["FeatureRow"]) -> None:
    """Print one row per CPU feature: green if the build uses it, yellow if only the CPU has it."""
    from rich.text import Text

    from tfbuild.plan.explain import legend

    table = terminal.table(("feature", "CPU", "level", "flag, or why none", "used by"))
    for row in features:
        style = "green" if row.kept else "yellow" if row.cpu == "yes" else "dim"
        cells = (row.feature, row.cpu, row.level, row.reason or row.flag, " ".join(row.used_by) or "unknown")
        table.add_row(*(Text(cell, style) for cell in cells))
    print(terminal.rendered((table, "", Text(legend(), "dim"))), end="")


def show_cpus(entries: Iterable["CpuEntry"]) -> None:
    """Print one row per value of --cpu."""
    rows = ((row.name, row.kind, row.platform, row.compiled_for, ", ".join(row.processors)) for row in entries)
    print(terminal.rendered([terminal.table(("name", "kind", "platform", "compiled for", "processors"), rows)]), end="")


def show_gain(answer: "MeasuredGain") -> None:
    """Print the answer, what was measured, what else there is, and the commands that measure it on this machine."""
    from rich.text import Text

    table = terminal.table(("operation", "speed", ""), answer.operations)
    print(terminal.rendered([Text(as_typed(answer.answer)), "", *((table, "") if answer.report else ())]), end="")
    show_fields([
        *([("measured", answer.report.title)] if answer.report else []),
        ("CPU", f"{answer.cpu}; a build for it: {answer.instruction_set}"),
        ("wheel", f"the official one of {answer.release} is compiled for {answer.wheel}"),
        *((row.name, row.measured) for row in answer.others),
        ("your model", "not measured: invoke bench --python VENV --model DIR --against OTHER measures it"),
        ("compile", answer.compile),
        ("measure it", "invoke bench --python VENV --only isa --against OTHER, with one of the wheels in each"),
    ])  # fmt: skip


def show_pushed(pushed: "Pushed", *, json: bool) -> None:
    """Print the image's reference by its digest, and say which indexes offer it."""
    done = "pushed" if pushed.uploaded else "already in the registry"
    result(pushed.to_json(), f"{pushed.ref}@{pushed.digest}", f"{done}; in {', '.join(pushed.moved)}", json=json)


def show_choice(choice: "Choice") -> None:
    """Say what the best image is, and why."""
    from tfbuild.publish import choose

    for line in choose.explanation(choice):
        say(line)


def show_passed_over(choice: "Choice", *, notable: bool = False) -> None:
    """Say which images were passed over, and why: the notable ones, or all others."""
    from tfbuild.publish import choose

    for line in choose.passed_over_lines(row for row in choice.passed_over if row.notable == notable):
        say(line)


def show_pulled(choice: "Choice", *, reference: str = "", image: str = "", signed: bool = False) -> None:
    """Print the choice as JSON. `image`: its name on the engine, if pulled; `signed`: a signature was checked."""
    names = {"reference": reference, "image": image, "signed": signed}
    out({**choice.to_json(), **{name: value or None for name, value in names.items()}})
