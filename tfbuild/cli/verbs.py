"""The decorator that makes a function a verb, and the Invoke tasks made from verbs for one command line."""

import functools
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import Parameter, Signature, signature
from typing import Any, TypeVar

from invoke.collection import Collection
from invoke.context import Context
from invoke.tasks import Task

from tfbuild.cli import output
from tfbuild.cli.options import Options
from tfbuild.errors import Interrupted, TfbuildError
from tfbuild.util import process
from tfbuild.util.installation import as_typed

Body = Callable[..., None]
B = TypeVar("B", bound=Body)


@dataclass(frozen=True)
class Verb:
    """A function for the command line, the options that it takes as keywords, and commands to show in its help."""

    body: Body
    options: Options
    examples: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.body.__name__

    @property
    def positional(self) -> tuple[Parameter, ...]:
        """The parameters that are words on the command line."""
        parameters = signature(self.body).parameters.values()
        return tuple(parameter for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD)


# The verbs of every tfbuild. Those that need a clone of the repository are a table of their own (repository.py).
VERBS: dict[str, Verb] = {}


def verb(*groups: Options, examples: tuple[str, ...] = (), table: dict[str, Verb] = VERBS) -> Callable[[B], B]:
    """Make a function a verb of `table` with the options of `groups`; its docstring begins the verb's help.

    The function itself is unchanged. Its positional parameters are words on the command line, each required and given
    once; keyword-only ones that are in no group stay hidden, and need a default.
    """

    def register(body: B) -> B:
        table[body.__name__] = Verb(body, {name: row for group in groups for name, row in group.items()}, examples)
        return body

    return register


def collection(*tables: Mapping[str, Verb]) -> Collection:
    """Make a task of each verb in `tables`."""
    return Collection(*(_task(verb) for table in tables for verb in table.values()))


def _task(verb: Verb) -> "Task[Body]":
    keywords = [
        Parameter(name.replace("-", "_"), Parameter.KEYWORD_ONLY, default=default)
        for name, (default, _) in verb.options.items()
    ]
    run = _guarded(verb)
    context = Parameter("_", Parameter.POSITIONAL_OR_KEYWORD)
    run.__signature__ = Signature([context, *verb.positional, *keywords])  # type: ignore[attr-defined]
    lists = [name.replace("-", "_") for name, (default, _) in verb.options.items() if isinstance(default, list)]
    helps = {name: as_typed(text) for name, (_, text) in verb.options.items()}
    return Task(run, help=helps, iterable=lists, auto_shortflags=False)


def _guarded(verb: Verb) -> Body:
    """Wrap the verb for Invoke, so that interrupts and closed pipes end it as they end other programs."""

    @functools.wraps(verb.body)
    def run(_: Context, **kwargs: Any) -> None:
        # Clean up as after Ctrl-C when a CI system ends the process, and when its terminal is closed.
        for number in process.ending_signals():
            signal.signal(number, signal.default_int_handler)
        try:
            output.prepare()
            with output.refusals(), hints_as_typed():
                verb.body(**kwargs)
                sys.stdout.flush()
        except KeyboardInterrupt:
            raise Interrupted("interrupted; everything that ran was stopped and cleaned up") from None

    return run


@contextmanager
def hints_as_typed() -> Iterator[None]:
    """Put the command in use into the hint of an error."""
    try:
        yield
    except TfbuildError as error:
        error.hint = as_typed(error.hint)
        error.message = str(error)
        raise
