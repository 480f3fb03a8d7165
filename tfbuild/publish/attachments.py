"""An image's SBOM and provenance: made at a push, written beside the report, and attached in the registry."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from tfbuild.context.labels import read_labels
from tfbuild.engine import Engine, Image
from tfbuild.errors import UsageError, VerificationFailed
from tfbuild.oci import referrers
from tfbuild.oci.client import Manifest, Registry
from tfbuild.oci.referrers import Attachment
from tfbuild.publish import ci_run, image_contents, provenance, sbom
from tfbuild.publish.image_contents import Contents
from tfbuild.util.files import replace_file
from tfbuild.verify import report as reporting


@dataclass(frozen=True, kw_only=True)
class Papers:
    """What goes with an image, besides its report."""

    sbom: bytes
    provenance: bytes


@dataclass(frozen=True, kw_only=True)
class AttachedPapers:
    """By the digests of the manifests that attach them."""

    sbom: str
    provenance: str


def attach(engine: Engine, image: Image, registry: Registry, manifest: Manifest, reports: Path) -> AttachedPapers:
    """Makes the papers of an image that is in the registry, attaches them there and writes them to `reports`."""
    identifier = read_labels(image.labels).id
    found = image_contents.read(engine, image.id)
    papers = make(replace(image, id=manifest.config), found, str(registry.repository), manifest.digest, reports)
    names = (provenance.sbom_name(identifier), f"{identifier}.provenance.json")
    digests = []
    for media_type, name, content in zip(referrers.NEEDED, names, (papers.sbom, papers.provenance), strict=True):
        attachment = Attachment(media_type=media_type, title=name, created=image.created, content=content)
        write(reports / name, content)
        digests.append(referrers.attach(registry, attachment, manifest))
    return AttachedPapers(sbom=digests[0], provenance=digests[1])


def make(image: Image, found: Contents, repository: str, digest: str, reports: Path) -> Papers:
    """The papers of an image whose report is in `reports`; `digest`: of its manifest in `repository`.

    The image's `id` is its configuration's digest here, whatever the engine knows it by.
    """
    identifier = read_labels(image.labels).id
    report = reporting.stored(reports, identifier)
    if report is None:
        raise VerificationFailed(f"no report on {identifier} is in {reports}", hint="invoke verify")
    bill = sbom.document(image, found)
    told = provenance.statement(
        image,
        repository=repository,
        digest=digest,
        built=found.built,
        wheel_sha256=sbom.wheel_digest(found),
        git_version=report.software.git if report.software else "",
        report=(reports / provenance.report_name(identifier)).read_bytes(),
        verified=report.created,
        sbom=bill,
        run=ci_run.this_run(os.environ),
    )
    return Papers(sbom=bill, provenance=provenance.to_json(told))


def write(path: Path, content: bytes) -> None:
    """Whole or not at all. Raises UsageError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, content)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", hint="make its folder writable") from error
