"""Signatures, made and checked by cosign: tfbuild has no keys of its own.

Source: github.com/sigstore/cosign, doc/cosign_sign.md (commit 07133b7): a reference by digest is signed, never a tag,
which may move meanwhile; `--yes` answers its questions; without `--key` it signs with an identity that an OpenID
Connect provider confirms (the CI, or a user in a browser). Tested with cosign 2.5.0 and 3.1.1.
"""

import shlex
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

from tfbuild.errors import TfbuildError, UsageError, VerificationFailed
from tfbuild.oci.referrers import Demand, Sign

PROGRAM = "cosign"


def need() -> str:
    """The path of cosign. Raises TfbuildError if it is not installed."""
    path = shutil.which(PROGRAM)
    if path is None:
        raise TfbuildError(
            "signatures need cosign, which is not on PATH",
            hint="install cosign (github.com/sigstore/cosign, or your distribution's package)",
        )
    return path


def options(text: str) -> tuple[str, ...]:
    """Split options for cosign, such as "--key cosign.key", as a shell does. Raises UsageError for an open quote."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(
            f"{text!r} cannot be split into options for cosign: {error}", hint="quote them as in a shell"
        ) from None


def sign(reference: str, options: tuple[str, ...], *, ca: Path | None) -> None:
    """Sign "repository@sha256:...". cosign may prompt, so it gets the terminal, but not stdout, which is for data."""
    command = [need(), "sign", "--yes", *trust(ca), *options, reference]
    if subprocess.run(command, stdout=sys.stderr, check=False).returncode != 0:
        raise TfbuildError(
            f"cosign did not sign {reference}",
            hint="its own message is above; the same push command continues from here",
        )


def signer(options: tuple[str, ...] | None, ca: Path | None) -> Sign | None:
    """Return what signs with these options of `cosign sign`; None without options."""
    return partial(sign, options=options, ca=ca) if options is not None else None


def demand_of(text: str, ca: Path | None) -> Demand | None:
    """Return what demands a signature by the options of `cosign verify` in `text`; None where it is empty.

    It asks once for each image.
    """
    if not text:
        return None
    words = options(text)
    refusals: dict[str, VerificationFailed | None] = {}

    def demanded(reference: str) -> None:
        if reference not in refusals:
            refusals[reference] = _refusal(reference, words, ca)
        if (refusal := refusals[reference]) is not None:
            raise refusal

    return demanded


def _refusal(reference: str, options: tuple[str, ...], ca: Path | None) -> VerificationFailed | None:
    try:
        demand(reference, options, ca=ca)
    except VerificationFailed as error:
        return error
    return None


def demand(reference: str, options: tuple[str, ...], *, ca: Path | None) -> None:
    """Raise VerificationFailed if `cosign verify` with `options` accepts no signature of "repository@sha256:..."."""
    command = [need(), "verify", *trust(ca), *options, reference]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        reasons = [line for line in lines if line.startswith("Error: ")] or lines[-1:]
        raise VerificationFailed(
            "\n".join([f"{reference} has no signature that cosign accepts", *reasons]),
            hint=f"do not use it; the check was: cosign verify {shlex.join(options)}",
        )


def trust(ca: Path | None) -> tuple[str, ...]:
    """The option for the registry's CA; Sigstore's own services use the system's CAs, or SSL_CERT_FILE."""
    return ("--registry-cacert", str(ca)) if ca is not None else ()
