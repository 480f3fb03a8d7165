"""Push a verified image to a registry."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from tfbuild.context import labels
from tfbuild.context.labels import REPOSITORY
from tfbuild.engine import Engine, Image, transfer
from tfbuild.engine.image import named_if_removed
from tfbuild.errors import RegistryRefused, UnknownImage, UsageError, VerificationFailed, Yanked
from tfbuild.oci import references, referrers
from tfbuild.oci.client import Registry
from tfbuild.oci.manifests import Manifest
from tfbuild.publish import attachments, check, index_updates, indexes
from tfbuild.publish.attachments import AttachedDigests
from tfbuild.publish.choose import Published
from tfbuild.util.progress import Progress
from tfbuild.verify import report as reporting


@dataclass(frozen=True, kw_only=True)
class Pushed:
    """`ref`: the fixed tag; `moved`: the indexes that offer it; `uploaded`: whether the registry lacked the image.

    `attestations`: its SBOM and provenance; `attestations` and `signed` are None if only the indexes were updated.
    """

    ref: str
    digest: str
    moved: tuple[str, ...]
    uploaded: bool
    attestations: AttachedDigests | None
    signed: bool | None

    def to_json(self) -> dict[str, Any]:
        return {
            "image": self.ref,
            "digest": self.digest,
            "uploaded": self.uploaded,
            "indexes": list(self.moved),
            "sbom": self.attestations.sbom if self.attestations else None,
            "provenance": self.attestations.provenance if self.attestations else None,
            "signed": self.signed,
        }


def push(
    engine: Engine,
    image: str,
    registry: Registry,
    reports: Path,
    *,
    force: bool,
    progress: Progress,
    sign: referrers.Sign | None = None,
) -> Pushed:
    """Publish a verified image under its identifier and in the indexes of its release and target.

    It is uploaded under an arriving tag. Then its digest is signed (with `sign`), SBOM and provenance are attached, and
    the provenance is signed too. Only after that the fixed tag names it, and then the indexes.
    Raises VerificationFailed if no report says that this image passed, RegistryRefused if the fixed tag is another
    image and `force` is not set, Yanked if this image was yanked.
    """
    ready = prepare(engine, image, registry, reports, force=force)
    local, ref, identifier = ready.image, ready.ref, ready.identifier
    manifest, uploaded = ready.existing, False
    with named_if_removed(engine, local.id, image, "pushed"):
        if manifest is None:
            manifest, uploaded = _upload(engine, local.id, registry, identifier, progress), True
            # It may have been there before, under the fixed tag that is another image now.
            _refuse_yanked(registry, manifest, identifier)
        published = _published(registry, ref, manifest)
        if sign is not None:
            sign(f"{registry.repository}@{manifest.digest}")
        with progress.step("push: SBOM and provenance"):
            attestations = attachments.attach(engine, local, registry, manifest, reports)
        if sign is not None:
            # It names the SBOM and the report by their digests, so that all of these are bound to the signature.
            sign(f"{registry.repository}@{attestations.provenance}")
        with progress.step("push: tags and indexes"):
            if uploaded:
                _tag(registry, ref, manifest, force=force)
            try:
                moved = index_updates.gather(registry, published, progress, sign)
            except RegistryRefused:
                # Another push of the same image may have overwritten what was attached: neither locks the registry.
                attachments.attach(engine, local, registry, manifest, reports)
                moved = index_updates.gather(registry, published, progress, sign)
            # Last, because it tells an unfinished push from a tag that somebody moved.
            _discard_arriving(registry, manifest)
    if registry.digest(identifier) != manifest.digest:
        raise RegistryRefused(
            f"{ref} was changed to another image during the push", hint="somebody else may be pushing it"
        )
    return Pushed(
        ref=ref,
        digest=manifest.digest,
        moved=tuple(moved),
        uploaded=uploaded,
        attestations=attestations,
        signed=sign is not None,
    )


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """A push that may begin. `there`: what its fixed tag is now; `existing`: that, if it is this image and whole."""

    image: Image
    identifier: str
    ref: str
    there: Manifest | None
    existing: Manifest | None


def prepare(engine: Engine, image: str, registry: Registry, reports: Path, *, force: bool) -> Rehearsal:
    """Check all that can be known before the upload, which may take an hour. Raises what `push` does."""
    local = engine.image(_on_engine(engine, image, registry))
    identifier = labels.identifier(image, local.labels)
    report = reporting.stored(reports, identifier)
    if report is None or not report.passed or report.image.id != local.id:
        raise VerificationFailed(
            f"{image} is not verified: {reports / identifier}.json does not say that this image passed",
            hint=f"invoke verify {REPOSITORY}:{identifier}",
        )
    ref = f"{registry.repository}:{identifier}"
    _valid(indexes.of_labels(local.labels, local.created, local.id), ref)
    there = registry.manifest(identifier)
    existing = there if _is(there, local.id) else None
    if existing is None:
        _refuse_moving(ref, there, force=force)
    else:
        _published(registry, ref, existing)
    whole = existing if existing is not None and not registry.damage(existing) else None
    # This engine may know the image by what it pulled.
    digests = [name.rpartition("@") for name in local.repo_digests]
    pulled = [registry.manifest(digest) for place, _, digest in digests if place == str(registry.repository)]
    for manifest in (existing, *pulled):
        if manifest is not None:
            _refuse_yanked(registry, manifest, identifier)
    return Rehearsal(image=local, identifier=identifier, ref=ref, there=there, existing=whole)


def _on_engine(engine: Engine, image: str, registry: Registry) -> str:
    """Return the engine's name of the image to push, which may be named as it will be in the registry."""
    named = labels.parse_name(image)
    if named.repository == str(registry.repository) and not engine.exists(image):
        return labels.find_image(engine, named.reference)
    return labels.find_image(engine, image)


def _refuse_yanked(registry: Registry, manifest: Manifest, identifier: str) -> None:
    if reason := attachments.yank_reason(registry, manifest):
        raise Yanked(f"this image, {identifier}, was yanked: {reason}", hint=f"invoke yank {identifier} --undo")


def _is(manifest: Manifest | None, image_id: str) -> TypeGuard[Manifest]:
    return manifest is not None and image_id in manifest.ids


def _refuse_moving(ref: str, existing: Manifest | None, *, force: bool) -> None:
    """Raise RegistryRefused if the fixed tag `ref` is another image, `existing`, and `force` is not set."""
    if existing is not None and not force:
        raise RegistryRefused(
            f"{ref} is another image there ({existing.digest})",
            hint="fixed tags are only moved with --force",
        )


def _upload(engine: Engine, image_id: str, registry: Registry, identifier: str, progress: Progress) -> Manifest:
    """Upload an image under its arriving tag, which is not listed or offered, unless it is there already."""
    tag = references.arriving_tag(image_id)
    ref = f"{registry.repository}:{tag}"
    arrived = registry.manifest(tag)
    if _is(arrived, image_id) and not registry.damage(arrived):
        _untag(engine, image_id, ref)  # left by a push that was killed
        return arrived
    transfer.again(lambda: _transfer(engine, image_id, ref, progress), progress)
    # If the same image is pushed twice at once, the other push may have set the fixed tag and removed this one.
    for name in (tag, identifier):
        arrived = registry.manifest(name)
        if _is(arrived, image_id):
            return arrived
    raise RegistryRefused(f"{ref} is not the image that was pushed", hint="somebody else may be pushing it")


def _transfer(engine: Engine, image_id: str, ref: str, progress: Progress) -> None:
    engine.tag(image_id, ref)
    try:
        engine.push(ref, progress)
    finally:
        _untag(engine, image_id, ref)


def _untag(engine: Engine, image_id: str, ref: str) -> None:
    # Simultaneous pushes of the same image share this name, and the first one to end removes it.
    with suppress(UnknownImage):
        # Removing the last name of an image would remove the image.
        if {*engine.image(image_id).tags} > {ref}:
            engine.untag(ref)


def _discard_arriving(registry: Registry, manifest: Manifest) -> None:
    for known in manifest.ids:
        registry.discard(references.arriving_tag(known))


def _published(registry: Registry, ref: str, manifest: Manifest) -> Published:
    """Return what the image's labels say in the registry. Raises RegistryRefused if they are invalid."""
    return _valid(indexes.of_config(registry.config(manifest), manifest.digest), ref)


def _valid(published: Published | None, ref: str) -> Published:
    if published is None:
        raise RegistryRefused(f"the labels of {ref} are invalid", hint="build it again with this tfbuild")
    return published


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


def rehearse(engine: Engine, image: str, registry: Registry, reports: Path, *, force: bool) -> Rehearsal:
    """Check all that `push` checks before it changes anything, and that the registry accepts writes.

    Raises what `push` would raise. Only the upload itself can show that the registry is full, or that an image which
    is not under its fixed tag any more was yanked.
    """
    ready = prepare(engine, image, registry, reports, force=force)
    registry.refuse_unless_writable()
    return ready


def access(registry: Registry, image: str) -> tuple[str, str]:
    """Return the fixed tag that a push of `image` would set, and the digest that it stands for now, or "".

    The image need not exist yet. Raises RegistryRefused if pushing is not allowed.
    """
    identifier = check.tag_of(registry, image)
    if not references.TAG.fullmatch(identifier):
        raise UsageError(f"{image!r} does not name a tag", hint="use an identifier from `invoke plan`")
    registry.refuse_unless_writable()
    return f"{registry.repository}:{identifier}", registry.digest(identifier)


def finish(
    registry: Registry,
    image: str,
    reports: Path,
    note: indexes.Note = indexes.quietly,
    *,
    demand: referrers.Demand | None = None,
    sign: referrers.Sign | None = None,
    dry_run: bool = False,
) -> Pushed:
    """Finish the push of an image that is in the registry with its attestations: only update its indexes.

    Damaged images are reported to `note`. With `dry_run`, `moved` has the indexes that do not offer it yet. Raises what
    check.image does; Unfinished if the image or its attestations are missing.
    """
    checked = check.image(registry, image, reports, demand)
    check.refuse_yanked(checked)
    if dry_run:
        registry.refuse_unless_writable()
        moved = sorted({*checked.lacking, *checked.edited})
    else:
        moved = index_updates.gather(registry, checked.published, note, sign, demand)
        _discard_arriving(registry, checked.manifest)
    return Pushed(
        ref=f"{registry.repository}:{checked.id}",
        digest=checked.manifest.digest,
        moved=tuple(moved),
        uploaded=False,
        attestations=None,
        signed=None,
    )
