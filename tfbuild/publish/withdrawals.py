"""What is attached to an image that was withdrawn: when, and why."""

from datetime import datetime

from tfbuild.errors import RegistryRefused, VerificationFailed
from tfbuild.oci import manifests, referrers
from tfbuild.oci.client import Registry
from tfbuild.oci.manifests import Manifest
from tfbuild.publish import choose
from tfbuild.util.terminal import printable

# The type of the document that withdraws an image, and the most letters of its reason that are shown.
WITHDRAWAL = "application/vnd.tfbuild.withdrawal+json"
MOST_REASON = 200


def withdrawal(registry: Registry, subject: Manifest, rows: referrers.Rows | None = None) -> str:
    """Return the reason why an image was withdrawn; "" if it was not, or is offered again.

    `rows`: what is attached to it, where it was listed already.
    """
    try:
        last = max(withdrawals(registry, subject, rows), default=(choose.NEVER, ""))
    except (VerificationFailed, manifests.Mangled):
        return "its withdrawal cannot be read"
    return printable(last[1], MOST_REASON)


def withdrawals(
    registry: Registry, subject: Manifest, rows: referrers.Rows | None = None
) -> list[tuple[datetime, str]]:
    """Return when each withdrawal attached to an image was made, and its reason: "" offers the image again.

    `rows`: what is attached to it, where it was listed already. Raises VerificationFailed if one cannot be read.
    """
    contents = referrers.documents(registry, subject, WITHDRAWAL, rows, strict=True)
    try:
        documents = [manifests.parse_object(content, "withdrawal") for content in contents]
    except RegistryRefused as error:
        raise VerificationFailed(error.reason, hint="withdraw the image again") from error
    return [
        (choose.moment(str(content.get("created"))) or choose.NEVER, str(content.get("reason") or ""))
        for content in documents
    ]
