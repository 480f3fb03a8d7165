"""The SBOM and the provenance of an image, attached to it in a registry and written next to its report."""

import os
from dataclasses import replace
from pathlib import Path

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


def attach(engine: Engine, image: Image, registry: Registry, manifest: Manifest, reports: Path) -> list[str]:
    """Attach the SBOM and the provenance of an image in the registry, and write them to `reports`.

    Returns the digests of the manifests that attach them, in that order.
    """
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
        report=(reports / f"{identifier}.json").read_bytes(),
        verified=report.created,
        sbom=bill,
        run=provenance.this_run(os.environ),
    )
    documents = ((referrers.SBOM, f"{identifier}.cdx.json", bill),
                 (referrers.PROVENANCE, f"{identifier}.provenance.json", statement))  # fmt: skip
    digests = []
    for media_type, name, content in documents:
        attachment = Attachment(media_type=media_type, title=name, created=image.created, content=content)
        write(reports / name, content)
        digests.append(referrers.attach(registry, attachment, manifest))
    return digests


def write(path: Path, content: bytes) -> None:
    """Write the whole file or nothing. Raises UsageError or DiskFull."""
    with writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, content)
