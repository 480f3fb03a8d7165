"""Say what to type instead of a mistake: the option of a bare word, and the nearest verb or option."""

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress

from tfbuild.cli.verbs import Verb
from tfbuild.errors import TfbuildError, UsageError
from tfbuild.facts import targets

# Words that show by their form which option they are the value of, and how that value is written.
VALUES = (
    (r"v?([12](?:\.(?:\d+|x)){1,2}(?:rc\d+)?)", "release", r"\1"),
    (r"(?:py|python|cp)?-?3\.?(\d{1,2})", "python", r"3.\1"),
    (r"amd64|x86_64", "platform", "linux/amd64"),
    (r"arm64|aarch64", "platform", "linux/arm64"),
    (r"linux/.+", "platform", r"\g<0>"),
    (r"(?:gcc|clang|g\+\+|clang\+\+)(?:[-=]?\d+)?", "compiler", r"\g<0>"),
    (r"official|source|.*\.whl", "wheel", r"\g<0>"),
    (r"(?:\[[^]]+\]|[\w-]+(?:\.[\w-]+)+|localhost)(?::\d+)?/.+", "registry", r"\g<0>"),
    (r"native", "cpu", "host"),
    (r"avx-?512", "cpu", "x86-64-v4"),
)
# How alike two words must be for one to be a misspelling of the other (difflib's ratio).
ALIKE, MUCH_ALIKE = 0.6, 0.75
# Verbs to name that have an option.
MOST_VERBS = 4
# Options that take any further word.
FURTHER = ("also", "path")
# Verbs and options of other programs, with what to type here.
MEANT = {
    "benchmark": "invoke bench",
    "check": "invoke verify",
    "clean": "docker image rm IMAGE",
    "compile": "invoke build",
    "doctor": "invoke engine",
    "download": "invoke pull",
    "experiments": "invoke bench --list",
    "explain": "invoke copts --explain",
    "flags": "invoke copts",
    "images": "docker image ls tfbuild",
    "info": "invoke detect",
    "list": "invoke --list",
    "ls": "docker image ls tfbuild",
    "make": "invoke build",
    "prune": "docker image rm IMAGE",
    "publish": "invoke push",
    "rm": "docker image rm IMAGE",
    "rmi": "docker image rm IMAGE",
    "run": "docker run --rm IMAGE python -c 'import tensorflow'",
    "sbom": "invoke inspect --sbom",
    "start": "invoke engine",
    "uninstall": "docker image rm IMAGE, for its images; pipx uninstall tensorflow-tfbuild, or delete the clone",
    "upload": "invoke push",
    "version": "invoke --version",
    "yank": "invoke push --yank",
    "--arch": "--platform",
    "--base-image": "--base",
    "--cores": "--jobs",
    "--image": "--base",
    "--march": "--cpu",
    "--mtune": "--cpu",
    "--name": "an image is named by its identifier; `docker tag` gives it a second name",
    "--no-docker": "--no-container",
    "--output-dir": "--output",
    "--parallel": "--jobs",
    "--tag": "an image is named by its identifier; `docker tag` gives it a second name",
    "--tensorflow": "--release",
    "--threads": "--jobs",
    "--user": "an image runs as any user: docker run --user $(id -u) IMAGE",
    "--version": "--release",
}


def unknown_verb(
    name: str, verbs: Mapping[str, Verb], following: Sequence[str] = (), *, command: str = "invoke"
) -> UsageError:
    """Return the error for an unknown verb. `command`: what to type before the right one."""
    if name == "help":
        hint = f"invoke {shlex.join(['--help', *following[:1]])}"
    elif name in MEANT:
        hint = MEANT[name]
    elif near := nearest(name, verbs, alike=MUCH_ALIKE):
        hint = " or ".join(f"{command} {other}" for other in near)
    elif option := option_of(name, verbs["build"]):
        hint = f"invoke build {option}"
    else:
        hint = "invoke --list shows all verbs"
    return UsageError(f"there is no verb {name!r}", hint=hint)


def unknown_option(verb: Verb, words: Sequence[str], verbs: Mapping[str, Verb]) -> UsageError:
    """Return the error for an option that the verb does not have."""
    option, _, _ = words[0].partition("=")
    name = option.lstrip("-")
    message = f"{verb.name} has no option {option}"
    if not option.startswith("--"):
        return UsageError(f"{message}: options have no short forms", hint=_spelled_out(verb, words))
    if not name:
        return UsageError(f"{verb.name} takes nothing after --", hint="leave out --")
    if name in {row.name for row in verb.positional}:
        hint = f"{name.upper()} is given without an option: invoke {verb.name} {name.upper()}"
        return UsageError(message, hint=hint)
    meant = MEANT.get(option, option)
    hint = (
        (meant if " " in meant or meant.removeprefix("--") in verb.options else "")
        or _opposite(verb, name)
        or option_of(name, verb, further=())
        or _similar(verb, meant.removeprefix("--"), verbs)
    )
    return UsageError(message, hint=hint)


def _similar(verb: Verb, name: str, verbs: Mapping[str, Verb]) -> str:
    """Return the nearest options of the verb, or the verbs that have the option, or where all options are listed."""
    having = [f"invoke {other.name}" for other in verbs.values() if name in other.options]
    near = nearest(name, verb.options)
    if near and not having:
        return " or ".join(f"--{other}" for other in near)
    if having:
        return (
            f"--{name} is an option of {', '.join(having[:MOST_VERBS])}{' and others' if having[MOST_VERBS:] else ''}"
        )
    return f"invoke {name} is a verb of its own" if name in verbs else f"invoke --help {verb.name} lists its options"


def _opposite(verb: Verb, name: str) -> str:
    """Return how to get the opposite of a switch that has none; "" for any other option."""
    positive = name.removeprefix("no-")
    if name != positive and positive in verb.options:
        return f"leave out --{positive}" if verb.options[positive].switch else ""
    return f"leave out --no-{name}: that is the default" if f"no-{name}" in verb.options else ""


def _spelled_out(verb: Verb, words: Sequence[str]) -> str:
    """Return the long option for a short one: by its value, or by how it begins."""
    value = words[0][2:].removeprefix("=") or next(iter(words[1:]), "")
    if option := option_of(value, verb):
        return option
    begun = [name for prefix in (words[0][1:], words[0][1:2]) for name in verb.options if name.startswith(prefix)]
    return " or ".join(f"--{name}" for name in begun[:4]) or f"invoke --help {verb.name} lists its options"


def bare_word(verb: Verb, words: Sequence[str], given: Collection[str]) -> UsageError:
    """Return the error for the last of the bare words `words`, which the verb does not take."""
    *before, word = words
    option = option_of(word, verb)
    near = nearest(word, verb.options, alike=MUCH_ALIKE)
    name, equals, value = word.partition("=")
    if equals and name in verb.options:
        hint = f"--{name} {shlex.quote(value)}"
    elif option and option.split()[0].removeprefix("--") in given:
        hint = f"{option.split()[0]} is given already: leave one of them out"
    elif option:
        hint = f"invoke {shlex.join([verb.name, *before])} {option}"
    elif near:
        hint = " or ".join(f"--{name}" for name in near)
    elif before and verb.positional[-1] not in verb.required:
        hint = f"quote several words: invoke {shlex.join([verb.name, ' '.join(words)])}"
    else:
        hint = _elsewhere(word) or f"invoke --help {verb.name} lists its options"
    takes = f"only {' '.join(row.name.upper() for row in verb.positional)}" if before else "only options"
    return UsageError(f"{verb.name} takes {takes}, not {word!r}", hint=hint)


def _elsewhere(word: str) -> str:
    """Return the command that takes a word where the verb has no option for it (detect haswell), or ""."""
    option, value = _meaning(word)
    command = "copts --explain" if option == "cpu" else "plan"
    return f"invoke {command} --{option} {shlex.quote(value)}" if option else ""


def option_of(word: str, verb: Verb, further: Sequence[str] = FURTHER) -> str:
    """Return the option with which the verb takes a word: --target mkl; "" where it takes none like it.

    `further`: options that take any word.
    """
    option, value = _meaning(word)
    if option not in verb.options:
        option, value = next((name for name in further if name in verb.options), ""), word
    return f"--{option} {shlex.quote(value)}" if option else ""


def _meaning(word: str) -> tuple[str, str]:
    """Return the option that a value must be of, and its right spelling; "" for an unknown one."""
    if target := targets.named(word.lower()):
        return "target", target
    for pattern, option, value in VALUES:
        if match := re.fullmatch(pattern, word, re.IGNORECASE):
            return option, match.expand(value)
    return ("cpu", word) if _is_cpu(word.lower()) else ("", "")


def _is_cpu(word: str) -> bool:
    from tfbuild.cpu import isa

    if word == "host":
        return True
    for arch in isa.MACHINES:
        with suppress(TfbuildError):
            return bool(isa.resolve(word, arch=arch))
    return False


def nearest(word: str, known: Mapping[str, object] | Sequence[str], *, alike: float = ALIKE) -> list[str]:
    """Return the names that `word` may be a misspelling or the beginning of, the nearest first; at most three."""
    from difflib import get_close_matches

    lower = word.lower()
    begun = [name for name in known if len(lower) > 1 and name.startswith(lower)]
    return (begun or get_close_matches(lower, list(known), n=1, cutoff=alike))[:3]
