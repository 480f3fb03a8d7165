"""Write the help: all verbs in groups, and the words, options and examples of each verb."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from inspect import cleandoc

from tfbuild import __doc__ as purpose
from tfbuild.cli.verbs import Verb
from tfbuild.util.installation import as_typed, command
from tfbuild.util.options import COMMON, Option, Options
from tfbuild.util.terminal import width

PLAIN_WIDTH = 80
# The most columns that lines of text fill: longer ones are hard to read.
WIDEST = 100
# The verbs of each module of tfbuild/cli/.
VERB_GROUPS = {
    "planning": "Look and plan; these need no container engine",
    "many": "Plan many builds",
    "building": "Build and check",
    "publishing": "Publish and pull",
    "wheels": "Publish and install wheels",
    "bench": "Measure",
    "tools.verbs": "Work on tfbuild itself",
}
FIRST = (
    "invoke detect                                # what this CPU has",
    "invoke plan --target mkl                     # what would be built",
    "invoke build --target mkl --wheel official   # the official wheel's image",
)
LAST = (
    "invoke --help VERB shows a verb's options; invoke --print-completion-script SHELL prints the completion for bash, "
    "zsh or fish; invoke --version prints the version."
)
# What a verb's bare words are.
ARGUMENTS = {
    "hosts": "a recorded /proc/cpuinfo, or a folder of them",
    "folder": "the folder of the index, which any web server can serve",
    "image": "the name of an image, such as tfbuild:2.21.0-mkl-py3.11-f16c",
    "subject": "a wheel, an image's name, or a library (.so)",
    "text": "part of a name, or a processor, such as zen, 'Xeon Gold', 'EPYC 7763' or avx512 (default: list all)",
}


def overview(verbs: Mapping[str, Verb]) -> str:
    """Return the help of the whole command: what it is for, three examples, and the verbs in groups."""
    lines = [f"Usage: {command()} VERB [--options]", "", *_wrapped(purpose or ""), "", *map(_indented, FIRST)]
    for title, members in in_groups(verbs):
        lines += ["", f"{title}:", *_columns([(verb.name, summary(verb)) for verb in members])]
    lines += ["", *_wrapped(LAST)]
    return as_typed("\n".join(lines))


def in_groups(verbs: Mapping[str, Verb]) -> Iterator[tuple[str, list[Verb]]]:
    """Yield the title and the verbs of each group that has any."""
    for module, title in VERB_GROUPS.items():
        if members := [verb for verb in verbs.values() if verb.body.__module__.endswith(module)]:
            yield title, members


def of_verb(verb: Verb) -> str:
    """Return a verb's help: usage, purpose, examples, words, and options, the common ones first."""
    words = " ".join(("invoke", verb.name, *placeholders(verb), *(("[--options]",) if verb.options else ())))
    lines = [f"Usage: {words}", "", *_wrapped(summary(verb))]
    if verb.examples:
        lines += ["", "Examples:", *map(_indented, verb.examples)]
    if verb.positional:
        rows = [(row.name.upper(), ARGUMENTS[row.name]) for row in verb.positional]
        lines += ["", "Arguments:", *_columns(rows)]
    for title, options in groups(verb):
        lines += ["", f"{title}:", *_columns([(name, row.help) for name, row in options.items()])]
    return as_typed("\n".join(lines))


def placeholders(verb: Verb) -> list[str]:
    """Return what stands for the verb's bare words: IMAGE; [TEXT] for one that may be left out."""
    return [row.name.upper() if row in verb.required else f"[{row.name.upper()}]" for row in verb.positional]


def option(verb: Verb, name: str) -> str:
    """Return an option as its help shows it, on one line."""
    row = verb.options[name]
    return f"{_spelled(name, row)}: {row.help}"


def groups(verb: Verb) -> Iterator[tuple[str, Options]]:
    """Yield the title of each group, and its options as they are typed: the common ones first, the rare ones last."""
    grouped: dict[str, dict[str, Option]] = {COMMON: {}}
    for name, row in sorted(verb.options.items(), key=lambda item: item[1].rare):
        grouped.setdefault("Rare options" if row.rare else row.group, {})[_spelled(name, row)] = row
    for title, rows in grouped.items():
        if rows:
            yield title or ("Common options" if len(grouped) > 1 else "Options"), rows


def _spelled(name: str, row: Option) -> str:
    """Return an option with what stands for its value: --cpu CPU."""
    return f"--{name}" if row.switch else f"--{name} {row.stands_for(name)}"


def summary(verb: Verb) -> str:
    """Return what the verb is for, as one line."""
    return " ".join(cleandoc(verb.body.__doc__ or "").split())


def _width() -> int:
    return min(WIDEST, width(PLAIN_WIDTH))


def _indented(line: str) -> str:
    return f"  {line}"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(as_typed(" ".join(text.split())), _width(), break_on_hyphens=False)


def _columns(rows: Sequence[tuple[str, str]]) -> list[str]:
    """Return names and texts in two columns; a long name has its text on the next line."""
    most = 26
    size = min(most, max(len(name) for name, _ in rows))
    lines: list[str] = []
    for name, text in rows:
        # Without docstrings (python -OO), a verb has no text.
        first, *more = textwrap.wrap(as_typed(text), _width() - size - 4, break_on_hyphens=False) or [""]
        lines += [f"  {name:{size}}  {first}"] if len(name) <= size else [f"  {name}", f"  {'':{size}}  {first}"]
        lines += [f"  {'':{size}}  {line}" for line in more]
    return lines
