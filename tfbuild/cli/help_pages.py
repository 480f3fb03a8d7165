"""Write the help: all verbs in groups, each verb's options and examples, and what to type instead of a mistake."""

import re
import shlex
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from inspect import cleandoc

import tfbuild
from tfbuild.cli.verbs import Verb
from tfbuild.errors import UsageError
from tfbuild.facts import targets
from tfbuild.util import as_typed, command
from tfbuild.util.options import COMMON, Option, Options
from tfbuild.util.terminal import width

PLAIN_WIDTH = 80
# The most columns that lines of text fill: longer ones are hard to read.
WIDEST = 100
# The verbs of each module of tfbuild/cli/.
VERB_GROUPS = {
    "planning": "Look and plan; these need no container engine",
    "many": "Plan many builds",
    "building": "Build, check and measure",
    "publishing": "Publish, pull and install",
    "tools.verbs": "Work on tfbuild itself",
}
FIRST = (
    "invoke plan --target mkl                     # what would be built",
    "invoke build --target mkl --wheel official   # the official wheel's image",
)
LAST = "invoke --help VERB shows a verb's options. Shell completion: invoke --print-completion-script bash (zsh, fish)."
# What a verb's bare words are.
ARGUMENTS = {
    "hosts": "a recorded /proc/cpuinfo, or a folder of them",
    "folder": "the folder of the index, which any web server can serve",
    "image": "the name of an image, such as tfbuild:2.21.0-mkl-py3.11-f16c",
    "subject": "a wheel, an image's name, an installed package (its folder), or a library (.so)",
    "text": "part of a name, or a processor, such as zen, 'Xeon Gold', 'EPYC 7763' or avx512 (default: list all)",
}


def overview(verbs: Mapping[str, Verb]) -> str:
    """Return the help of the whole command: what it is for, two examples, and the verbs in groups."""
    about = (tfbuild.__doc__ or "").replace(":", f" {tfbuild.__version__}:", 1)
    lines = [f"Usage: {command()} VERB [--options]", "", *_wrapped(about), "", *(f"  {line}" for line in FIRST)]
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
        lines += ["", "Examples:", *(f"  {line}" for line in verb.examples)]
    if verb.positional:
        lines += ["", "Arguments:", *_columns([(row.name.upper(), ARGUMENTS[row.name]) for row in verb.positional])]
    for title, options in groups(verb):
        lines += ["", f"{title}:", *_columns([(name, row.help) for name, row in options.items()])]
    return as_typed("\n".join(lines))


def placeholders(verb: Verb) -> list[str]:
    """Return what stands for the verb's bare words: IMAGE; [TEXT] for one that may be left out."""
    return [row.name.upper() if row in verb.required else f"[{row.name.upper()}]" for row in verb.positional]


def groups(verb: Verb) -> Iterator[tuple[str, Options]]:
    """Yield the title of each group, and its options as they are typed: the common ones first, the rare ones last."""
    grouped: dict[str, dict[str, Option]] = {COMMON: {}}
    for name, row in sorted(verb.options.items(), key=lambda item: item[1].rare):
        grouped.setdefault("Rare options" if row.rare else row.group, {})[option_usage(name, row)] = row
    for title, rows in grouped.items():
        if rows:
            yield title or ("Common options" if len(grouped) > 1 else "Options"), rows


def option_usage(name: str, row: Option) -> str:
    """Return an option with what stands for its value: --cpu CPU."""
    return f"--{name}" if row.switch else f"--{name} {row.stands_for(name)}"


def summary(verb: Verb) -> str:
    """Return what the verb is for, as one line."""
    return " ".join(cleandoc(verb.body.__doc__ or "").split())


def _wrapped(text: str, beside: int = 0) -> list[str]:
    """Return lines that leave `beside` columns free."""
    most = max(min(WIDEST, width(PLAIN_WIDTH)) - beside, 1)
    return textwrap.wrap(as_typed(" ".join(text.split())), most, break_on_hyphens=False)


def _columns(rows: Sequence[tuple[str, str]]) -> list[str]:
    """Return names and texts in two columns; a long name has its text on the next line."""
    size = min(26, max(len(name) for name, _ in rows))
    lines: list[str] = []
    for name, text in rows:
        # Without docstrings (python -OO), a verb has no text.
        first, *more = _wrapped(text, size + 4) or [""]
        lines += [f"  {name:{size}}  {first}"] if len(name) <= size else [f"  {name}", f"  {'':{size}}  {first}"]
        lines += [f"  {'':{size}}  {line}" for line in more]
    return lines


# --- what to type instead of a mistake --------------------------------------------------------------------------------

# Words that show by their form which option they are the value of, and how that value is written.
VALUES = (
    (r"(?:(?:tensorflow|tfbuild)(?:==|:))?v?([12](?:\.(?:\d+|x)){1,2}(?:rc\d+)?)", "release", r"\1"),
    (r"(?:py|python|cp)?-?3\.?(\d{1,2})", "python", r"3.\1"),
    (r"amd64|x86_64", "platform", "linux/amd64"),
    (r"arm64|aarch64", "platform", "linux/arm64"),
    (r"linux/.+", "platform", r"\g<0>"),
    (r"(?:gcc|clang)(?:-?\d+)?", "compiler", r"\g<0>"),
    (r"official|source|.*\.whl", "wheel", r"\g<0>"),
    (r"[\w-]+(?:\.[\w-]+)+(?::\d+)?/.+", "registry", r"\g<0>"),
    (r"host|native", "cpu", "host"),
    (r"avx-?512", "cpu", "x86-64-v4"),
)
# Options of Bazel that only --bazel-flag takes.
BAZELS = re.compile(r"--((host_)?(cxx|c)opt|(host_)?linkopt|define|(action|host_action|repo)_env|features)")
# Verbs and options of other programs and of earlier versions, with what to type here.
MEANT = {
    "check": "invoke verify",
    "clean": "docker image rm IMAGE",
    "compile": "invoke build",
    "download": "invoke pull",
    "experiments": "invoke bench --list",
    "explain": "invoke copts --explain",
    "flags": "invoke copts",
    "images": "docker image ls tfbuild",
    "info": "invoke detect",
    "list": "invoke --list",
    "prune": "docker image rm IMAGE",
    "publish": "invoke push",
    "run": "docker run --rm IMAGE python -c 'import tensorflow'",
    "sbom": "invoke inspect --sbom",
    "start": "invoke engine",
    "uninstall": "docker image rm IMAGE, for its images; pipx uninstall tensorflow-tfbuild, or delete the clone",
    "upload": "invoke push",
    "version": "invoke --list begins with it",
    "yank": "invoke push --yank",
    "--arch": "--platform",
    "--cores": "--jobs",
    "--image": "--base",
    "--march": "--cpu",
    "--memory": "--jobs",
    "--no-docker": "--no-container",
    "--tag": "an image is named by its identifier; `docker tag` gives it a second name",
    "--tensorflow": "--release",
    "--threads": "--jobs",
    "--version": "--release",
}
# How alike two words must be for one to be a misspelling of the other (difflib's ratio).
LEAST_SIMILARITY = 0.7


def unknown_verb(name: str, verbs: Mapping[str, Verb]) -> UsageError:
    """Return the error for an unknown verb."""
    if name in MEANT:
        hint = MEANT[name]
    elif near := _nearest(name, verbs):
        hint = " or ".join(f"invoke {other}" for other in near)
    elif option := _option_of(name, verbs["build"]):
        hint = f"invoke build {option}"
    else:
        hint = "invoke --list shows all verbs"
    return UsageError(f"there is no verb {name!r}", hint=hint)


def unknown_option(verb: Verb, word: str, verbs: Mapping[str, Verb]) -> UsageError:
    """Return the error for an option that the verb does not have."""
    option = word.partition("=")[0]
    meant = MEANT.get(option.replace("--tf-", "--"), option)
    name = meant.lstrip("-")
    having = [f"invoke {other.name}" for other in verbs.values() if name in other.options]
    if not option.startswith("--"):
        begun = [f"--{other}" for other in verb.options if other.startswith(name[:1])]
        hint = f"options have no short forms: {' or '.join(begun) or _lists(verb)}"
    elif BAZELS.fullmatch(option):
        hint = f"--bazel-flag={word if '=' in word else f'{option}=VALUE'}"
    elif option[2:] in [row.name for row in verb.positional]:
        hint = " ".join(("invoke", verb.name, *placeholders(verb)))
    elif " " in meant or name in verb.options:
        hint = meant
    elif value := _option_of(name, verb):
        hint = value
    elif having:
        hint = f"--{name} is an option of {', '.join(having[:4])}{' and others' if having[4:] else ''}"
    elif near := _nearest(name, verb.options):
        hint = " or ".join(f"--{other}" for other in near)
    else:
        hint = f"invoke {name} is a verb of its own" if name in verbs else _lists(verb)
    return UsageError(f"{verb.name} has no option {option}", hint=hint)


def bare_word(verb: Verb, words: Sequence[str]) -> UsageError:
    """Return the error for a word that the verb does not take: the last one of `words`."""
    *before, word = words
    name, equals, value = word.partition("=")
    if equals and name in verb.options:
        hint = f"--{name} {shlex.quote(value)}"
    elif option := _option_of(word, verb):
        hint = f"invoke {shlex.join([verb.name, *before])} {option}"
    else:
        hint = " or ".join(f"--{other}" for other in _nearest(word, verb.options)) or _lists(verb)
    takes = f"only {' '.join(row.name.upper() for row in verb.positional)}" if before else "only options"
    return UsageError(f"{verb.name} takes {takes}, not {word!r}", hint=hint)


def _lists(verb: Verb) -> str:
    return f"invoke --help {verb.name} lists its options"


def _option_of(word: str, verb: Verb) -> str:
    """Return the option with which the verb takes a word: --target mkl; "" where it takes none like it."""
    option, value = _meaning(word)
    return f"--{option} {shlex.quote(value)}" if option in verb.options else ""


def _meaning(word: str) -> tuple[str, str]:
    """Return the option that a value must be of, and its right spelling; "" for an unknown one."""
    if target := targets.named(word.lower()):
        return "target", target
    for pattern, option, value in VALUES:
        if match := re.fullmatch(pattern, word, re.IGNORECASE):
            return option, match.expand(value)
    from tfbuild.cpu import isa

    return ("cpu", word) if any(isa.is_known(word.lower(), arch) for arch in isa.MACHINES) else ("", "")


def _nearest(word: str, known: Mapping[str, object]) -> list[str]:
    """Return the names that `word` may be a misspelling or the beginning of, the nearest first; at most three."""
    from difflib import get_close_matches

    lower = word.lower()
    begun = [name for name in known if len(lower) > 1 and name.startswith(lower)]
    return (begun or get_close_matches(lower, list(known), n=1, cutoff=LEAST_SIMILARITY))[:3]
