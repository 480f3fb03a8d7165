"""Signatures, by cosign alone: tfbuild has no keys and checks no signature itself.

Source: github.com/sigstore/cosign, doc/cosign_sign.md (commit 07133b7): a reference by digest is signed, never a tag,
which may move meanwhile; `--yes` answers its questions; without `--key` it signs by the identity that an OpenID Connect
provider vouches for (the CI's, or somebody's in a browser).
"""

import shutil
import subprocess
import sys

from tfbuild.errors import TfbuildError

PROGRAM = "cosign"


def need() -> str:
    """cosign's path; TfbuildError where it is not installed."""
    found = shutil.which(PROGRAM)
    if found is None:
        raise TfbuildError(
            "--sign needs cosign, which is not on PATH",
            hint="install cosign (github.com/sigstore/cosign, or your distribution's package), or push without --sign",
        )
    return found


def command(program: str, reference: str) -> list[str]:
    return [program, "sign", "--yes", reference]


def sign(reference: str) -> None:
    """Signs "repository@sha256:...". It may ask, so that it has this terminal; data on stdout stays tfbuild's own."""
    if subprocess.run(command(need(), reference), stdout=sys.stderr, check=False).returncode != 0:
        raise TfbuildError(
            f"cosign did not sign {reference}",
            hint="its own words are above; the same push goes on from here",
        )
