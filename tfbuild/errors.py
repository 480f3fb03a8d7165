"""The errors of tfbuild: one base class, and one class and exit code for each kind of failure.

The exit codes are part of the command line's contract (docs/reference/exit-codes.md, generated from this file) and
never change their meaning.
"""

import re
from unicodedata import category

# How many characters a message keeps of a long line's beginning and end: an option's value may be megabytes long.
KEPT = (500, 200)
HIDDEN = "***"
ODD_SPACE = re.compile(r"[^\S \t]")
# Shorter ones would hide ordinary words.
LEAST_SECRET = 4
# A user and a password before a host, with a scheme, and without one; in `repository:tag@sha256:...` there are none.
# Bounds keep a megabyte of text from taking minutes.
_SCHEME = r"(?i)([a-z][a-z0-9+.-]{0,20}://)"
LOGINS = (
    (re.compile(_SCHEME + r"(?!\[)[^\s/@:'\"<>]{0,256}:(?!\d+(?:[/?#\s]|$))[^\s'\"<>]{0,512}@(?!sha\d+:)"), r"\1***@"),
    (re.compile(r"(?i)(?<![a-z0-9+.-])((?!ssh:)[a-z][a-z0-9+.-]{0,20}://)[^\s/@:'\"<>]{1,512}@(?!sha\d+:)"), r"\1***@"),
    (
        re.compile(r"(?<![\w./:@+-])(?!pkg:)[\w.+-]{1,64}:(?!\d+/|//)[^\s@'\"<>]{1,256}@(?!sha\d+:)(?=[\w\[])"),
        "***@",
    ),
)
# The query of an address, and what a request is sent with.
QUERIES = (
    (re.compile(_SCHEME + r"([^\s?'\"<>]{0,512}\?)[^\s#'\"<>)]{1,2048}"), r"\1\2***"),
    (re.compile(r"(?<=[\w/])\?[\w.~-]{1,64}=[^\s#'\"<>)]{1,2048}"), "?***"),
    (re.compile(r"(?i)\b(Authorization: \w+|bearer) [a-z0-9+/._~=-]{8,4096}"), r"\1 ***"),
)
# What this process has sent as a password or a token, and the names that went with it.
_sent: dict[str, str] = {}


def conceal(name: str, *secrets: str) -> None:
    """From now on, hide these secrets in everything that is printed, and `name` in text by others."""
    _sent.update({secret: name for secret in secrets if len(secret) >= LEAST_SECRET})


def without_secrets(text: str, *, foreign: bool = False) -> str:
    """Return a text without passwords and queries of addresses, and without what this process has sent as a secret.

    `foreign`: others wrote it, so the login's name is hidden too.
    """
    for secret in sorted(_sent, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    for name in {name for name in _sent.values() if foreign and len(name) >= LEAST_SECRET}:
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", HIDDEN, text)
    if "@" in text or "?" in text or " " in text:
        for pattern, shown in (*LOGINS, *QUERIES):
            text = pattern.sub(shown, text)
    return text


def has_login(text: str) -> bool:
    """Return whether a value is, or contains, an address with a user or a password."""
    return any(pattern.search(text) for pattern, _ in LOGINS[:2]) or bool(LOGINS[2][0].match(text))


class TfbuildError(Exception):
    """Base of all errors that tfbuild raises on purpose.

    The command line prints the message to stderr and exits with its code, so no verb has to catch it.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        self.reason = fit(message)
        self.hint = fit(hint)
        super().__init__(message)

    def __str__(self) -> str:
        return f"error: {self.reason}" + (f"\nhint: {self.hint}" if self.hint else "")


def reason_of(error: BaseException) -> str:
    """Return why something failed, by tfbuild's error or any other, without "error: " and the hint."""
    return error.reason if isinstance(error, TfbuildError) else str(error)


def fit(text: str) -> str:
    """Make a message fit a terminal: errors quote options, registries, images and logs, which may hold anything.

    Removes secrets and control characters, shows spaces that only look like the usual one as `\\xa0`, and shortens long
    lines in the middle.
    """
    lines = map(_shortened, without_secrets(text).split("\n"))
    plain = ("".join(letter for letter in line if letter == "\t" or category(letter)[0] != "C") for line in lines)
    return "\n".join(ODD_SPACE.sub(lambda odd: odd[0].encode("unicode_escape").decode(), line) for line in plain)


def _shortened(line: str) -> str:
    head, tail = KEPT
    cut = len(line) - head - tail
    return line if cut <= 0 else f"{line[:head]} [{cut} characters left out] {line[-tail:]}"


class UsageError(TfbuildError):
    """An option's value cannot be read, or conflicts with another option; or a file or folder cannot be used."""

    exit_code = 2


class Unsupported(TfbuildError):
    """A release, Python, CPU, compiler or target is unknown, does not fit the others, or is not known to fit them."""

    exit_code = 12


class BadInput(TfbuildError):
    """A wheel, library, source or patch is missing or invalid, or contradicts the plan or its digest."""

    exit_code = 16


class BadMirror(TfbuildError):
    """A mirror or bundle lacks what the build requests, fails during a transfer, or was changed."""

    exit_code = 18


class TimeUp(TfbuildError):
    """The compile stopped at `--time-limit`; its cache is kept, and the same command continues from there."""

    exit_code = 75


class Interrupted(TfbuildError):
    """Ctrl-C, SIGTERM or a closed terminal; everything that ran was stopped and cleaned up."""

    exit_code = 130


class EngineMissing(TfbuildError):
    """No container engine answers, or it ended, builds for another platform, or cannot build with BuildKit."""

    exit_code = 20


class DiskFull(TfbuildError):
    """Too little free disk space."""

    exit_code = 21


class BuildFailed(TfbuildError):
    """An image or a wheel could not be built."""

    exit_code = 23


class VerificationFailed(TfbuildError):
    """An image or a wheel was altered, is not signed as demanded, or is not what its plan or index claims."""

    exit_code = 24


class UnknownImage(TfbuildError):
    """The image does not exist, or was not made by tfbuild."""

    exit_code = 25


class RegistryRefused(TfbuildError):
    """A registry, an index of wheels or a package archive does not answer, or refuses, or sends unexpected data."""

    exit_code = 26


class NothingFits(TfbuildError):
    """A registry has no matching image, or an index no matching wheel, that this host can run."""

    exit_code = 27


class Unfinished(TfbuildError):
    """A published image is not complete: an index does not offer it, or its SBOM or provenance is missing."""

    exit_code = 30


class Yanked(TfbuildError):
    """A published image was yanked: no index offers it any more."""

    exit_code = 32


class Stale(TfbuildError):
    """An image should be rebuilt: its context or its base image changed."""

    exit_code = 33
