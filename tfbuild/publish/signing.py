"""Signatures, by cosign alone: tfbuild has no keys, and cosign says what a signature is worth.

Source: github.com/sigstore/cosign, doc/cosign_sign.md (commit 07133b7): a reference by digest is signed, never a tag,
which may move meanwhile; `--yes` answers its questions; without `--key` it signs by the identity that an OpenID Connect
provider vouches for (the CI's, or somebody's in a browser). Run against cosign 2.5.0 and 3.1.1.
"""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from tfbuild.errors import TfbuildError, UsageError, VerificationFailed

PROGRAM = "cosign"


def need() -> str:
    """cosign's path; TfbuildError where it is not installed."""
    found = shutil.which(PROGRAM)
    if found is None:
        raise TfbuildError(
            "signatures need cosign, which is not on PATH",
            hint="install cosign (github.com/sigstore/cosign, or your distribution's package)",
        )
    return found


def options(text: str) -> tuple[str, ...]:
    """Words for cosign, such as "--key cosign.key", split as a shell does it. UsageError where a quote has no end."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"{text!r} are no options of cosign: {error}", hint="write them as in a shell") from None


def sign(reference: str, words: tuple[str, ...], *, ca: Path | None) -> None:
    """Signs "repository@sha256:...". It may ask, so that it has this terminal; data on stdout stays tfbuild's own."""
    command = [need(), "sign", "--yes", *trust(ca), *words, reference]
    if subprocess.run(command, stdout=sys.stderr, check=False).returncode != 0:
        raise TfbuildError(
            f"cosign did not sign {reference}",
            hint="its own words are above; the same push goes on from here",
        )


def demand(reference: str, words: tuple[str, ...], *, ca: Path | None) -> None:
    """VerificationFailed where "repository@sha256:..." has no signature that `cosign verify` takes with `words`."""
    command = [need(), "verify", *trust(ca), *words, reference]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        why = [line for line in lines if line.startswith("Error: ")] or lines[-1:]
        raise VerificationFailed(
            "\n".join([f"{reference} has no signature that cosign finds good", *why]),
            hint=f"do not use it; asked was: cosign verify {shlex.join(words)}",
        )


def trust(ca: Path | None) -> tuple[str, ...]:
    """The registry's CA; those of Sigstore's own services are the system's, or SSL_CERT_FILE's."""
    return ("--registry-cacert", str(ca)) if ca is not None else ()
