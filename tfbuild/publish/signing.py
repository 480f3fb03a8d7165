"""Signatures, made and checked by cosign: tfbuild has no keys of its own.

An image's signature is in its registry; that of FILE is FILE.sigstore.json beside it.
Source: github.com/sigstore/cosign, doc/cosign_sign.md (commit 07133b7): a reference by digest is signed, never a tag,
which may move meanwhile; `--yes` answers its questions; without `--key` it signs with an identity that an OpenID
Connect provider confirms (the CI, or a user in a browser). Tested with cosign 2.5.0 and 3.1.1.
"""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tfbuild.errors import RegistryRefused, TfbuildError, UsageError, VerificationFailed

MOST_BYTES = 1 << 20
# How long a check may take, and a signature, for which somebody may have to type a password or log in.
CHECK_SECONDS = 120.0
SIGN_SECONDS = 900.0
# How cosign, and Go, say that a server did not answer: no signature was judged.
UNANSWERED = re.compile(
    r"status code (?:40[13]|429|5\d\d)|TOOMANYREQUESTS|dial tcp|no such host|connection re(?:fused|set)|i/o timeout|"
    r"TLS handshake|tls: |deadline exceeded|unexpected EOF|: EOF"
)
# What the name of a file's signature has behind the file's.
BUNDLE = ".sigstore.json"
# They sign, or demand a signature of, what has this reference by digest, or a file.
Sign = Callable[[str], None]
Demand = Callable[[str], None]
SignFile = Callable[[Path], None]


def _command(text: str, *words: str) -> list[str]:
    """Return the command that runs cosign with these words and the options in `text`, split as a shell does.

    Raises UsageError for an open quote, TfbuildError if cosign is not installed.
    """
    try:
        options = shlex.split(text)
    except ValueError as error:
        raise UsageError(
            f"{text!r} cannot be split into options for cosign: {error}", hint="quote them as in a shell"
        ) from None
    path = shutil.which("cosign")
    if path is None:
        raise TfbuildError(
            "signatures need cosign, which is not on PATH",
            hint="install cosign (github.com/sigstore/cosign, or your distribution's package)",
        )
    return [path, *words, *options]


def signer(text: str, ca: Path | None) -> Sign:
    """Return a function that signs "repository@sha256:..." by `text`: options of `cosign sign`. Raises TfbuildError."""
    command = _command(text, "sign", "--yes", *trust(ca))
    return lambda reference: _sign([*command, reference], reference, "push")


def file_signer(text: str) -> SignFile:
    """Return a function that signs a file by `text`: options of `cosign sign-blob`. Raises TfbuildError."""
    command = _command(text, "sign-blob", "--yes")
    return lambda path: _sign([*command, "--bundle", f"{path}{BUNDLE}", str(path)], path.name, "index")


def _sign(command: list[str], name: str, verb: str) -> None:
    """Run cosign, which may prompt: it gets the terminal, but not stdout, which is for data."""
    hint = f"its own message is above; the same {verb} command continues from here"
    try:
        code = subprocess.run(command, stdout=sys.stderr, check=False, timeout=SIGN_SECONDS).returncode
    except subprocess.TimeoutExpired as error:
        raise TfbuildError(f"cosign did not sign {name} within {SIGN_SECONDS:.0f} s", hint=hint) from error
    if code != 0:
        raise TfbuildError(f"cosign did not sign {name}", hint=hint)


def demand_of(text: str, ca: Path | None) -> Demand | None:
    """Return a function that demands a signature by `text`, options of `cosign verify`; None if it is empty.

    It raises VerificationFailed if cosign accepts none, RegistryRefused if cosign could not judge.
    """
    if not text:
        return None
    command = _command(text, "verify", *trust(ca))
    return lambda reference: _demand([*command, reference], reference)


def demand_of_file(text: str, path: Path, name: str) -> None:
    """Demand a signature beside a file, by the options of `cosign verify-blob` in `text`. `name`: for messages.

    Raises what a Demand raises.
    """
    _demand([*_command(text, "verify-blob"), "--bundle", f"{path}{BUNDLE}", str(path)], name)


def _demand(command: list[str], name: str) -> None:
    """Run cosign, which judges a signature."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=CHECK_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise RegistryRefused(
            f"cosign did not judge {name} within {CHECK_SECONDS:.0f} s", hint="try again later"
        ) from error
    if done.returncode == 0:
        return
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    reasons = [line for line in lines if line.startswith("Error: ")] or lines[-1:]
    if UNANSWERED.search(done.stderr):
        raise RegistryRefused("\n".join([f"cosign could not judge {name}", *reasons]), hint="try again later")
    raise VerificationFailed(
        "\n".join([f"{name} has no signature that cosign accepts", *reasons]),
        hint=f"do not use it; `cosign {command[1]}` judged it by the options of --signed",
    )


def trust(ca: Path | None) -> tuple[str, ...]:
    """Return the option for the registry's CA; Sigstore's own services use the system's CAs, or SSL_CERT_FILE."""
    return ("--registry-cacert", str(ca)) if ca is not None else ()
