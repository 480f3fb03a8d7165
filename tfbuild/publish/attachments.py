"""An image's SBOM and provenance: created by a push, written next to the report, and attached in the registry."""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tfbuild.context.labels import REPOSITORY, read_labels
from tfbuild.engine import Engine, Image
from tfbuild.errors import VerificationFailed
from tfbuild.oci import referrers
from tfbuild.oci.client import Registry
from tfbuild.oci.manifests import Manifest
from tfbuild.oci.referrers import Attachment
from tfbuild.publish import provenance
from tfbuild.util.files import replace_file, writing
from tfbuild.verify import report as reporting

if TYPE_CHECKING:
    from tfbuild.publish.image_contents import Contents


@dataclass(frozen=True, kw_only=True)
class Attestations:
    """The documents that accompany an image, besides its report."""

    sbom: bytes
    provenance: bytes


@dataclass(frozen=True, kw_only=True)
class AttachedDigests:
    """The digests of the manifests that attach them."""

    sbom: str
    provenance: str


def attach(engine: Engine, image: Image, registry: Registry, manifest: Manifest, reports: Path) -> AttachedDigests:
    """Create the attestations of an image in the registry, attach them there, and write them to `reports`."""
    from tfbuild.publish import image_contents  # of the extra `publish`, which a pull does without

    identifier = read_labels(image.labels).id
    contents = image_contents.read_contents(engine, image.id)
    subject = replace(image, id=manifest.config)
    made = make(subject, contents, str(registry.repository), manifest.digest, reports)
    names = (provenance.sbom_name(identifier), f"{identifier}.provenance.json")
    digests = []
    for media_type, name, content in zip(referrers.NEEDED, names, (made.sbom, made.provenance), strict=True):
        attachment = Attachment(media_type=media_type, title=name, created=image.created, content=content)
        write(reports / name, content)
        digests.append(referrers.attach(registry, attachment, manifest))
    return AttachedDigests(sbom=digests[0], provenance=digests[1])


def make(image: Image, contents: "Contents", repository: str, digest: str, reports: Path) -> Attestations:
    """The attestations of an image whose report is in `reports`; `digest`: that of its manifest in `repository`.

    The `id` of `image` must be its configuration's digest, even if the engine uses another one.
    """
    from tfbuild.publish import sbom  # of the extra `publish`

    identifier = read_labels(image.labels).id
    report = reporting.stored(reports, identifier)
    if report is None:
        raise VerificationFailed(
            f"there is no report on {identifier} in {reports}", hint=f"invoke verify {REPOSITORY}:{identifier}"
        )
    bill = sbom.document(image, contents)
    statement = provenance.statement(
        image,
        repository=repository,
        digest=digest,
        built=contents.built,
        wheel_sha256=sbom.wheel_digest(contents, image.labels),
        git_version=report.software.git if report.software else "",
        report=(reports / provenance.report_name(identifier)).read_bytes(),
        verified=report.created,
        sbom=bill,
        run=provenance.this_run(os.environ),
    )
    return Attestations(sbom=bill, provenance=provenance.to_json(statement))


def write(path: Path, content: bytes) -> None:
    """Write the whole file or nothing. Raises UsageError or DiskFull."""
    with writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, content)
