"""Check that an image in a registry is the one that its SBOM, its provenance and its report describe.

No layer is downloaded: the manifest names the layers and the configuration by their digests. Attachments are only as
trustworthy as the registry's owner, because whoever can push can attach; a signature (`push --sign`) says who did.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tfbuild.context import labels
from tfbuild.context.dockerfile import image_digest
from tfbuild.context.labels import REPOSITORY, configured_labels, read_labels
from tfbuild.engine import Engine, transfer
from tfbuild.errors import (
    RegistryRefused,
    Stale,
    Unfinished,
    UnknownImage,
    UsageError,
    VerificationFailed,
    Yanked,
)
from tfbuild.oci import manifests, references, referrers
from tfbuild.oci.client import Registry
from tfbuild.oci.manifests import Manifest
from tfbuild.publish import attachments, choose, index_updates, indexes, provenance
from tfbuild.publish.choose import Published
from tfbuild.publish.index_updates import IndexState
from tfbuild.publish.provenance import Statement
from tfbuild.util.progress import Progress
from tfbuild.verify import report as reporting

# By how much the clocks of two machines may differ.
CLOCKS_DIFFER = timedelta(days=1)
HINT = "it was changed after the push: do not use it, find out who changed it, and then push it again with --force"


@dataclass(frozen=True, kw_only=True)
class CheckedImage:
    """An image that is the one described. `reference`: by digest; `report`: whether the local report was compared.

    `lacking`: the indexes that should offer it and do not; `edited`: those that this version of tfbuild would write or
    sign again; both are () if the image was given by its digest. `yanked`: why it was yanked, or "".
    """

    id: str
    published: Published
    reference: str
    manifest: Manifest
    labels: Mapping[str, str]
    bill: bytes
    report: bool
    lacking: tuple[str, ...]
    edited: tuple[str, ...]
    yanked: str
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        return {
            "id": self.id,
            "reference": self.reference,
            "digest": self.manifest.digest,
            "config": self.manifest.config,
            "sbom": manifests.digest_of(self.bill),
            "report_compared": self.report,
            "notes": list(self.notes),
            "described": True,
        }


def image(registry: Registry, name: str, reports: Path, demand: referrers.Demand | None = None) -> CheckedImage:
    """Return the image that `name` (an identifier, a digest, or a reference with either) means, if it is as described.

    Its signature is demanded before anything else is read, because all else can be forged by whoever may push.
    Raises VerificationFailed with what differs, UnknownImage if there is no such image, Unfinished if nothing is
    attached to it and no index offers it, or its configuration or a layer is missing.
    """
    tag = tag_of(registry, name)
    manifest = _manifest(registry, tag)
    if demand is not None:
        demand(f"{registry.repository}@{manifest.digest}")
    config = registry.config(manifest)
    labels = configured_labels(config)
    identifier = read_labels(labels).id
    # It is used as a file name, and printed.
    if not references.TAG.fullmatch(identifier):
        raise UnknownImage(f"{name} was not made by tfbuild: it has no io.tfbuild labels", hint="invoke images")
    if tag not in (identifier, manifest.digest):
        raise VerificationFailed(f"{registry.repository}:{tag} has the labels of {identifier}", hint=HINT)
    published = indexes.of_config(config, manifest.digest)
    if published is None:
        raise VerificationFailed(f"the labels of {identifier} are invalid", hint="push it again with this tfbuild")
    indexed = index_updates.compare(registry, published)
    moving = demand is not None and is_arriving(registry, manifest)
    _refuse_contradicted(manifest, identifier, indexed, by_tag=tag == identifier and not moving)
    rows = referrers.listed(registry, manifest.digest)
    if not indexed.named and not referrers.complete(rows):
        raise Unfinished(
            f"{identifier} has no SBOM or no provenance, and no index offers it: its push did not finish",
            hint="push it again; if that image is gone, push another one with --force",
        )
    about = statements(registry, manifest, labels, rows, demand)
    bill = _bill(registry, manifest, about[-1], identifier, rows)
    if damage := registry.damage(manifest):
        raise Unfinished(f"{identifier} cannot be pulled: {damage}", hint="push it again, or another one with --force")
    compared, note = _compare_report(reports, identifier, manifest, about[-1])
    several = f"{len(about)} provenances describe it; that of the last verification was compared"
    return CheckedImage(
        id=identifier,
        published=published,
        reference=f"{registry.repository}@{manifest.digest}",
        manifest=manifest,
        labels=labels,
        bill=bill,
        report=compared,
        lacking=() if tag == manifest.digest else indexed.lacking,
        edited=() if tag == manifest.digest else index_updates.edited(registry, published, indexed.contents, demand),
        yanked=attachments.yank_reason(registry, manifest, rows),
        notes=tuple(filter(None, (note, several if len(about) > 1 else ""))),
    )


def is_arriving(registry: Registry, manifest: Manifest) -> bool:
    """Return whether the push that brought an image is not finished: it removes the arriving tag at its end."""
    return any(registry.digest(references.arriving_tag(known)) == manifest.digest for known in manifest.ids)


def _refuse_contradicted(manifest: Manifest, identifier: str, indexed: IndexState, *, by_tag: bool) -> None:
    """Raise VerificationFailed if the indexes and the image contradict each other.

    An image that was given by its digest (not `by_tag`) may have been replaced since. So may one whose push with
    --force did not finish, which its arriving tag shows; but that is trusted only with a signature, because whoever
    moves a fixed tag can set an arriving one too.
    """
    if indexed.moved:
        raise VerificationFailed(f"{', '.join(indexed.moved)}: not an index any more", hint=HINT)
    if indexed.contradicting:
        raise VerificationFailed(
            f"{', '.join(indexed.contradicting)} describe {identifier} otherwise than its labels", hint=HINT
        )
    if by_tag and indexed.replaced:
        raise VerificationFailed(
            f"{identifier} is another image under its tag ({manifest.digest}) than in {', '.join(indexed.replaced)}",
            hint="if a push with --force is running or was stopped, push it again with --force; else " + HINT,
        )


def refuse_yanked(image: CheckedImage) -> None:
    """Raise Yanked if the image was yanked."""
    if image.yanked:
        raise Yanked(
            f"{image.id} was yanked: {image.yanked}",
            hint=f"push another one with --force, or offer it again: invoke yank {image.id} --undo",
        )


def refuse_unfinished(image: CheckedImage) -> None:
    """Raise Unfinished if an index that should offer the image does not, or is not what tfbuild would write."""
    if image.lacking:
        raise Unfinished(
            f"{image.id} is not offered by {', '.join(image.lacking)}: its push did not finish",
            hint=f"invoke push {image.id} --indexes",
        )
    if image.edited:
        raise Unfinished(
            f"{', '.join(image.edited)} are not as this tfbuild writes and signs them: another version wrote them, or "
            "somebody edited them",
            hint=f"invoke push {image.id} --indexes writes them again",
        )


def refuse_outdated(image: CheckedImage, context: str) -> None:
    """Raise Stale if the image was made from another context than the one with the digest `context`.

    The base image is not compared here (see publish.freshness): the image names its own.
    """
    if not references.DIGEST.fullmatch(context):
        raise UsageError(
            f"{context!r} is not the digest of a context", hint="use the one that `invoke dockerfile --json` prints"
        )
    labels = read_labels(image.labels)
    if labels.context != image_digest(context, labels.base_digest):
        raise Stale(
            f"{image.id} was made from another context: facts, templates or tfbuild have changed since",
            hint="build it again, and push it with --force",
        )


def tag_of(registry: Registry, name: str) -> str:
    """Return the tag or digest of an image in this registry, by any of its names. Raises UsageError for another's."""
    parsed = labels.parse_name(name)
    if not parsed.reference:
        raise UsageError(
            f"{name!r} does not name an image in a repository", hint="use an identifier from `invoke images`"
        )
    if "/" in parsed.repository and parsed.repository != str(registry.repository):
        raise UsageError(f"{name} is not in {registry.repository}", hint=f"--registry {parsed.repository}")
    return parsed.reference


def _manifest(registry: Registry, tag: str) -> Manifest:
    manifest = registry.manifest(tag)
    if manifest is None:
        raise UnknownImage(f"{registry.repository} has no {tag}", hint="invoke images --registry lists all images")
    if manifest.media_type not in manifests.IMAGES:
        ids = ", ".join(image.id for image in indexes.read_index(manifest))
        raise UsageError(f"{tag} is an index of several images", hint=f"one of: {ids}")
    return manifest


def statements(
    registry: Registry,
    manifest: Manifest,
    labels: Mapping[str, str],
    rows: referrers.Rows | None = None,
    demand: referrers.Demand | None = None,
) -> list[Statement]:
    """Return the attached provenances that describe this image, that of the last verification at the end.

    `rows`: what is attached to the image, where it was listed already; registries list it in any order. With `demand`,
    those without a signature do not count. Raises VerificationFailed if there is none.
    """
    failures: list[VerificationFailed] = []
    fitting: list[tuple[datetime, bytes, Statement]] = []
    for content in referrers.documents(registry, manifest, referrers.PROVENANCE, rows, demand=demand):
        try:
            found = provenance.from_json(content)
            provenance.refuse_other(found, digest=manifest.digest, config=manifest.config, labels=labels)
        except ValueError as error:
            failures.append(VerificationFailed(f"the attached provenance is {error}", hint=HINT))
        except VerificationFailed as error:
            failures.append(error)
        else:
            report = found.resource(provenance.report_name(read_labels(labels).id))
            verified = choose.moment(report.annotations.get("created", "")) or choose.NEVER
            if verified > datetime.now(UTC) + CLOCKS_DIFFER:
                failures.append(
                    VerificationFailed(f"the attached provenance is of the future ({verified:%Y-%m-%d})", hint=HINT)
                )
            else:
                fitting.append((verified, content, found))
    if not fitting:
        raise failures[-1] if failures else _missing(manifest, "provenance")
    return [found for _, _, found in sorted(fitting, key=lambda row: row[:2])]


def _bill(registry: Registry, manifest: Manifest, statement: Statement, identifier: str, rows: referrers.Rows) -> bytes:
    """Return the attached SBOM that the provenance names."""
    from tfbuild.publish import sbom  # of the extra `publish`, which a pull does without

    bills = referrers.documents(registry, manifest, referrers.SBOM, rows)
    if not bills:
        raise _missing(manifest, "SBOM")
    named = statement.resource(provenance.sbom_name(identifier)).sha256
    bill = next((bill for bill in bills if manifests.digest_of(bill) == named), None)
    if bill is None:
        raise VerificationFailed(f"no attached SBOM is the one that the provenance names ({named})", hint=HINT)
    try:
        subject = sbom.subject(bill)
    except ValueError as error:
        raise VerificationFailed(f"the attached SBOM is {error}", hint=HINT) from error
    if subject != manifest.config:
        raise VerificationFailed(f"the SBOM is about another image ({subject})", hint=HINT)
    return bill


def _missing(manifest: Manifest, document: str) -> VerificationFailed:
    return VerificationFailed(f"no {document} is attached to {manifest.digest}", hint=HINT)


def _compare_report(reports: Path, identifier: str, manifest: Manifest, statement: Statement) -> tuple[bool, str]:
    """Return whether the local report was compared, and why not. Raises VerificationFailed if it was changed."""
    path = reports / provenance.report_name(identifier)
    named = statement.resource(provenance.report_name(identifier))
    digest = named.sha256
    if not digest:
        raise VerificationFailed("the provenance names no report", hint=HINT)
    if not path.is_file():
        return False, f"{path} is missing: only the digest of the report is known ({digest})"
    if manifests.digest_of(path.read_bytes()) == digest:
        return True, ""
    report = reporting.stored(reports, identifier)
    verified = named.annotations.get("created")
    if report is not None and (report.image.id not in manifest.ids or report.created != verified):
        return False, f"{path} is from another verification than the published one ({digest}) and was not compared"
    raise VerificationFailed(
        f"{path} was changed: it is not the report that the provenance names ({digest})",
        hint=f"invoke verify {REPOSITORY}:{identifier}; then push it again",
    )


def pull(engine: Engine, described: CheckedImage, progress: Progress) -> None:
    """Download the image, and compare its SBOM with its files. Raises VerificationFailed."""
    from tfbuild.publish import sbom

    transfer.again(lambda: engine.pull(described.reference, progress), progress)
    image = engine.image(described.reference)
    if image.id not in described.manifest.ids:
        raise RegistryRefused(
            f"{described.reference} is another image on this engine", hint=f"docker image rm {described.reference}"
        )
    with progress.step("verify: compare the SBOM with the files"):
        actual = sbom.of_image(engine, image, image.id)
    if differing := sorted(sbom.component_names(actual) ^ sbom.component_names(described.bill)):
        raise VerificationFailed(
            f"the SBOM differs from the image in {len(differing)} components, such as {', '.join(differing[:5])}",
            hint=HINT,
        )
