"""The command line: its words become calls of verbs, and mistakes get a message that says what to type."""

import shlex
import sys
from argparse import PARSER, ArgumentError, ArgumentParser, HelpFormatter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from tfbuild import __version__
from tfbuild.cli import help_pages, output
from tfbuild.cli.verbs import Verb
from tfbuild.errors import Interrupted, TfbuildError, UsageError
from tfbuild.util import COMMAND, as_typed, command, process, terminal

HELP = ("--help", "-h")
LIST = ("--list", "-l")
VERSION = ("--version", "-V")
INTERRUPTED = "interrupted; everything that ran was stopped and cleaned up"
SHELLS = ("bash", "zsh", "fish")
COMPLETE, COMPLETION_SCRIPT = "--complete", "--print-completion-script"


def main(words: Sequence[str], verbs: Mapping[str, Verb]) -> None:
    """Run the verbs on a command line, or print the help, the version or what a shell completes.

    Raises what ending() raises.
    """
    with ending():
        first = words[0] if words else LIST[0]
        name = None if COMPLETE in words else _help(words, verbs)
        if COMPLETE in words:
            # The options of the last verb where an option is begun, else all verbs.
            verb = next((verbs[word] for word in reversed(words) if word in verbs), None)
            options = verb.options if verb and words[-1].startswith("-") else {}
            print("\n".join(f"--{name}" for name in options) or "\n".join(verbs))
        elif first == COMPLETION_SCRIPT:
            from invoke.completion.complete import print_completion_script

            if (shell := "".join(words[1:2])) not in SHELLS:
                raise UsageError(f"no completion for {shell!r}", hint=f"{COMPLETION_SCRIPT} {' or '.join(SHELLS)}")
            print_completion_script(shell, [command()])
        elif first in VERSION:
            print(COMMAND, __version__)
        elif first in LIST or name is not None:
            print(help_pages.of_verb(verbs[name]) if name else help_pages.overview(verbs))
        elif first.startswith("-"):
            after = next((word for word in words if word in verbs), "build")
            line = [after, *(word for word in words if word != after)]
            calls(line, verbs)  # refuses an option that the verb does not have
            raise UsageError(f"{first.partition('=')[0]} must come after a verb", hint=f"invoke {shlex.join(line)}")
        else:
            for called, values in calls(words, verbs):
                called.run(values)


@contextmanager
def ending() -> Iterator[None]:
    """Let interrupts and closed pipes end the block as they end other programs.

    Raises SystemExit with tfbuild's exit code after an error, which is printed.
    """
    # Clean up as after Ctrl-C when a CI system ends the process, and when its terminal is closed.
    with process.interruptible(last=True):
        try:
            output.prepare()
            terminal.conceal_logins()
            with output.refusals():
                yield
        except (KeyboardInterrupt, TfbuildError) as error:
            ended = error if isinstance(error, TfbuildError) else Interrupted(INTERRUPTED)
            ended.hint = as_typed(ended.hint)
            with suppress(OSError):
                print(ended, file=sys.stderr)
            output.flush_stdout()  # the error's exit code counts, even if nobody reads what was printed before
            raise SystemExit(ended.exit_code) from None


def _help(words: Sequence[str], verbs: Mapping[str, Verb]) -> str | None:
    """Return the verb whose help is requested, "" for the whole help, None where no help is."""
    requested = (index for index, word in enumerate(words) if word.partition("=")[0] in HELP)
    index = 0 if words[:1] == ["help"] else next(requested, None)
    if index is None:
        return None
    before = [word for word in words[:index] if word in verbs]
    name = words[index].partition("=")[2] or next(iter(before or words[index + 1 :]), "")
    if name and name not in verbs:
        raise help_pages.unknown_verb(name, verbs)
    return name


def calls(words: Sequence[str], verbs: Mapping[str, Verb]) -> list[tuple[Verb, dict[str, Any]]]:
    """Return the verbs on a command line, each with the values of its words. Raises UsageError for what is wrong."""
    called = []
    while words:
        verb, values, words = _call(words, verbs)
        called.append((verb, values))
    return called


def _call(words: Sequence[str], verbs: Mapping[str, Verb]) -> tuple[Verb, dict[str, Any], Sequence[str]]:
    """Return the first verb with the values of its words, and the words from the next verb on. Raises UsageError."""
    if words[0] not in verbs:
        raise help_pages.unknown_verb(words[0], verbs)
    verb = verbs[words[0]]
    try:
        parsed, unknown = _parser(verb).parse_known_args(words[1:])
    except ArgumentError as error:
        option = str(error.argument_name)
        if verb.options[option.removeprefix("--")].switch:
            raise UsageError(f"{option} takes no value", hint=f"{option} alone, or leave it out") from error
        raise _valueless(verb, option.removeprefix("--")) from error
    if unknown:
        raise help_pages.unknown_option(verb, unknown[0], verbs)
    given: dict[str, list[Any]] = vars(parsed)
    values = {name.replace("-", "_"): _value_of(verb, name, given[name] or []) for name in verb.options}
    bare = [word for row in verb.positional if (word := getattr(parsed, row.name)) is not None]
    if len(bare) < len(verb.required) or not all(bare):
        meanings = (f"{row.name.upper()}: {help_pages.ARGUMENTS[row.name]}" for row in verb.positional)
        needed = " ".join(row.name.upper() for row in verb.positional)
        raise UsageError(f"{verb.name} needs {needed}", hint="; ".join(meanings))
    if parsed.rest and parsed.rest[0] not in verbs:
        raise help_pages.bare_word(verb, [*bare, parsed.rest[0]])
    return verb, values | {row.name: word for row, word in zip(verb.positional, bare, strict=False)}, parsed.rest


def _parser(verb: Verb) -> ArgumentParser:
    """Return a parser of a verb's words. Nothing is required, so that unknown options are reported first."""
    # A formatter with a width does not ask the terminal, which would import much.
    formatter = partial(HelpFormatter, width=help_pages.PLAIN_WIDTH)
    parser = ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False, formatter_class=formatter)
    for row in verb.positional:
        parser.add_argument(row.name).required = False
    for name, option in verb.options.items():
        if option.switch:
            parser.add_argument(f"--{name}", dest=name, action="append_const", const="")
        else:
            parser.add_argument(f"--{name}", dest=name, action="append")
    # The next verb, with its words.
    parser.add_argument("rest", nargs=PARSER, default=[]).required = False
    return parser


def _value_of(verb: Verb, name: str, given: list[Any]) -> Any:
    """Return an option's value: whether a switch is given, a list for an option that may be repeated, else text."""
    row = verb.options[name]
    if row.switch:
        return bool(given)
    # Python 3.11 and 3.12 make an empty list of the value "--".
    texts = [text if text != [] else "--" for text in given]
    if not all(text.strip() for text in texts):
        raise _valueless(verb, name)
    if row.repeatable:
        return texts
    if len(texts) > 1:
        hint = "give it once; invoke matrix lists many builds"
        raise UsageError(f"--{name} is given {len(texts)} times: {', '.join(texts)}", hint=hint)
    return texts[0] if texts else ""


def _valueless(verb: Verb, name: str) -> UsageError:
    hint = f"{help_pages.option_usage(name, verb.options[name])}; a value that begins with a dash: --{name}=-VALUE"
    return UsageError(f"--{name} has no value", hint=hint)
