"""Push a verified image to a registry, and pull the one that fits a host."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

from tfbuild.context import labels
from tfbuild.context.labels import REPOSITORY
from tfbuild.cpu import Cpu
from tfbuild.engine import Engine, transfer
from tfbuild.errors import NothingFits, RegistryRefused, UnknownImage, UsageError, VerificationFailed
from tfbuild.oci import manifests, references
from tfbuild.oci.client import Registry
from tfbuild.oci.manifests import Manifest
from tfbuild.plan import MACHINES
from tfbuild.publish import attachments, choose, described, indexes, signing
from tfbuild.publish.attachments import AttachedPapers
from tfbuild.publish.choose import Choice, Published
from tfbuild.util.progress import Progress
from tfbuild.verify import report as reporting


@dataclass(frozen=True, kw_only=True)
class Pushed:
    """`ref`: the fixed tag; `moved`: the indexes that offer it; `uploaded`: whether the registry lacked the image.

    `papers`: its SBOM and provenance; `papers` and `signed` are None if only the indexes were updated.
    """

    ref: str
    digest: str
    moved: tuple[str, ...]
    uploaded: bool
    papers: AttachedPapers | None
    signed: bool | None


def push(
    engine: Engine,
    image: str,
    registry: Registry,
    reports: Path,
    *,
    force: bool,
    progress: Progress,
    sign: tuple[str, ...] | None = None,
) -> Pushed:
    """Publish a verified image under its identifier and in the indexes of its release and target.

    It is uploaded under an arriving tag. Then cosign signs its digest (with `sign`, cosign's options), and SBOM and
    provenance are attached. Only after that the fixed tag names it, and then the indexes.
    Raises VerificationFailed if no report says that this image passed, RegistryRefused if the fixed tag is another
    image and `force` is not set.
    """
    if sign is not None:
        signing.need()
    local = engine.image(image)
    identifier = labels.identifier(image, local.labels)
    _refuse_unverified(image, identifier, local.id, reports)
    ref = f"{registry.repository}:{identifier}"
    existing = registry.manifest(identifier)
    if _is(existing, local.id):
        arrived = existing
    else:
        # Before the upload, which may take an hour.
        _refuse_moving(ref, existing, force=force)
        arrived = _arrive(engine, local.id, registry, identifier, progress)
    published = indexes.of_config(registry.config(arrived), arrived.digest)
    if published is None:
        raise RegistryRefused(f"the labels of {ref} are invalid", hint="build it again with this tfbuild")
    if sign is not None:
        signing.sign(f"{registry.repository}@{arrived.digest}", sign, ca=registry.ca)
    with progress.step("push: SBOM and provenance"):
        papers = attachments.attach(engine, local, registry, arrived, reports)
    with progress.step("push: tags and indexes"):
        if arrived is not existing:
            _tag(registry, ref, arrived, force=force)
        registry.discard(references.arriving_tag(local.id))
        moved = indexes.gather(registry, published, progress)
    if registry.digest(identifier) != arrived.digest:
        raise RegistryRefused(
            f"{ref} was changed to another image during the push", hint="somebody else may be pushing it"
        )
    return Pushed(
        ref=ref,
        digest=arrived.digest,
        moved=tuple(moved),
        uploaded=arrived is not existing,
        papers=papers,
        signed=sign is not None,
    )


def _is(manifest: Manifest | None, image_id: str) -> TypeGuard[Manifest]:
    return manifest is not None and image_id in manifest.ids


def _refuse_moving(ref: str, existing: Manifest | None, *, force: bool) -> None:
    """Raise RegistryRefused if the fixed tag `ref` is another image, `existing`, and `force` is not set."""
    if existing is not None and not force:
        raise RegistryRefused(
            f"{ref} is another image there ({existing.digest})",
            hint="fixed tags are only moved with --force",
        )


def _arrive(engine: Engine, image_id: str, registry: Registry, identifier: str, progress: Progress) -> Manifest:
    """Upload an image under its arriving tag, which is not listed or offered, unless it is there already."""
    tag = references.arriving_tag(image_id)
    ref = f"{registry.repository}:{tag}"
    arrived = registry.manifest(tag)
    if _is(arrived, image_id):
        return arrived
    transfer.again(lambda: _upload(engine, image_id, ref, progress), progress)
    # If the same image is pushed twice at once, the other push may have set the fixed tag and removed this one.
    for name in (tag, identifier):
        arrived = registry.manifest(name)
        if _is(arrived, image_id):
            return arrived
    raise RegistryRefused(f"{ref} is not the image that was pushed", hint="somebody else may be pushing it")


def _upload(engine: Engine, image_id: str, ref: str, progress: Progress) -> None:
    engine.tag(image_id, ref)
    try:
        engine.push(ref, progress)
    finally:
        # Simultaneous pushes of the same image share this name, and the first one to end removes it.
        with suppress(UnknownImage):
            # Removing the last name of an image would remove the image.
            if engine.image(image_id).tags != (ref,):
                engine.untag(ref)


def _tag(registry: Registry, ref: str, arrived: Manifest, *, force: bool) -> None:
    """Point the fixed tag `ref` to the image that arrived.

    The protocol has no conditional update: another push may set the tag between the check and the update.
    """
    identifier = ref.rpartition(":")[2]
    existing = registry.manifest(identifier)
    if existing is not None and existing.digest == arrived.digest:
        return
    _refuse_moving(ref, existing, force=force)
    registry.put(identifier, arrived.content, arrived.media_type)


def rehearse(registry: Registry, image: str) -> tuple[str, str]:
    """The fixed tag that a push of `image` would set, and the digest that it stands for now, or "".

    The image need not exist yet. Raises RegistryRefused if pushing is not allowed.
    """
    identifier = described.tag_of(registry, image)
    if not references.TAG.fullmatch(identifier):
        raise UsageError(f"{image!r} does not name a tag", hint="use an identifier from `invoke plan`")
    registry.refuse_unless_writable()
    ref = f"{registry.repository}:{identifier}"
    existing = registry.manifest(identifier)
    return ref, existing.digest if existing is not None else ""


def finish(registry: Registry, image: str, reports: Path, note: indexes.Note = indexes.quietly) -> Pushed:
    """Finish the push of an image that is in the registry with its papers: only update its indexes.

    Damaged images are reported to `note`. Raises what described.check does; Unfinished if the image or its papers are
    missing.
    """
    checked = described.check(registry, image, reports)
    return Pushed(
        ref=f"{registry.repository}:{checked.id}",
        digest=checked.digest,
        moved=tuple(indexes.gather(registry, checked.published, note)),
        uploaded=False,
        papers=None,
        signed=None,
    )


def _refuse_unverified(image: str, identifier: str, image_id: str, reports: Path) -> None:
    """Raise VerificationFailed unless a report in `reports` says that this image passed."""
    report = reporting.stored(reports, identifier)
    if report is None or not report.passed or report.image.id != image_id:
        raise VerificationFailed(
            f"{image} is not verified: {reports / identifier}.json does not say that this image passed",
            hint=f"invoke verify {REPOSITORY}:{identifier}",
        )


def select(
    registry: Registry, host: Cpu, features: frozenset[str], *, release: str, target: str, python: str
) -> Choice:
    """The image that this host should run, by the registry's index; no image is downloaded. Raises NothingFits.

    Without a `release`, this is the best of all releases.
    """
    tag = f"{release or indexes.LATEST}-{target}"
    index = registry.manifest(tag)
    if index is None:
        offered = [name for name in registry.tags() if name.count("-") == 1]
        raise NothingFits(
            f"{registry.repository} has no {tag}",
            hint=f"it has: {', '.join(offered[:12]) or 'no images of tfbuild yet'}",
        )
    all_pythons = choose.matching(indexes.read_index(index), release=release, target=target, python="")
    published = choose.matching(all_pythons, release=release, target=target, python=python)
    if all_pythons and not published:
        others = sorted({image.python for image in all_pythons}, key=lambda text: (len(text), text))
        raise NothingFits(
            f"{registry.repository}:{tag} has no image with Python {python}", hint=f"it has: {', '.join(others)}"
        )
    return choose.choose(published, platform=MACHINES[host.arch], features=features)


def pull(engine: Engine, registry: Registry, choice: Choice, progress: Progress) -> str:
    """Download the chosen image, and return its name on this engine.

    Raises NothingFits if nothing was chosen, RegistryRefused if the image is not the one that the index describes.
    """
    best = choice.best
    if best is None:
        raise nothing_fits(registry, choice)
    manifest = registry.manifest(best.digest)
    if manifest is None or manifest.media_type not in manifests.IMAGES:
        raise RegistryRefused(f"{registry.repository} lost {best.id} ({best.digest})", hint="push it again")
    _refuse_other(best, indexes.of_config(registry.config(manifest), best.digest))
    reference = f"{registry.repository}@{best.digest}"
    transfer.again(lambda: engine.pull(reference, progress), progress)
    if engine.image(reference).id not in manifest.ids:
        raise RegistryRefused(f"{reference} is another image on this engine", hint=f"docker image rm {reference}")
    name = f"{registry.repository}:{best.id}"
    engine.tag(reference, name)
    return name


def _refuse_other(indexed: Published, actual: Published | None) -> None:
    """Raise RegistryRefused if an image's own labels differ from those in its index."""
    if actual != indexed:
        raise RegistryRefused(
            f"{indexed.id} has other labels than its index says: one of them was changed",
            hint="tell whoever publishes it; another --release may be intact",
        )


def nothing_fits(registry: Registry, choice: Choice) -> NothingFits:
    nearest = choice.nearest
    lacking = f"; the nearest is {nearest.id}, for which this CPU lacks {' '.join(choice.missing)}" if nearest else ""
    return NothingFits(
        f"no matching image in {registry.repository} runs on this host{lacking}",
        hint="build one here: invoke build --cpu host; or leave out --release and --python, which exclude images",
    )
