"""The decorator of verbs, and the Invoke tasks that they become for the words of one command line."""

import functools
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from inspect import Parameter, Signature, signature
from typing import Any, TypeVar

from invoke.collection import Collection
from invoke.context import Context
from invoke.tasks import Task

from tfbuild.cli import output
from tfbuild.cli.options import Options
from tfbuild.errors import Interrupted, UsageError

Body = Callable[..., None]
B = TypeVar("B", bound=Body)


@dataclass(frozen=True)
class Verb:
    """A function of the command line, and the options that it takes as keywords."""

    body: Body
    options: Options

    @property
    def name(self) -> str:
        return self.body.__name__


VERBS: dict[str, Verb] = {}


def verb(*groups: Options) -> Callable[[B], B]:
    """Make a function a verb with the options of `groups`; its docstring is the verb's help.

    The function itself stays as it is. Invoke's help shows its positional parameters; keyword-only ones that no group
    names stay hidden, and need a default.
    """

    def register(body: B) -> B:
        VERBS[body.__name__] = Verb(body, {name: row for group in groups for name, row in group.items()})
        return body

    return register


def collection() -> Collection:
    """Make a task of each verb, for the words of this command line.

    Invoke has no "one or more", nor a word that may be missing, so a task's parameters depend on `sys.argv`.
    """
    return Collection(*map(_task, VERBS.values()))


def _task(verb: Verb) -> "Task[Body]":
    known, words = _positional(verb)
    more = [
        Parameter(name.replace("-", "_"), Parameter.KEYWORD_ONLY, default=default)
        for name, (default, _) in verb.options.items()
    ]
    run = _guarded(verb, words)
    context = Parameter("_", Parameter.POSITIONAL_OR_KEYWORD)
    run.__signature__ = Signature([context, *known, *more])  # type: ignore[attr-defined]
    lists = [name.replace("-", "_") for name, (default, _) in verb.options.items() if isinstance(default, list)]
    helps = {name: text for name, (_, text) in verb.options.items()}
    return Task(run, help=helps, iterable=lists, auto_shortflags=False)


def _guarded(verb: Verb, words: list[str]) -> Body:
    """The verb as Invoke calls it, ending as programs do when they are interrupted or nobody reads their output."""

    @functools.wraps(verb.body)
    def run(_: Context, **kwargs: Any) -> None:
        given = [kwargs.pop(name) for name in words]
        # Invoke takes it for the word that the verb needs where that is not there yet.
        if {"--help", "-h"} & {word for word in (*given, *kwargs.values()) if isinstance(word, str)}:
            raise UsageError("--help comes before the verb", hint=f"invoke --help {verb.name}")
        # What a CI system ends cleans up as after Ctrl-C.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            verb.body(*given, **kwargs)
            sys.stdout.flush()
        except BrokenPipeError:
            output.leave_where_nobody_reads()
            raise
        except KeyboardInterrupt:
            raise Interrupted("interrupted; what ran was stopped and taken down") from None

    return run


def _positional(verb: Verb) -> tuple[list[Parameter], list[str]]:
    """What the verb takes without an option; the names of those that stand for its `*words`.

    There are as many of the latter as on the command line.
    """
    known = list(signature(verb.body).parameters.values())
    many = next((parameter.name for parameter in known if parameter.kind is parameter.VAR_POSITIONAL), "")
    count = max(1, _words(verb)) if many else 0
    words = [f"{many}_{number + 1}" if number else many for number in range(count)]
    plain = [parameter for parameter in known if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    if _called(verb.name) and not _words(verb):
        plain = [parameter for parameter in plain if parameter.default is parameter.empty]
    plain = [parameter.replace(default=parameter.empty) for parameter in plain]
    return [*plain, *(Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in words)], words


def _called(name: str) -> bool:
    """The command line has the verb, and not only to ask for its help, which shows all that it takes."""
    return name in sys.argv and not {"--help", "-h"} & {*sys.argv[: sys.argv.index(name)]}


def _words(verb: Verb) -> int:
    """How many words on the command line are neither options of the verb nor their values."""
    valued = {f"--{option}" for option, (default, _) in verb.options.items() if not isinstance(default, bool)}
    behind = sys.argv[sys.argv.index(verb.name) + 1 :] if verb.name in sys.argv else []
    values = sum(word in valued for word in behind)
    return sum(not word.startswith("-") for word in behind) - values
