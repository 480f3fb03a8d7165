"""The command line: its words become calls of verbs, and mistakes get a message that says what to type."""

import shlex
from argparse import PARSER, ArgumentError, ArgumentParser, HelpFormatter, Namespace
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tfbuild import __version__
from tfbuild.cli import help_pages, hints, output
from tfbuild.cli.verbs import VERBS, Call, Verb, exits
from tfbuild.errors import UsageError
from tfbuild.util import logins, process
from tfbuild.util.installation import COMMAND, command
from tfbuild.util.options import Option

HELP = ("--help", "-h")
LIST = ("--list", "-l")
VERSION = ("--version", "-V")
# Options of Invoke that say where tasks.py and its settings are.
OF_INVOKE = ("--search-root", "-r", "--collection", "-c", "--config", "-f")
COMPLETE, COMPLETION_SCRIPT = "--complete", "--print-completion-script"
# Longer than any word on a Linux command line (MAX_ARG_STRLEN, 128 KiB). Plans hold a value once for each release.
MOST_LETTERS = 131_072


def main(words: Sequence[str], verbs: Mapping[str, Verb]) -> None:
    """Run the verbs on a command line, or print the help, the version or what a shell completes.

    Raises what ending() raises.
    """
    with ending():
        for call in _requested(words, verbs):
            call.run()


def checked(argv: Sequence[str], verbs: Mapping[str, Verb]) -> list[Call]:
    """Return the calls of which Invoke, which parses the command line next, needs tasks.

    Those are the ones on it: Invoke copies every option of every verb that it knows, which takes a tenth of the time of
    `invoke plan`. Another program than Invoke gets one of each verb. Raises SystemExit where the command line is wrong
    or asks for no verb, after the answer is printed.
    """
    program = Path(argv[0])
    if program.name not in ("invoke", "inv") and program.parts[-2:] != ("invoke", "__main__.py"):
        return [Call(verb, {}) for verb in verbs.values()]
    with ending():
        called = _requested(argv[1:], verbs, by_invoke=True)
    if not called:
        raise SystemExit(0)
    return called


@contextmanager
def ending() -> Iterator[None]:
    """Let interrupts and closed pipes end the block as they end other programs.

    Raises SystemExit with tfbuild's exit code after an error, which is printed.
    """
    # Clean up as after Ctrl-C when a CI system ends the process, and when its terminal is closed.
    with exits(), process.interruptible(last=True):
        output.prepare()
        logins.conceal_stored()
        with output.refusals():
            yield


def _requested(words: Sequence[str], verbs: Mapping[str, Verb], *, by_invoke: bool = False) -> list[Call]:
    """Return the calls on a command line, none where it asks for the help, the version or a completion, now printed.

    `by_invoke`: Invoke's own options may come first.
    """
    if COMPLETE in words:
        print(*_completions(words, verbs), sep="\n")
    elif words[:1] == [COMPLETION_SCRIPT]:
        _print_completion_script("".join(words[1:2]))
    else:
        leading = _leading(words, verbs, by_invoke=by_invoke)
        name = _help(words, verbs)
        if {*VERSION} & {*words[:leading]}:
            print(COMMAND, __version__)
        elif name is None and leading < len(words) and not {*LIST} & {*words[:leading]}:
            return calls(words[leading:], verbs)
        else:
            print(help_pages.of_verb(verbs[name]) if name else help_pages.overview(verbs))
    return []


def _completions(words: Sequence[str], verbs: Mapping[str, Verb]) -> list[str]:
    """Return the options of the last verb where an option is begun, else all verbs."""
    verb = next((verbs[word] for word in reversed(words) if word in verbs), None)
    return [f"--{name}" for name in verb.options] if verb and words[-1].startswith("-") else [*verbs]


def _print_completion_script(shell: str) -> None:
    from invoke.completion.complete import print_completion_script
    from invoke.exceptions import ParseError

    try:
        print_completion_script(shell, [command()])
    except ParseError as error:
        raise UsageError(str(error), hint=f"{COMPLETION_SCRIPT} bash") from error


def _verb_name(word: str, verbs: Mapping[str, Verb]) -> str:
    """Return the name of the verb that a word is an alias of; else the word."""
    return next((name for name, verb in verbs.items() if word in verb.aliases), word)


def calls(words: Sequence[str], verbs: Mapping[str, Verb]) -> list[Call]:
    """Return the calls of the verbs on a command line. Raises UsageError for what is wrong."""
    called = []
    while words:
        call, words = _call(words, verbs)
        called.append(call)
    return called


def _leading(words: Sequence[str], verbs: Mapping[str, Verb], *, by_invoke: bool) -> int:
    """Return how many words the options before the first verb take. Raises UsageError for unknown ones."""
    takes_value = dict.fromkeys((*HELP, *LIST, *VERSION), False) | dict.fromkeys(OF_INVOKE if by_invoke else (), True)
    count = 0
    while count < len(words) and words[count].startswith("-"):
        name, equals, _ = words[count].partition("=")
        _refuse_dry(name, verbs)
        if name not in takes_value:
            raise _misplaced(words[count:], verbs)
        count += 2 if takes_value[name] and not equals else 1
    return count


def _help(words: Sequence[str], verbs: Mapping[str, Verb]) -> str | None:
    """Return the verb whose help is requested, "" for the whole help, None where no help is."""
    index = next((index for index, word in enumerate(words) if word.partition("=")[0] in HELP), None)
    if index is None:
        return None
    before = [word for word in words[:index] if _verb_name(word, verbs) in verbs]
    name = _verb_name(words[index].partition("=")[2] or next(iter(before or words[index + 1 :]), ""), verbs)
    if name and name not in verbs:
        raise hints.unknown_verb(name, verbs, command="invoke --help")
    return name


def _refuse_dry(name: str, verbs: Mapping[str, Verb]) -> None:
    """Raise UsageError for Invoke's option that promises to run nothing: it concerns only shell commands of tasks."""
    if name in ("--dry", "-R"):
        having = [verb.name for verb in verbs.values() if "dry-run" in verb.options]
        raise UsageError(
            f"{name} is Invoke's own option: everything would still run",
            hint=f"--dry-run, an option of {', '.join(having)}; or invoke plan",
        )


def _misplaced(words: Sequence[str], verbs: Mapping[str, Verb]) -> UsageError:
    verb = next((verbs[word] for word in words if word in verbs), None)
    option = words[0].partition("=")[0]
    if verb is None:
        able = [verb.name for verb in verbs.values() if option.removeprefix("--") in verb.options]
        hint = f"invoke {'build' if 'build' in able else able[0]} {shlex.join(words)}" if able else "invoke --list"
        return UsageError(f"no verb is given before {option}", hint=hint)
    others = [word for word in words if word != verb.name]
    return UsageError(f"{option} must come after the verb", hint=f"invoke {shlex.join([verb.name, *others])}")


def _call(words: Sequence[str], verbs: Mapping[str, Verb]) -> tuple[Call, Sequence[str]]:
    """Return the call of the first verb, and the words from the next verb on. Raises UsageError."""
    name, following = _verb_name(words[0], verbs), words[1:]
    if name not in verbs:
        raise hints.unknown_verb(name, verbs, following)
    verb, own = verbs[name], _attached(verbs[name], following)
    given, rest = _parse(verb, own, verbs)
    for option, texts in given.items():
        _refuse_values(verb, option, texts)
    bare: list[str] = [word for row in verb.positional if (word := getattr(rest, row.name)) is not None]
    _refuse_bare(verb, bare, rest.rest, given, verbs)
    values: dict[str, Any] = {row.name: word for row, word in zip(verb.positional, bare, strict=False)}
    for option, row in verb.options.items():
        values[option.replace("-", "_")] = value_of(row, given.get(option, []))
    return Call(verb, values), rest.rest


def _attached(verb: Verb, words: Sequence[str]) -> list[str]:
    """Attach values that begin with "-" to their options, without which argparse does not take them for values.

    --bazel-flag, which may be repeated, takes --config=opt, which is another option here.
    """
    attached: list[str] = []
    for word in words:
        row = verb.options.get(attached[-1].removeprefix("--")) if attached and attached[-1].startswith("--") else None
        name, equals, _ = word.partition("=")
        known = name in HELP or name.removeprefix("--") in verb.options
        if row and not row.switch and word.startswith("-") and (not known or (row.repeatable and equals)):
            attached[-1] += f"={word}"
        else:
            attached.append(word)
    return attached


def _parse(verb: Verb, words: list[str], verbs: Mapping[str, Verb]) -> tuple[dict[str, list[str]], Namespace]:
    """Return the values of the given options, and the bare words. Raises UsageError for unknown options."""
    try:
        parsed, unknown = _parser(verb).parse_known_args(words)
    except ArgumentError as error:
        option = str(error.argument_name)
        if verb.options[option.removeprefix("--")].switch:
            raise UsageError(f"{option} takes no value", hint=f"{option} alone, or leave it out") from error
        hint = help_pages.option(verb, option.removeprefix("--"))
        raise UsageError(f"{option} has no value", hint=hint) from error
    if "--" in words:
        unknown = ["--"]
    if unknown:
        _refuse_dry(unknown[0], verbs)
        raise hints.unknown_option(verb, words[words.index(unknown[0]) :], verbs)
    given = {name: values for name, values in vars(parsed).items() if name in verb.options and values}
    # Python 3.11 and 3.12 make an empty list of the value "--".
    return {name: [value if value != [] else "--" for value in values] for name, values in given.items()}, parsed


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


def value_of(row: Option, given: list[str]) -> object:
    """Return an option's value: whether a switch is given, a list for an option that may be repeated, else text."""
    if row.switch:
        return bool(given)
    if row.repeatable:
        return given
    return given[-1] if given else ""


def _refuse_values(verb: Verb, name: str, values: Sequence[str]) -> None:
    """Raise UsageError for values that are empty or too long, and for more of them than the option takes."""
    row = verb.options[name]
    if row.switch:
        return
    if not all(value.strip() for value in values):
        raise UsageError(f"--{name} has no value", hint=f"leave it out, or {help_pages.option(verb, name)}")
    for value in values:
        _refuse_long(f"--{name}", value)
    if len(values) > 1 and not row.repeatable:
        several = VERBS["matrix"].options.get(name)
        listed = "; a run makes one image, and invoke matrix lists many" if several and several.repeatable else ""
        raise UsageError(
            f"--{name} is given {len(values)} times: {', '.join(values)}",
            hint=f"give one of them{listed}" if len(set(values)) > 1 else "give it once",
        )


def _refuse_long(name: str, text: str) -> None:
    if len(text) > MOST_LETTERS:
        raise UsageError(f"{name} has {len(text):,} characters", hint=f"at most {MOST_LETTERS:,} in one word")


def _refuse_bare(
    verb: Verb, bare: Sequence[str], rest: Sequence[str], given: Collection[str], verbs: Mapping[str, Verb]
) -> None:
    """Raise UsageError for bare words that the verb does not take, and for those that it lacks."""
    for word in (*bare, *rest[:1]):
        _refuse_long(word, word)
    if empty := next((row.name.upper() for row, word in zip(verb.positional, bare, strict=False) if not word), ""):
        raise UsageError(f"{empty} is empty", hint=f"{empty}: {help_pages.ARGUMENTS[empty.lower()]}")
    if len(bare) < len(verb.required):
        needs = " ".join(help_pages.placeholders(verb))
        meanings = (f"{row.name.upper()}: {help_pages.ARGUMENTS[row.name]}" for row in verb.positional)
        raise UsageError(f"{verb.name} needs {needs}", hint="; ".join(meanings))
    if rest and _verb_name(rest[0], verbs) not in verbs:
        raise hints.bare_word(verb, [*bare, rest[0]], given)
