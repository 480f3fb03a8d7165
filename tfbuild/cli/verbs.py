"""Make functions verbs by a decorator, and run them with the values of a command line."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import Any, NoReturn, TypeVar

from tfbuild.errors import Interrupted, TfbuildError, UsageError, has_login
from tfbuild.plan import options_file
from tfbuild.util.installation import as_typed
from tfbuild.util.options import Option, Options

Body = Callable[..., None]
B = TypeVar("B", bound=Body)
# Options by their names: those of a request, or a verb's own (default, help, what stands for the value).
Rows = Mapping[str, Option | tuple[Any, ...]]


@dataclass(frozen=True)
class Verb:
    """A function for the command line, the options that it takes as keywords, and commands to show in its help.

    `settings`: those of its options that a file of options may have.
    `aliases`: former names, which still work.
    """

    body: Body
    options: Options
    settings: Options
    examples: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.body.__name__.replace("_", "-")

    @property
    def positional(self) -> tuple[Parameter, ...]:
        """The parameters that are words on the command line."""
        parameters = signature(self.body).parameters.values()
        return tuple(parameter for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD)

    @property
    def required(self) -> tuple[Parameter, ...]:
        """Those of the words that cannot be left out."""
        return tuple(parameter for parameter in self.positional if parameter.default is parameter.empty)


# The options that a file can have.
OF_REQUESTS = options_file.KNOWN
COMMAND_LINE = "command line"
# Of the verbs that make or plan one build, and that read a file of options.
SETTINGS: Options = {
    "options": Option("", "file with options (default: tfbuild.toml, or tool.tfbuild in pyproject.toml)", "FILE"),
}
# The verbs of every tfbuild. Those that need a clone of the repository are a table of their own (tools/verbs.py).
VERBS: dict[str, Verb] = {}


def verb(
    *groups: Rows, examples: tuple[str, ...] = (), aliases: tuple[str, ...] = (), table: dict[str, Verb] = VERBS
) -> Callable[[B], B]:
    """Make a function a verb of `table` with the options of `groups`; its docstring begins the verb's help.

    The function itself is unchanged. Its positional parameters are words on the command line, each given once, and
    required unless it has a default; keyword-only ones that are in no group stay hidden, and need a default.
    """

    def register(body: B) -> B:
        rows = {name: row for group in groups for name, row in group.items()}
        options = {name: row if isinstance(row, Option) else Option(*row) for name, row in rows.items()}
        settings = {name: row for name, row in options.items() if name in OF_REQUESTS} if SETTINGS in groups else {}
        made = Verb(body, options, settings, examples, aliases)
        table[made.name] = made
        return body

    return register


@dataclass(frozen=True)
class Call:
    """A verb with the values of its words and options. An option that is not given is "", [] or False."""

    verb: Verb
    values: Mapping[str, Any]

    def settled(self) -> dict[str, Any]:
        """Return the values with which the verb runs: those that are given, then those of a file, then the defaults.

        `origins`, where the verb reads a file, says where each value of `settings` is from. Raises UsageError.
        """
        values = {name.replace("-", "_"): row.default for name, row in self.verb.options.items()}
        given = {name: value for name, value in self.values.items() if value or name not in values}
        if self.verb.settings:
            settings = _settings(self.verb, given)
            given |= {name.replace("-", "_"): value for name, (value, _) in settings.items()}
            given["origins"] = {name: origin for name, (_, origin) in settings.items()}
        return {**values, **given}

    def run(self) -> None:
        """Run the verb with the values that it was given."""
        values = self.settled()
        _refuse_logins(self.verb, values)
        self.verb.body(**values)


# Where a login belongs in place of these addresses.
STORED_LOGINS = {
    **dict.fromkeys(
        ("--index", "--wheel", "TFBUILD_INDEX"),
        "put the login into ~/.netrc: machine HOST login USER password PASSWORD",
    ),
    "--mirror": "use a mirror that needs no login, or a file that `invoke bundle` wrote",
}
# Free text, and the names of files.
UNREAD = ("command", "output", "yank")


def _refuse_logins(verb: Verb, values: Mapping[str, Any]) -> None:
    """Raise UsageError for a value that would be printed, stored or seen by `ps` with a password in it."""
    for parameter, value in values.items():
        name = parameter.replace("_", "-")
        texts = value if isinstance(value, list | tuple) else [value]
        if name not in UNREAD and any(isinstance(text, str) and has_login(text) for text in texts):
            shown = name.upper() if name in {word.name for word in verb.positional} else f"--{name}"
            raise _login_in(shown)


def variable(name: str) -> str:
    """Return the address in an environment variable, "" if it is not set. Raises UsageError if it has a password."""
    value = os.environ.get(name, "")
    if has_login(value):
        raise _login_in(name)
    return value


def _login_in(name: str) -> UsageError:
    return UsageError(
        f"{name} has a user or a password in its address, which others could read",
        hint=STORED_LOGINS.get(
            name, "docker login HOST for a registry; --remote-header-file FILE for a cache; ssh's own keys"
        ),
    )


def _settings(verb: Verb, given: Mapping[str, Any]) -> dict[str, tuple[Any, str]]:
    """Return value and origin of the options of a request that the command line or a file has, by their names."""
    typed = {name: given[field] for name in verb.settings if (field := name.replace("-", "_")) in given}
    file = options_file.find(given.get("options", ""))
    settings = {name: (value, file.path) for name, value in file.values.items()}
    settings |= {name: (value, COMMAND_LINE) for name, value in typed.items()}
    return {name: settings[name] for name in verb.settings if name in settings}


@contextmanager
def exits() -> Iterator[None]:
    """Print an error, with the command in use in its hint, and exit with its code."""
    try:
        yield
    except KeyboardInterrupt:
        _exit(Interrupted("interrupted; everything that ran was stopped and cleaned up"))
    except TfbuildError as error:
        _exit(error)


def _exit(error: TfbuildError) -> NoReturn:
    error.hint = as_typed(error.hint)
    print(error, file=sys.stderr)
    raise SystemExit(error.exit_code) from None
