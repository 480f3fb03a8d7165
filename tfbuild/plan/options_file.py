"""Options in a file: tfbuild.toml, or the table `tool.tfbuild` of a pyproject.toml.

It has the options of `Request`, `RunRequest` and WHEEL_OPTIONS by their names, for one build, and `[[build]]` tables: a
list of builds. Each row of that list has options of `Request`, and takes the others from the top of the file.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfbuild.errors import UsageError
from tfbuild.plan.request import WHEEL_OPTIONS, Request, RunRequest
from tfbuild.util import options
from tfbuild.util.files import read_named
from tfbuild.util.options import Options, declared

# The options that say how to build, and those with the ones that say what to build: all that a file can have.
RUN_OPTIONS: Options = {**declared(RunRequest), **WHEEL_OPTIONS}
ALL_OPTIONS: Options = {**declared(Request), **RUN_OPTIONS}
FILE_NAME, PYPROJECT = "tfbuild.toml", "pyproject.toml"
BUILD_TABLE = "build"


@dataclass(frozen=True, kw_only=True)
class OptionsFile:
    """The options of a file. `values`: by option; `builds`: its list of builds; `path`: "" if there is no file."""

    path: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    builds: tuple[Request, ...] = ()


def find_options_file(named: str = "", folder: Path = Path()) -> OptionsFile:
    """Read the file that is named, else that of the folder, if it has one.

    Raises UsageError for a file that cannot be read, an unknown option, a value of the wrong type, and for two files.
    """
    paths = [Path(named)] if named else [folder / name for name in (FILE_NAME, PYPROJECT) if (folder / name).is_file()]
    files = [file for path in paths if (file := _read(path))]
    if named and not files:
        raise UsageError(f"{named} has no table tool.tfbuild", hint="[tool.tfbuild]")
    if len(files) > 1:
        raise UsageError(
            f"{' and '.join(file.path for file in files)} both have options", hint="keep one, or name one by --options"
        )
    return files[0] if files else OptionsFile()


def _read(path: Path) -> OptionsFile | None:
    """Read a file; None for a pyproject.toml without options."""
    try:
        text = read_named(path).decode("utf-8-sig")
        # Most have none, and those of others may have mistakes.
        table = tomllib.loads(text) if path.name != PYPROJECT or "tfbuild" in text else {}
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", hint="--options names a TOML file") from error
    except (ValueError, RecursionError) as error:  # TOML, UTF-8, a NUL in the name
        raise UsageError(f"{path} is not TOML: {error}", hint='release = "2.20"') from error
    if path.name != PYPROJECT:
        return _parse(table, str(path))
    tools = table.get("tool")
    own = tools.get("tfbuild") if isinstance(tools, dict) else None
    return None if own is None else _parse(own, str(path))


def _parse(table: object, path: str) -> OptionsFile:
    if not isinstance(table, dict):
        raise UsageError(f"{path}: tool.tfbuild is not a table", hint="[tool.tfbuild]")
    rows = table.get(BUILD_TABLE, [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UsageError(f"{path}: build is not a list of tables", hint="[[build]], with its options below it")
    own = {name: value for name, value in table.items() if name != BUILD_TABLE}
    values = _values(own, ALL_OPTIONS, path)
    builds = (_build(row, values, f"{path}, build {number}") for number, row in enumerate(rows, 1))
    return OptionsFile(path=path, values=values, builds=tuple(builds))


def _values(table: Mapping[str, object], known: Options, where: str) -> dict[str, Any]:
    if unknown := next((name for name in table if name not in known), None):
        raise options.unknown(unknown, known, where)
    return {name: options.of_file(name, known[name], value, where) for name, value in table.items()}


def _build(row: Mapping[str, object], above: Mapping[str, Any], where: str) -> Request:
    if run := next((name for name in row if name in RUN_OPTIONS), None):
        raise UsageError(f"{where}: {run} says how to build, not what", hint=f"put {run} above the first [[build]]")
    own = _values(row, declared(Request), where)
    known = declared(Request)
    usual = [name for name, value in own.items() if not known[name].always and value in (known[name].default, "source")]
    if undone := next((name for name in usual if above.get(name, own[name]) != own[name]), None):
        # A job of CI gets the row's options, without those for default values, and the file again.
        raise UsageError(
            f"{where}: {undone} has another value above the list", hint=f"set {undone} only in the tables that need it"
        )
    return options.make(Request, {name.replace("-", "_"): value for name, value in {**above, **own}.items()})
