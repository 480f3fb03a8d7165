"""The decorator that makes a function a verb, and how one is run."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import Any, NoReturn, TypeVar

from tfbuild.cli import output
from tfbuild.errors import Interrupted, TfbuildError
from tfbuild.util import process
from tfbuild.util.installation import as_typed
from tfbuild.util.options import Option, Options

Body = Callable[..., None]
B = TypeVar("B", bound=Body)
# Options by their names: those of a request, or a verb's own (default, help, what stands for the value).
Rows = Mapping[str, Option | tuple[Any, ...]]


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


# The verbs of every tfbuild. Those that need a clone of the repository are a table of their own (tools/verbs.py).
VERBS: dict[str, Verb] = {}


def verb(*groups: Rows, examples: tuple[str, ...] = (), table: dict[str, Verb] = VERBS) -> Callable[[B], B]:
    """Make a function a verb of `table` with the options of `groups`; its docstring begins the verb's help.

    The function itself is unchanged. Its positional parameters are words on the command line, each required and given
    once; keyword-only ones that are in no group stay hidden, and need a default.
    """

    def register(body: B) -> B:
        rows = {name: row for group in groups for name, row in group.items()}
        options = {name: row if isinstance(row, Option) else Option(*row) for name, row in rows.items()}
        table[body.__name__] = Verb(body, options, examples)
        return body

    return register


@dataclass(frozen=True)
class Call:
    """A verb with the values of its words and options."""

    verb: Verb
    values: Mapping[str, Any]

    def run(self) -> None:
        """Run the verb. Interrupts and closed pipes end it as they end other programs.

        Raises SystemExit with tfbuild's exit code after an error, which is printed.
        """
        # Clean up as after Ctrl-C when a CI system ends the process, and when its terminal is closed.
        with exits(), process.interruptible():
            output.prepare()
            with output.refusals():
                self.verb.body(**self.values)
                sys.stdout.flush()


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
