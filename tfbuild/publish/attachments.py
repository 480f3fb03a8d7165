"""What tfbuild attaches to an image in a registry: its SBOM and its provenance, and why it was yanked.

A push creates SBOM and provenance, and writes them next to the report too.
"""

import os
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from tfbuild.context.labels import REPOSITORY, read_labels
from tfbuild.engine import Engine, Image
from tfbuild.errors import RegistryRefused, VerificationFailed
from tfbuild.oci import manifests, referrers
from tfbuild.oci.client import Registry
from tfbuild.oci.manifests import Manifest
from tfbuild.oci.referrers import Attachment
from tfbuild.publish import choose, provenance
from tfbuild.util.files import replace_file, writing
from tfbuild.util.terminal import printable
from tfbuild.verify import report as reporting


@dataclass(frozen=True, kw_only=True)
class AttachedDigests:
    """The digests of the manifests that attach SBOM and provenance."""

    sbom: str
    provenance: str


def attach(engine: Engine, image: Image, registry: Registry, manifest: Manifest, reports: Path) -> AttachedDigests:
    """Create the attestations of an image in the registry, attach them there, and write them to `reports`."""
    from tfbuild.publish import image_contents, sbom  # of the extra `publish`, which a pull does without

    identifier = read_labels(image.labels).id
    report = reporting.stored(reports, identifier)
    if report is None:
        raise VerificationFailed(
            f"there is no report on {identifier} in {reports}", hint=f"invoke verify {REPOSITORY}:{identifier}"
        )
    contents = image_contents.read_contents(engine, image.id)
    # The engine may know it by another digest.
    subject = replace(image, id=manifest.config)
    bill = sbom.document(subject, contents)
    statement = provenance.statement(
        subject,
        repository=str(registry.repository),
        digest=manifest.digest,
        built=contents.built,
        wheel_sha256=sbom.wheel_digest(contents, image.labels),
        git_version=report.software.git if report.software else "",
        report=(reports / provenance.report_name(identifier)).read_bytes(),
        verified=report.created,
        sbom=bill,
        run=provenance.this_run(os.environ),
    )
    digests = []
    for media_type, name, content in (
        (referrers.SBOM, provenance.sbom_name(identifier), bill),
        (referrers.PROVENANCE, f"{identifier}.provenance.json", provenance.to_json(statement)),
    ):
        attachment = Attachment(media_type=media_type, title=name, created=image.created, content=content)
        write(reports / name, content)
        digests.append(referrers.attach(registry, attachment, manifest))
    return AttachedDigests(sbom=digests[0], provenance=digests[1])


def write(path: Path, content: bytes) -> None:
    """Write the whole file or nothing. Raises UsageError or DiskFull."""
    with writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, content)


# --- yanks ------------------------------------------------------------------------------------------------------------

# The type of the document that yanks an image, and the most letters of its reason that are shown.
YANK = "application/vnd.tfbuild.withdrawal+json"
MOST_REASON = 200


def yank_reason(registry: Registry, subject: Manifest, rows: referrers.Rows | None = None) -> str:
    """Return the reason why an image was yanked; "" if it was not, or is offered again.

    `rows`: what is attached to it, where it was listed already.
    """
    try:
        last = max(yanks(registry, subject, rows), default=(choose.NEVER, ""))
    except (VerificationFailed, manifests.Mangled):
        return "the record of its yank cannot be read"
    return printable(last[1], MOST_REASON)


def yanks(registry: Registry, subject: Manifest, rows: referrers.Rows | None = None) -> list[tuple[datetime, str]]:
    """Return when an image was yanked each time, and the reason: "" offers it again. `rows`: as in `yank_reason`.

    Raises VerificationFailed if a record of that cannot be read.
    """
    contents = referrers.documents(registry, subject, YANK, rows, strict=True)
    try:
        documents = [manifests.parse_object(content, "record of a yank") for content in contents]
    except RegistryRefused as error:
        raise VerificationFailed(error.reason, hint="yank the image again") from error
    return [
        (choose.moment(str(document.get("created"))) or choose.NEVER, str(document.get("reason") or ""))
        for document in documents
    ]
