"""The verbs as Invoke's tasks: for `invoke`, and for what the command `tfbuild` leaves to Invoke."""

import functools
import sys
from collections.abc import Mapping
from inspect import Parameter, Signature
from typing import Any

from invoke.collection import Collection
from invoke.context import Context
from invoke.program import Program
from invoke.tasks import Task

from tfbuild import __version__
from tfbuild.cli import output
from tfbuild.cli.verbs import Body, Call, Verb, exits
from tfbuild.util.installation import COMMAND, as_typed, command
from tfbuild.util.options import Option


def collection(*tables: Mapping[str, Verb]) -> Collection:
    """Make a task of each verb in `tables`."""
    return Collection(*(_task(verb) for table in tables for verb in table.values()))


def _task(verb: Verb) -> "Task[Body]":
    keywords = [
        Parameter(name.replace("-", "_"), Parameter.KEYWORD_ONLY, default=_not_given(row))
        for name, row in verb.options.items()
    ]

    @functools.wraps(verb.body)
    def run(_: Context, **values: Any) -> None:
        Call(verb, values).run()

    context = Parameter("_", Parameter.POSITIONAL_OR_KEYWORD)
    run.__signature__ = Signature([context, *verb.positional, *keywords])  # type: ignore[attr-defined]
    lists = [name.replace("-", "_") for name, row in verb.options.items() if row.repeatable]
    helps = {name: as_typed(row.help) for name, row in verb.options.items()}
    return Task(run, aliases=verb.aliases, help=helps, iterable=lists, auto_shortflags=False)


def _not_given(row: Option) -> object:
    """Return what Invoke passes for an option that is not given; it takes an option's type from that."""
    return False if row.switch else [] if row.repeatable else ""


def run(verbs: Mapping[str, Verb]) -> None:
    """Let Invoke complete the command line, or print the script by which a shell asks for that."""
    binary = "inv[oke]" if command() == "invoke" else command()
    program = Program(name=COMMAND, binary=binary, version=__version__, namespace=collection(verbs))
    with exits(), output.refusals():
        try:
            program.run(sys.argv)
        finally:
            sys.stdout.flush()
