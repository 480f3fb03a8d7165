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
# Options that take any further word.
FURTHER = ("also", "path")
# Verbs to name that have an option, and those to name of more.
MOST_VERBS = 6
MAIN_VERBS = ("plan", "build", "wheel", "pull")
# Verbs of other programs.
OTHER_VERBS = {
    "benchmark": "bench",
    "check": "verify",
    "clean": "prune",
    "compile": "build",
    "doctor": "engine",
    "download": "pull",
    "experiments": "bench",
    "flags": "copts",
    "info": "detect",
    "ls": "images",
    "make": "build",
    "publish": "push",
    "rm": "prune",
    "rmi": "prune",
    "start": "engine",
    "upload": "push",
}
# Verbs and options that only other programs have, or only other verbs, with what to do instead.
ELSEWHERE = {
    "detect cpu": "invoke copts --explain --cpu CPU, for a CPU by its name",
    "dry-run": "invoke plan makes nothing, and takes the same options",
    "gain cpu": "--cpuinfo FILE, with that machine's lscpu",
    "name": "an image is named by its identifier; `docker tag` gives it a second name",
    "run": "docker run --rm IMAGE python -c 'import tensorflow'; invoke images lists the images",
    "tag": "an image is named by its identifier; `docker tag` gives it a second name",
    "uninstall": "invoke prune --keep none, for its images; pipx uninstall tensorflow-tfbuild, or delete the clone",
    "user": "an image runs as any user: docker run --user $(id -u) IMAGE",
}
# Names of other programs' options.
SYNONYMS = {
    "arch": "platform",
    "base-image": "base",
    "cores": "jobs",
    "image": "base",
    "march": "cpu",
    "mtune": "cpu",
    "no-docker": "no-container",
    "o": "output",
    "output-dir": "output",
    "parallel": "jobs",
    "tensorflow": "release",
    "tf": "release",
    "tf-version": "release",
    "threads": "jobs",
    "version": "release",
    "without-container": "no-container",
    "without-docker": "no-container",
}


def unknown_verb(
    name: str, verbs: Mapping[str, Verb], following: Sequence[str] = (), *, command: str = "invoke"
) -> UsageError:
    """Return the error for an unknown verb. `command`: what to type before the right one."""
    if name in ("help", "list", "version"):
        wanted = [*following[:1]] if name == "help" else []
        return UsageError(f"there is no verb {name!r}", hint=f"invoke {shlex.join([f'--{name}', *wanted])}")
    near = [OTHER_VERBS[name]] if name in OTHER_VERBS else nearest(name, verbs, alike=MUCH_ALIKE)
    option = option_of(name, verbs["build"])
    if name in ELSEWHERE:
        hint = ELSEWHERE[name]
    elif near:
        hint = " or ".join(f"{command} {other}" for other in near)
    elif option:
        hint = f"invoke build {option}"
    else:
        hint = "invoke --list shows all verbs"
    return UsageError(f"there is no verb {name!r}", hint=hint)


def unknown_option(verb: Verb, words: Sequence[str], verbs: Mapping[str, Verb]) -> UsageError:
    """Return the error for an option that the verb does not have."""
    option, equals, value = words[0].partition("=")
    message = f"{verb.name} has no option {option}"
    if not option.startswith("--"):
        return UsageError(f"{message}: options have no short forms", hint=_spelled_out(verb, words))
    name = option.removeprefix("--")
    if name == "":
        return UsageError(f"{verb.name} takes nothing after --", hint="leave out --")
    if name in {row.name for row in verb.positional}:
        word = name.upper()
        return UsageError(message, hint=f"{word} is given without an option: invoke {verb.name} {word}")
    elsewhere = ELSEWHERE.get(f"{verb.name} {name}") or ELSEWHERE.get(name)
    if hint := _opposite(verb, name) or elsewhere or option_of(name, verb, further=()):
        return UsageError(message, hint=hint)
    wanted = SYNONYMS.get(name, name)
    near = [wanted] if wanted in verb.options else nearest(wanted, verb.options)
    others = [other.name for other in verbs.values() if wanted in {*other.options, *other.settings}]
    if near and (wanted in near or not others):
        rest = f"{equals}{value}"
        return UsageError(message, hint=" or ".join(f"--{other}{rest}" for other in near))
    if others:
        named = [other for other in others if other in MAIN_VERBS or len(others) <= MOST_VERBS]
        more = " and others" if len(named) < len(others) else ""
        it = "it" if wanted == name else f"--{wanted}"
        return UsageError(message, hint=f"{it} is an option of {', '.join(f'invoke {other}' for other in named)}{more}")
    if name in verbs:
        return UsageError(message, hint=f"invoke {name} is a verb of its own")
    return UsageError(message, hint=f"invoke --help {verb.name} lists its options")


def _opposite(verb: Verb, name: str) -> str:
    """Return how to get the opposite of a switch that has none; "" for any other option."""
    positive = name.removeprefix("no-")
    if name != positive and positive in verb.options:
        return f"leave out --{positive}" if verb.options[positive].switch else ""
    if f"no-{name}" in verb.options:
        return f"leave out --no-{name}: that is the default"
    return ""


def _spelled_out(verb: Verb, words: Sequence[str]) -> str:
    letter, value = words[0][1:2], words[0][2:].removeprefix("=") or next(iter(words[1:]), "")
    if option := option_of(value, verb):
        return option
    named = SYNONYMS.get(letter, words[0][1:])
    long = [f"--{name}" for name in verb.options if name.startswith(named)]
    long = long or [f"--{name}" for name in verb.options if name.startswith(letter)]
    return " or ".join(long) if long else f"invoke --help {verb.name} lists its options"


def bare_word(verb: Verb, words: Sequence[str], given: Collection[str]) -> UsageError:
    """Return the error for the last of the bare words `words`, which the verb does not take."""
    *before, word = words
    option = option_of(word, verb)
    near = nearest(word, verb.options, alike=MUCH_ALIKE)
    name, equals, value = word.partition("=")
    name = SYNONYMS.get(name, name)
    if equals and name in verb.options:
        hint = f"--{name} {shlex.quote(value)}"
    elif option and option.split()[0].removeprefix("--") in given:
        hint = f"{option.split()[0]} is given already: leave one of them out"
    elif option:
        hint = f"invoke {shlex.join([verb.name, *before])} {option}"
    elif before and verb.positional[-1] not in verb.required:
        hint = f"quote several words: invoke {shlex.join([verb.name, ' '.join(words)])}"
    else:
        hint = (
            " or ".join(f"--{name}" for name in near)
            or _elsewhere(word)
            or f"invoke --help {verb.name} lists its options"
        )
    takes = f"only {' '.join(row.name.upper() for row in verb.positional)}" if before else "only options"
    return UsageError(f"{verb.name} takes {takes}, not {word!r}", hint=hint)


def _elsewhere(word: str) -> str:
    """Return the command that takes a word where the verb has no option for it (detect haswell), or ""."""
    option, value = _meaning(word)
    return (
        f"invoke {'copts --explain' if option == 'cpu' else 'plan'} --{option} {shlex.quote(value)}" if option else ""
    )


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
