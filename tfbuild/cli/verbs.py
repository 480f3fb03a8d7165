"""Make functions verbs by a decorator, and run them with the values of a command line."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import Any, TypeVar

from tfbuild.cli.output import say_note
from tfbuild.errors import UsageError, has_login
from tfbuild.plan import Request, options_file
from tfbuild.util.options import Option, Options

Body = Callable[..., None]
B = TypeVar("B", bound=Body)
# Options by their names: those of a request, or a verb's own (default, help, what stands for the value).
Rows = Mapping[str, Option | tuple[Any, ...]]


@dataclass(frozen=True)
class Verb:
    """A function for the command line, the options that it takes as keywords, and commands to show in its help.

    `settings`: the options that a file may set.
    """

    body: Body
    options: Options
    settings: Options
    examples: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.body.__name__

    @property
    def positional(self) -> tuple[Parameter, ...]:
        """The parameters that are words on the command line."""
        parameters = signature(self.body).parameters.values()
        return tuple(parameter for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD)

    @property
    def required(self) -> tuple[Parameter, ...]:
        """The positional parameters that cannot be left out."""
        return tuple(parameter for parameter in self.positional if parameter.default is parameter.empty)

    def settled(self, words: Mapping[str, Any]) -> dict[str, Any]:
        """Return the value of each option: from the command line, else from a file of options, else the default.

        `words`: the values of a command line, where an option that is not given is "", [] or False. `origins`, where
        the verb reads a file, says where each value of `settings` is from. Raises UsageError.
        """
        values = {name.replace("-", "_"): row.default for name, row in self.options.items()}
        given = {name: value for name, value in words.items() if value or name not in values}
        if not self.settings:
            return {**values, **given}
        file = options_file.find_options_file(given.get("options", ""))
        # Not in a job of CI, which gets a row's options.
        if file.builds and not Request.__dataclass_fields__.keys() & given.keys():
            say_note(f"the [[build]] tables of {file.path} are for `invoke matrix`, and are ignored here")
        of_file = {name.replace("-", "_"): value for name, value in file.values.items() if name in self.settings}
        places = {name: COMMAND_LINE if name.replace("-", "_") in given else file.path for name in self.settings}
        origins = {name: place for name, place in places.items() if name.replace("-", "_") in {**of_file, **given}}
        return {**values, **of_file, **given, "origins": origins}

    def run(self, words: Mapping[str, Any]) -> None:
        """Run the verb with the values of a command line."""
        values = self.settled(words)
        _refuse_logins(self, values)
        self.body(**values)


COMMAND_LINE = "command line"
# Of the verbs that make or plan one build, and that read a file of options.
SETTINGS: Options = {
    "options": Option("", "file with options (default: tfbuild.toml, or tool.tfbuild in pyproject.toml)", "FILE"),
}
# The verbs of every tfbuild. Those that need a clone of the repository are a table of their own (tools/verbs.py).
VERBS: dict[str, Verb] = {}


def verb(*groups: Rows, examples: tuple[str, ...] = (), table: dict[str, Verb] = VERBS) -> Callable[[B], B]:
    """Register a function as a verb of `table` with the options of `groups`; its docstring begins the verb's help.

    The function itself is unchanged. Its positional parameters are words on the command line, each given once, and
    required unless it has a default; keyword-only ones that are in no group stay hidden, and need a default.
    """

    def register(body: B) -> B:
        rows = {name: row for group in groups for name, row in group.items()}
        options = {name: row if isinstance(row, Option) else Option(*row) for name, row in rows.items()}
        of_files = options_file.ALL_OPTIONS if SETTINGS in groups else ()
        settings = {name: row for name, row in options.items() if name in of_files}
        made = Verb(body, options, settings, examples)
        table[made.name] = made
        return body

    return register


# Free text, and the names of files.
UNREAD = ("output", "yank")


def _refuse_logins(verb: Verb, values: Mapping[str, Any]) -> None:
    """Raise UsageError for a value that would be printed, stored or seen by `ps` with a password in it."""
    for name, value in values.items():
        texts = value if isinstance(value, list | tuple) else [value]
        if name not in UNREAD and any(isinstance(text, str) and has_login(text) for text in texts):
            option = name.replace("_", "-")
            raise _login_in(f"--{option}" if option in verb.options else name.upper())


def variable(name: str) -> str:
    """Return the address in an environment variable, "" if it is not set. Raises UsageError if it has a password."""
    value = os.environ.get(name, "")
    if has_login(value):
        raise _login_in(name)
    return value


def _login_in(name: str) -> UsageError:
    return UsageError(
        f"{name} has a user or a password in its address, which others could read",
        hint="docker login HOST for a registry; ~/.netrc for an index; --remote-header-file FILE for a cache; for a "
        "mirror, a file that `invoke bundle` wrote",
    )
