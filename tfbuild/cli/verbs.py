"""The decorator that makes a function a verb, and the Invoke tasks made from verbs for one command line."""

import functools
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import Parameter, Signature, signature
from typing import Any, TypeVar

from invoke.collection import Collection
from invoke.context import Context
from invoke.tasks import Task

from tfbuild.cli import output
from tfbuild.cli.options import Options
from tfbuild.errors import Interrupted, UsageError
from tfbuild.installation import as_typed

Body = Callable[..., None]
B = TypeVar("B", bound=Body)


@dataclass(frozen=True)
class Verb:
    """A function for the command line, and the options that it takes as keywords."""

    body: Body
    options: Options

    @property
    def name(self) -> str:
        return self.body.__name__


# The verbs of every tfbuild. Those that need a clone of the repository are a table of their own (repository.py).
VERBS: dict[str, Verb] = {}


def verb(*groups: Options, table: dict[str, Verb] = VERBS) -> Callable[[B], B]:
    """Make a function a verb of `table` with the options of `groups`; its docstring is the verb's help.

    The function itself is unchanged. Invoke's help shows its positional parameters; keyword-only ones that are in no
    group stay hidden, and need a default.
    """

    def register(body: B) -> B:
        table[body.__name__] = Verb(body, {name: row for group in groups for name, row in group.items()})
        return body

    return register


def collection(*tables: Mapping[str, Verb]) -> Collection:
    """Make a task of each verb in `tables`, for this command line.

    Invoke supports neither "one or more" nor optional positional arguments, so the parameters of a task depend on
    `sys.argv`.
    """
    return Collection(*(_task(verb) for table in tables for verb in table.values()))


def _task(verb: Verb) -> "Task[Body]":
    positional, variadic = _positional(verb)
    keywords = [
        Parameter(name.replace("-", "_"), Parameter.KEYWORD_ONLY, default=default)
        for name, (default, _) in verb.options.items()
    ]
    run = _guarded(verb, variadic)
    context = Parameter("_", Parameter.POSITIONAL_OR_KEYWORD)
    run.__signature__ = Signature([context, *positional, *keywords])  # type: ignore[attr-defined]
    lists = [name.replace("-", "_") for name, (default, _) in verb.options.items() if isinstance(default, list)]
    helps = {name: as_typed(text) for name, (_, text) in verb.options.items()}
    return Task(run, help=helps, iterable=lists, auto_shortflags=False)


def _guarded(verb: Verb, variadic: list[str]) -> Body:
    """Wrap the verb for Invoke, so that interrupts and closed pipes end it as they end other programs."""

    @functools.wraps(verb.body)
    def run(_: Context, **kwargs: Any) -> None:
        arguments = [kwargs.pop(name) for name in variadic]
        # Invoke takes --help for a positional argument where that is still missing.
        if {"--help", "-h"} & {value for value in (*arguments, *kwargs.values()) if isinstance(value, str)}:
            raise UsageError("--help comes before the verb", hint=f"invoke --help {verb.name}")
        # Clean up as after Ctrl-C when a CI system ends the process.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            verb.body(*arguments, **kwargs)
            sys.stdout.flush()
        except BrokenPipeError:
            output.exit_on_closed_pipe()
            raise
        except KeyboardInterrupt:
            raise Interrupted("interrupted; everything that ran was stopped and cleaned up") from None

    return run


def _positional(verb: Verb) -> tuple[list[Parameter], list[str]]:
    """Return the verb's positional parameters, and the names of those that stand for its `*parameter`.

    There is one of the latter for each such argument on the command line.
    """
    parameters = list(signature(verb.body).parameters.values())
    many = next((parameter.name for parameter in parameters if parameter.kind is parameter.VAR_POSITIONAL), "")
    count = max(1, _argument_count(verb)) if many else 0
    variadic = [f"{many}_{number + 1}" if number else many for number in range(count)]
    plain = [parameter for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    if _called(verb.name) and not _argument_count(verb):
        plain = [parameter for parameter in plain if parameter.default is parameter.empty]
    plain = [parameter.replace(default=parameter.empty) for parameter in plain]
    return [*plain, *(Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in variadic)], variadic


def _called(name: str) -> bool:
    """Return whether the command line calls the verb, and not just its help, which shows all parameters."""
    return name in sys.argv and not {"--help", "-h"} & {*sys.argv[: sys.argv.index(name)]}


def _argument_count(verb: Verb) -> int:
    """Count the words of the command line that are neither options of the verb nor their values."""
    valued = {f"--{option}" for option, (default, _) in verb.options.items() if not isinstance(default, bool)}
    following = sys.argv[sys.argv.index(verb.name) + 1 :] if verb.name in sys.argv else []
    values = sum(word in valued for word in following)
    return sum(not word.startswith("-") for word in following) - values
