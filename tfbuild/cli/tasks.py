"""The verbs as Invoke's tasks, for `invoke`."""

import functools
from collections.abc import Iterable
from inspect import Parameter, Signature
from typing import Any

from invoke.collection import Collection
from invoke.context import Context
from invoke.tasks import Task

from tfbuild.cli import command_line
from tfbuild.cli.verbs import Body, Call
from tfbuild.util.installation import as_typed


def collection(calls: Iterable[Call]) -> Collection:
    """Make a task of each verb that is called."""
    return Collection(*map(_task, calls))


def _task(call: Call) -> "Task[Body]":
    verb = call.verb
    # Invoke has no optional words: to it, a word that is given is required, and one that is left out does not exist.
    words = [
        row.replace(default=Parameter.empty)
        for row in verb.positional
        if row in verb.required or row.name in call.values
    ]
    keywords = [
        # Invoke takes an option's type from its default.
        Parameter(name.replace("-", "_"), Parameter.KEYWORD_ONLY, default=command_line.value_of(row, []))
        for name, row in verb.options.items()
    ]

    @functools.wraps(verb.body)
    def run(_: Context, **values: Any) -> None:
        with command_line.ending():
            Call(verb, values).run()

    context = Parameter("_", Parameter.POSITIONAL_OR_KEYWORD)
    run.__signature__ = Signature([context, *words, *keywords])  # type: ignore[attr-defined]
    lists = [name.replace("-", "_") for name, row in verb.options.items() if row.repeatable]
    helps = {name: as_typed(row.help) for name, row in verb.options.items()}
    return Task(run, aliases=verb.aliases, help=helps, iterable=lists, auto_shortflags=False)
