"""Whether an image in a registry is the one that its SBOM, its provenance and its report describe.

No layer is downloaded for that: the manifest names the layers and the configuration by their digests. What is attached
is worth what the registry's owner is worth, for whoever may push may attach: a signature (`push --sign`) says who did.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tfbuild.context.digests import image_digest
from tfbuild.context.labels import REPOSITORY, of_configuration, read_labels
from tfbuild.engine import Engine, transfer
from tfbuild.errors import Outdated, RegistryRefused, Unfinished, UnknownImage, UsageError, VerificationFailed
from tfbuild.oci import client, referrers
from tfbuild.oci.client import Manifest, Registry
from tfbuild.publish import indexes, provenance, sbom
from tfbuild.publish.choose import Published
from tfbuild.publish.provenance import Statement
from tfbuild.util.progress import Progress
from tfbuild.verify import report as reporting

HINT = "the image or what is attached was changed after the push: do not use it, and push it again"


@dataclass(frozen=True, kw_only=True)
class Described:
    """An image that is the one described. `reference`: by digest; `report`: whether the one named is here.

    `lacking`: the indexes that should offer it and do not; () for one that was asked for by its digest.
    """

    id: str
    published: Published
    reference: str
    digest: str
    config: str
    labels: Mapping[str, str]
    bill: bytes
    report: bool
    lacking: tuple[str, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        return {
            "id": self.id,
            "reference": self.reference,
            "digest": self.digest,
            "config": self.config,
            "sbom": client.digest_of(self.bill),
            "report_compared": self.report,
            "notes": list(self.notes),
            "described": True,
        }


def check(registry: Registry, asked: str, reports: Path) -> Described:
    """The image that `asked` names in the registry, if it is the one described.

    `asked`: an identifier, a digest, or a reference with either. Raises VerificationFailed with what differs,
    UnknownImage where there is no such image, Unfinished where nothing is attached to it and no index offers it.
    """
    tag = tag_of(registry, asked)
    manifest = _manifest(registry, tag)
    labels = of_configuration(registry.config(manifest))
    identifier = read_labels(labels).id
    # It names files, and is printed.
    if not client.TAG.fullmatch(identifier):
        raise UnknownImage(f"{asked} was not made by tfbuild: it has no io.tfbuild labels", hint="invoke images")
    if tag not in (identifier, manifest.digest):
        raise VerificationFailed(f"{registry.repository}:{tag} is {identifier} by its labels", hint=HINT)
    published = indexes.of_config(registry.config(manifest), manifest.digest)
    if published is None:
        raise VerificationFailed(f"{identifier} has labels that cannot be read", hint="push it again with this tfbuild")
    standing = indexes.standing(registry, published)
    if not standing.named and not referrers.complete(registry, manifest.digest):
        raise Unfinished(
            f"{identifier} has no SBOM or no provenance there, and no index offers it: its push came to no end",
            hint="push it again; where that image is gone, push another one with --force",
        )
    told = _statement(registry, manifest, labels)
    bill = _bill(registry, manifest, told, identifier)
    compared, note = _compare_report(reports, identifier, manifest, told)
    return Described(
        id=identifier,
        published=published,
        reference=f"{registry.repository}@{manifest.digest}",
        digest=manifest.digest,
        config=manifest.config,
        labels=labels,
        bill=bill,
        report=compared,
        lacking=() if tag == manifest.digest else standing.lacking,
        notes=(note,) if note else (),
    )


def refuse_unfinished(found: Described) -> None:
    """Unfinished where an index that should offer the image does not."""
    if found.lacking:
        raise Unfinished(
            f"{found.id} is not offered by {', '.join(found.lacking)}: its push came to no end",
            hint=f"invoke push {found.id} --indexes",
        )


def refuse_outdated(found: Described, context: str) -> None:
    """Outdated where the image was made from another context than the one with the digest `context`.

    On what base makes no difference: the image names its own.
    """
    if not client.DIGEST.fullmatch(context):
        raise UsageError(f"{context!r} is no context's digest", hint="the one that `invoke dockerfile --json` gives")
    labels = read_labels(found.labels)
    if labels.context != image_digest(context, labels.base_digest):
        raise Outdated(
            f"{found.id} was made from another context: facts, templates or tfbuild itself changed since",
            hint="build it again, and push it with --force",
        )


def tag_of(registry: Registry, asked: str) -> str:
    """The tag or digest in "ID", "sha256:...", "tfbuild:ID", "HOST/PATH:ID" or "HOST/PATH@sha256:..."."""
    if asked.startswith("sha256:"):
        return asked
    name, at, digest = asked.partition("@")
    repository, colon, tag = name.rpartition(":")
    if at:
        repository, tag = (repository if colon and "/" not in tag else name), digest
    elif not colon or "/" in tag:
        return _only_tag(asked)
    if "/" in repository and repository != str(registry.repository):
        raise UsageError(f"{asked} is not in {registry.repository}", hint=f"--registry {repository}")
    return tag


def _only_tag(asked: str) -> str:
    if "/" in asked:
        raise UsageError(f"{asked!r} names no image in a repository", hint="its identifier, as `invoke images` has it")
    return asked


def _manifest(registry: Registry, tag: str) -> Manifest:
    found = registry.manifest(tag)
    if found is None:
        raise UnknownImage(f"{registry.repository} has no {tag}", hint="invoke images --registry has them all")
    if found.media_type not in client.IMAGES:
        ids = ", ".join(image.id for image in indexes.read_index(found))
        raise UsageError(f"{tag} gathers several images", hint=f"one of: {ids}")
    return found


def _statement(registry: Registry, manifest: Manifest, labels: Mapping[str, str]) -> Statement:
    """The provenance that describes this image; where several are attached, the last that does."""
    failures: list[VerificationFailed] = []
    for content in reversed(referrers.documents(registry, manifest, referrers.PROVENANCE)):
        try:
            told = provenance.from_json(content)
            provenance.refuse_other(told, digest=manifest.digest, config=manifest.config, labels=labels)
        except ValueError as error:
            failures.append(VerificationFailed(f"the attached provenance is {error}", hint=HINT))
        except VerificationFailed as error:
            failures.append(error)
        else:
            return told
    raise failures[0] if failures else _missing(manifest, "provenance")


def _bill(registry: Registry, manifest: Manifest, told: Statement, identifier: str) -> bytes:
    """The attached SBOM that the provenance names."""
    bills = referrers.documents(registry, manifest, referrers.SBOM)
    if not bills:
        raise _missing(manifest, "SBOM")
    wanted = told.resource(provenance.sbom_name(identifier)).sha256
    bill = next((one for one in bills if client.digest_of(one) == wanted), None)
    if bill is None:
        raise VerificationFailed(f"no attached SBOM is the one that the provenance names ({wanted})", hint=HINT)
    try:
        about = sbom.subject(bill)
    except ValueError as error:
        raise VerificationFailed(f"the attached SBOM is {error}", hint=HINT) from error
    if about != manifest.config:
        raise VerificationFailed(f"the SBOM is about another image ({about})", hint=HINT)
    return bill


def _missing(manifest: Manifest, what: str) -> VerificationFailed:
    return VerificationFailed(
        f"no {what} is attached to {manifest.digest}", hint="push it again with this tfbuild, which attaches it"
    )


def _compare_report(reports: Path, identifier: str, manifest: Manifest, told: Statement) -> tuple[bool, str]:
    """Whether the report here was compared, and why not. VerificationFailed where it is the one named, but changed."""
    path = reports / provenance.report_name(identifier)
    named = told.resource(provenance.report_name(identifier))
    wanted = named.sha256
    if not wanted:
        raise VerificationFailed("the provenance names no report", hint=HINT)
    if not path.is_file():
        return False, f"{path} is not here: the report is known by its digest alone ({wanted})"
    if client.digest_of(path.read_bytes()) == wanted:
        return True, ""
    found = reporting.stored(reports, identifier)
    verified = named.annotations.get("created")
    if found is not None and (found.image.id not in manifest.ids or found.created != verified):
        return False, f"{path} is of another verification than the one named ({wanted}): not compared"
    raise VerificationFailed(
        f"{path} was changed: it is not the report that the provenance names ({wanted})",
        hint=f"invoke verify {REPOSITORY}:{identifier}, and push it again",
    )


def pull(engine: Engine, registry: Registry, found: Described, progress: Progress) -> None:
    """Downloads the image, and compares its SBOM with what is in its files. Raises VerificationFailed."""
    transfer.again(lambda: engine.pull(found.reference, progress), progress)
    image = engine.image(found.reference)
    if image.id not in (found.config, found.digest):
        raise RegistryRefused(f"{found.reference} is another image on this engine", hint="docker image rm it")
    with progress.step("verify: compare the SBOM with the files"):
        here = sbom.of_image(engine, image, image.id)
    if differing := sorted(sbom.named(here) ^ sbom.named(found.bill)):
        raise VerificationFailed(
            f"the SBOM is not what is in the image: {len(differing)} differ, the first: {', '.join(differing[:5])}",
            hint=HINT,
        )
