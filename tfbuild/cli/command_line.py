"""The words of a command line, as calls of verbs: mistakes get a message that says what to type.

Where the user typed `invoke`, Invoke parses the words once more when they are known to be right.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from tfbuild.cli import help_pages, hints, output
from tfbuild.cli.verbs import Call, Verb, exits
from tfbuild.errors import UsageError

HELP = ("--help", "-h")
LIST = ("--list", "-l")
# Options of Invoke itself that have an effect here, and that print something in place of running a verb.
OF_INVOKE = ("--complete", "--print-completion-script", "--version", "-V")
# Longer than any word on a Linux command line (MAX_ARG_STRLEN, 128 KiB). Plans hold a value once for each release.
MOST_LETTERS = 128 << 10
FORMATTED_LIST = ("--list-format", "--list-depth", "-F", "-D")


def is_ours(argv: Sequence[str]) -> bool:
    """Return whether `argv` is a command line of invoke, not that of a program that imports tasks.py."""
    started = Path(argv[0]) if argv else Path()
    return started.name.startswith("inv") or started.parts[-2:] == ("invoke", "__main__.py")


def handle(argv: Sequence[str], verbs: Mapping[str, Verb]) -> Sequence[Call] | None:
    """Return the calls of verbs on the command line; None where it has options of Invoke itself.

    Raises SystemExit after printing what is wrong, or the help where that is requested.
    """
    with exits(), output.refusals():
        output.prepare()
        return _calls(argv[1:], verbs)


def _show(text: str) -> NoReturn:
    """Print a help page, and exit."""
    print(text, flush=True)
    raise SystemExit(0)


def _calls(words: Sequence[str], verbs: Mapping[str, Verb]) -> Sequence[Call] | None:
    if {*OF_INVOKE} & {*words}:
        return None
    leading = _leading(words, verbs)
    rest: Sequence[str] = words[len(leading) :]
    if (name := _help(words, verbs)) is not None:
        _show(help_pages.of_verb(verbs[name]) if name else help_pages.overview(verbs))
    if {*FORMATTED_LIST} & {word.partition("=")[0] for word in leading}:
        return None
    if not rest or {*LIST} & {*leading}:
        _show(help_pages.overview(verbs))
    calls = []
    while rest:
        call, rest = _call(rest, verbs)
        calls.append(call)
    return None if leading else calls


def handle_own(verbs: Mapping[str, Verb]) -> None:
    """Check the command line of this process, unless it is another program's."""
    if is_ours(sys.argv):
        handle(sys.argv, verbs)


def named(argv: Sequence[str], verbs: Mapping[str, Verb]) -> Mapping[str, Verb]:
    """Return the verbs that Invoke needs for a command line: those on it, or all if none is, or Invoke lists them.

    Invoke copies every option of every verb that it knows, which would take a tenth of the time of `invoke plan`.
    """
    words = {word.partition("=")[0] for word in argv[1:]}
    if not is_ours(argv) or words & {*OF_INVOKE, *FORMATTED_LIST, *LIST}:
        return verbs
    return {name: verb for name, verb in verbs.items() if name in words} or verbs


def _leading(words: Sequence[str], verbs: Mapping[str, Verb]) -> Sequence[str]:
    """Return the options of Invoke before the first verb. Raises UsageError for others."""
    if not words or not words[0].startswith("-"):
        return ()
    from invoke.program import Program

    flags = Program().initial_context.flags
    place = 0
    while place < len(words) and words[place].startswith("-"):
        name, equals, _ = words[place].partition("=")
        _refuse_dry(name, verbs)
        if name not in flags:
            raise _misplaced(words[place:], verbs)
        place += 1 if equals or not flags[name].takes_value or name in (*HELP, *LIST) else 2
    return words[:place]


def _help(words: Sequence[str], verbs: Mapping[str, Verb]) -> str | None:
    """Return the verb whose help is requested, "" for the whole help, None where no help is."""
    asked = next((place for place, word in enumerate(words) if word.partition("=")[0] in HELP), None)
    if asked is None:
        return None
    before = [word for word in words[:asked] if word in verbs]
    name = words[asked].partition("=")[2] or next(iter(before or words[asked + 1 : asked + 2]), "")
    if name and name not in verbs:
        raise hints.unknown_verb(name, verbs, command="invoke --help")
    return name


def _refuse_dry(name: str, verbs: Mapping[str, Verb]) -> None:
    """Raise UsageError for Invoke's option that promises to run nothing: it concerns shell commands of tasks only."""
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
        hint = f"invoke {'build' if 'build' in able else able[0]} {hints.shell(words)}" if able else "invoke --list"
        return UsageError(f"no verb is given before {option}", hint=hint)
    others = [word for word in words if word != verb.name]
    return UsageError(f"{option} must come after the verb", hint=f"invoke {hints.shell([verb.name, *others])}")


def _call(words: Sequence[str], verbs: Mapping[str, Verb]) -> tuple[Call, Sequence[str]]:
    """Return the call of the first verb, and the words from the next verb on. Raises UsageError."""
    name, following = words[0], words[1:]
    if name not in verbs:
        raise hints.unknown_verb(name, verbs, following)
    verb = verbs[name]
    own, rest = _split(verb, following, verbs)
    for word, value in own:
        _refuse_long(word if value is None else f"--{word}", word if value is None else value)
    bare = [word for word, value in own if value is None]
    _refuse_repeated(verb, own)
    _refuse_bare(verb, bare, [option for option, value in own if value is not None])
    values: dict[str, Any] = {row.name: word for row, word in zip(verb.positional, bare, strict=True)}
    for name, (default, _) in verb.options.items():
        given = [value for option, value in own if option == name and value is not None]
        values[name.replace("-", "_")] = _value(default, given)
    return Call(verb, values), rest


def _value(default: object, given: list[str]) -> object:
    """Return an option's value: True for a switch that is given, a list for an option that may be repeated."""
    if isinstance(default, bool):
        return bool(given)
    if isinstance(default, list):
        return given
    return given[-1] if given else default


def _split(
    verb: Verb, words: Sequence[str], verbs: Mapping[str, Verb]
) -> tuple[list[tuple[str, str | None]], Sequence[str]]:
    """Return the verb's options with their values, and its bare words with None; then the words of the next verbs."""
    own: list[tuple[str, str | None]] = []
    place = 0
    while place < len(words):
        word = words[place]
        if word.startswith("-") and word != "-":
            option, value, used = _option(verb, words[place:], verbs)
            own.append((option, value))
            place += used
        elif word in verbs and sum(value is None for _, value in own) >= len(verb.positional):
            break
        else:
            own.append((word, None))
            place += 1
    return own, words[place:]


def _option(verb: Verb, words: Sequence[str], verbs: Mapping[str, Verb]) -> tuple[str, str, int]:
    """Return the option's name, its value ("" for a switch), and how many words both are. Raises UsageError."""
    option, equals, value = words[0].partition("=")
    name = option.removeprefix("--")
    _refuse_dry(option, verbs)
    if not option.startswith("--") or name not in verb.options:
        raise hints.unknown_option(verb, words, verbs)
    default = verb.options[name][0]
    if isinstance(default, bool):
        if equals:
            raise UsageError(f"{option} takes no value", hint=f"{option} alone, or leave it out")
        return name, "", 1
    if not equals:
        if len(words) < 2 or _is_option(verb, words[1], several=isinstance(default, list)):
            raise UsageError(f"{option} has no value", hint=help_pages.option(verb, name))
        value = words[1]
    if not value.strip():
        raise UsageError(f"{option} has no value", hint=f"leave it out, or {help_pages.option(verb, name)}")
    return name, value, 1 if equals else 2


def _is_option(verb: Verb, word: str, *, several: bool) -> bool:
    """Return whether a word is an option and not a value. --bazel-flag, which may be repeated, takes --config=opt."""
    name, equals, _ = word.partition("=")
    known = name in HELP or name.removeprefix("--") in verb.options
    return word.startswith("-") and known and not (several and equals)


def _refuse_long(name: str, text: str) -> None:
    if len(text) > MOST_LETTERS:
        raise UsageError(f"{name} has {len(text):,} characters", hint=f"at most {MOST_LETTERS:,} in one word")


def _refuse_repeated(verb: Verb, own: Sequence[tuple[str, str | None]]) -> None:
    for name, (default, _) in verb.options.items():
        values = [value for option, value in own if option == name and value is not None]
        if len(values) > 1 and not isinstance(default, list | bool):
            several = len(set(values)) > 1
            raise UsageError(
                f"--{name} is given {len(values)} times: {', '.join(values)}",
                hint=f"give one of them{hints.of_many(name)}" if several else "give it once",
            )


def _refuse_bare(verb: Verb, bare: Sequence[str], given: Sequence[str]) -> None:
    """Raise UsageError for bare words that the verb does not take, and for those that it lacks."""
    if len(bare) > len(verb.positional):
        raise hints.bare_word(verb, bare[: len(verb.positional) + 1], given)
    if len(bare) < len(verb.positional):
        raise _missing(verb)


def _missing(verb: Verb) -> UsageError:
    words = " ".join(help_pages.placeholders(verb))
    return UsageError(f"{verb.name} needs {words}", hint="; ".join(_meanings(verb)))


def _meanings(verb: Verb) -> Iterator[str]:
    for row in verb.positional:
        yield f"{row.name.upper()}: {help_pages.ARGUMENTS[row.name]}"
