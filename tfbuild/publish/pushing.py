"""Push a verified image to a registry, and take one out of its indexes."""

import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfbuild.context import labels
from tfbuild.context.labels import ImageLabels, configured_labels, read_labels
from tfbuild.engine import Engine, Image, transfer
from tfbuild.errors import RegistryRefused, Stale, Unfinished, UnknownImage, UsageError, VerificationFailed
from tfbuild.oci import client, manifests, references
from tfbuild.oci.client import Registry
from tfbuild.oci.manifests import Manifest
from tfbuild.pipeline.base_image import REPOSITORY as MADE_HERE
from tfbuild.pipeline.build_context import image_digest
from tfbuild.publish import indexes, provenance
from tfbuild.publish.choose import Published
from tfbuild.publish.signing import Demand, Sign
from tfbuild.util.progress import Progress
from tfbuild.verify import labelled_build
from tfbuild.verify import report as reporting


@dataclass(frozen=True, kw_only=True)
class Pushed:
    """`ref`: the fixed tag; `moved`: the indexes that offer it; `uploaded`: whether the registry lacked the image.

    `sbom`, `provenance`: the digests of what attaches them; both and `signed` are None if only indexes were computed.
    """

    ref: str
    digest: str
    moved: tuple[str, ...]
    uploaded: bool = False
    sbom: str | None = None
    provenance: str | None = None
    signed: bool | None = None

    def to_json(self) -> dict[str, Any]:
        about = {"image": self.ref, "digest": self.digest, "uploaded": self.uploaded, "indexes": list(self.moved)}
        return about | {"sbom": self.sbom, "provenance": self.provenance, "signed": self.signed}


def _prepare(
    engine: Engine, image: str, registry: Registry, reports: Path, *, force: bool
) -> tuple[Image, str, Manifest | None]:
    """Check all that can be known before the upload, which may take an hour. Raises what `push` does.

    Returns the image, its identifier, and its manifest if the registry has all of it.
    """
    repository, reference = labels.parse_name(image)
    # It may be named as it will be in the registry.
    name = reference if repository == str(registry.repository) and not engine.exists(image) else image
    local = engine.image(labels.find_image(engine, name))
    identifier = labelled_build(image, local.labels, local.architecture).id
    if reporting.proof(reports, identifier, local.id) is None:
        raise VerificationFailed(
            f"{image} is not verified: {reports / identifier}.json does not say that this image passed",
            hint=f"invoke verify {name}",
        )
    ref = f"{registry.repository}:{identifier}"
    if indexes.of_labels(local.labels, local.created, f"sha256:{'0' * 64}") is None:
        raise RegistryRefused(f"the labels of {image} are invalid", hint="build it again with this tfbuild")
    # Before anything is read: Quay makes a repository when a push begins, and answers 401 before (helm/helm#32144).
    registry.refuse_unless_writable()
    indexes.refuse_yanked(registry, identifier)
    there = registry.manifest(identifier)
    same = there if there is not None and local.id in there.ids else None
    if there is not None and same is None and not force:
        raise RegistryRefused(
            f"{ref} already names another image ({there.digest})", hint="fixed tags are only moved with --force"
        )
    return local, identifier, same if same is not None and _is_whole(registry, same) else None


def _is_whole(registry: Registry, manifest: Manifest) -> bool:
    """Return whether a registry has the configuration and all layers of an image."""
    try:
        registry.config(manifest)
    except manifests.Damaged:
        return False
    return not registry.missing_layer(manifest)


def push(
    engine: Engine,
    image: str,
    registry: Registry,
    reports: Path,
    *,
    force: bool,
    progress: Progress,
    sign: Sign | None = None,
) -> Pushed:
    """Publish a verified image under its identifier and in the indexes of its release and target.

    It is uploaded, signed (with `sign`), and gets its SBOM and provenance; only then do the indexes offer it.
    Raises VerificationFailed if no report says that this image passed, RegistryRefused if the fixed tag is another
    image and `force` is not set, Yanked if it was yanked.
    """
    local, identifier, there = _prepare(engine, image, registry, reports, force=force)
    ref, manifest = f"{registry.repository}:{identifier}", there
    if manifest is None:
        transfer.retried(lambda: _transfer(engine, local.id, ref, progress), progress)
        manifest = _arrived(registry, identifier, local.id)
    if sign is not None:
        sign(f"{registry.repository}@{manifest.digest}")
    with progress.step("push: SBOM and provenance"):
        sbom, proof = provenance.attach(engine, local, registry, manifest, reports)
    with progress.step("push: indexes"):
        indexes.await_tag(registry, identifier)
        moved = offer(registry, identifier, manifest.digest, progress)
    return Pushed(
        ref=ref,
        digest=manifest.digest,
        moved=tuple(moved),
        uploaded=there is None,
        sbom=sbom,
        provenance=proof,
        signed=sign is not None,
    )


def _arrived(registry: Registry, identifier: str, image_id: str) -> Manifest:
    """Return the manifest of an image that was just pushed. Raises RegistryRefused if its tag names another one."""
    for seconds in client.LATE:
        time.sleep(seconds)
        manifest = registry.manifest(identifier)
        if manifest is not None and image_id in manifest.ids:
            return manifest
    ref = f"{registry.repository}:{identifier}"
    raise RegistryRefused(f"{ref} is not the image that was pushed", hint="somebody else may be pushing it")


def _transfer(engine: Engine, image_id: str, ref: str, progress: Progress) -> None:
    # What the engine calls so now: an image that was pulled, or a name of the user's.
    before = engine.image(ref).id if engine.exists(ref) else ""
    engine.tag(image_id, ref)
    try:
        engine.push(ref, progress)
    finally:
        # Simultaneous pushes of the same image share this name, and the first one to end removes it.
        with suppress(UnknownImage):
            if before not in ("", image_id):
                engine.tag(before, ref)
            # Removing the last name of an image would remove the image.
            elif not before and len(engine.image(image_id).tags) > 1:
                engine.untag(ref)


def offer(registry: Registry, identifier: str, digest: str, note: indexes.Note) -> list[str]:
    """Compute the indexes of an image, and return those that offer it. Raises Unfinished if none does."""
    release, target, *_ = identifier.split("-")
    rows = indexes.update(registry, release, target, note)
    tags = [tag for tag, images in rows.items() if any(image.digest == digest for image in images)]
    if not tags:
        raise Unfinished(
            f"no index of {registry.repository} offers {identifier}: its tag names another image now, it was "
            "yanked, or it has no SBOM or no provenance",
            hint="push it again, unless somebody else has just pushed it",
        )
    return tags


def finish(registry: Registry, image: str, note: indexes.Note) -> Pushed:
    """Compute the indexes of an image's release. Raises UnknownImage or Yanked, and Unfinished if it is not whole."""
    identifier = tag_of(registry, image)
    digest = registry.digest(identifier)
    try:
        moved = offer(registry, identifier, digest, note)
    except Unfinished:
        if not digest:
            raise UnknownImage(f"{registry.repository} has no {identifier}", hint="push it without --indexes") from None
        indexes.refuse_yanked(registry, identifier)
        raise
    # The indexes keep an image whose documents somebody deleted, or of which the registry lost a part.
    _refuse_incomplete(registry, identifier, digest)
    manifest = registry.manifest(digest)
    if manifest is None or not _is_whole(registry, manifest):
        raise Unfinished(f"the registry has lost a part of {identifier}", hint="push it again")
    return Pushed(ref=f"{registry.repository}:{identifier}", digest=digest, moved=tuple(moved))


def _refuse_incomplete(registry: Registry, identifier: str, digest: str) -> None:
    if not client.complete(registry, digest):
        why = "its push did not finish, or somebody deleted them"
        raise Unfinished(f"{identifier} has no SBOM or no provenance: {why}", hint="push it again")


def yank(registry: Registry, image: str, reason: str, note: indexes.Note) -> str:
    """Take an image out of its indexes for a reason, and return its fixed tag, which stays."""
    identifier = tag_of(registry, image)
    if registry.manifest(identifier) is None:
        raise UnknownImage(f"{registry.repository} has no {identifier}", hint="name a fixed tag of the registry")
    indexes.record_yank(registry, identifier, reason)
    indexes.await_tag(registry, indexes.yank_tag(identifier))
    release, target, *_ = identifier.split("-")
    rows = indexes.update(registry, release, target, note)
    if any(image.id == identifier for images in rows.values() for image in images):
        why = f"it does not list the tag {indexes.yank_tag(identifier)}"
        raise RegistryRefused(f"{registry.repository} still offers {identifier}: {why}", hint="yank it again")
    return f"{registry.repository}:{identifier}"


def access(registry: Registry, image: str) -> tuple[str, str]:
    """Return the fixed tag that a push of `image` would set, and the digest that it stands for now, or "".

    The image need not exist yet. Raises RegistryRefused if pushing is not allowed, Yanked for one that was yanked.
    """
    identifier = tag_of(registry, image)
    registry.refuse_unless_writable()
    indexes.refuse_yanked(registry, identifier)
    return f"{registry.repository}:{identifier}", registry.digest(identifier)


def tag_of(registry: Registry, name: str) -> str:
    """Return the fixed tag that an image's name means in this registry. Raises UsageError for another name."""
    repository, reference = labels.parse_name(name)
    known = labels.GIVEN_IDENTIFIER.fullmatch(reference) and indexes.release_of(reference)
    if not known or not references.TAG.fullmatch(reference):
        raise UsageError(f"{name!r} is not the identifier of an image", hint="use one from `invoke plan`")
    own = str(registry.repository)
    if "/" in repository and repository not in (own, references.familiar(own)):
        raise UsageError(f"{name} is not in {own}", hint=f"--registry {repository}")
    return reference


# --- what is published, which decides what CI has to do ---------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PublishedImage:
    """An image under its fixed tag. `reference`: its name with the digest."""

    image: Published
    reference: str
    manifest: Manifest
    labels: ImageLabels

    def to_json(self) -> dict[str, object]:
        return {
            "id": self.image.id,
            "reference": self.reference,
            "digest": self.manifest.digest,
            "config": self.manifest.config,
        }


def find_published(registry: Registry, name: str, demand: Demand | None = None) -> PublishedImage:
    """Return the image that an identifier names. Its signature is demanded before anything else is believed.

    Raises UnknownImage if there is none, RegistryRefused if its tag names something else, Unfinished if its push ended
    before it was signed.
    """
    identifier = tag_of(registry, name)
    manifest = registry.manifest(identifier)
    if manifest is None:
        raise UnknownImage(f"{registry.repository} has no {identifier}", hint="invoke push publishes it")
    if demand is not None:
        try:
            demand(f"{registry.repository}@{manifest.digest}")
        except VerificationFailed as error:
            # A push signs before it attaches anything. CI takes nothing over from an image that has neither.
            if client.complete(registry, manifest.digest):
                raise
            raise Unfinished(
                f"{identifier} has no SBOM or no provenance: its push did not finish\n{error.reason}",
                hint="push it again",
            ) from None
    config = registry.config(manifest) if manifest.media_type in manifests.IMAGES else {}
    image = indexes.of_config(config, manifest.digest)
    if image is None or image.id != identifier:
        raise RegistryRefused(
            f"{registry.repository}:{identifier} does not have this image's labels: its tag was moved",
            hint="find out who moved it, and then push the image again with --force",
        )
    return PublishedImage(
        image=image,
        reference=f"{registry.repository}@{manifest.digest}",
        manifest=manifest,
        labels=read_labels(configured_labels(config)),
    )


def refuse_outdated(published: PublishedImage, context: str) -> None:
    """Raise Stale if the image was made from another context than the one with the digest `context`."""
    if not references.DIGEST.fullmatch(context):
        raise UsageError(
            f"{context!r} is not the digest of a context", hint="use the one that `invoke dockerfile --json` prints"
        )
    labels = published.labels
    if labels.context != image_digest(context, labels.base_digest):
        raise Stale(
            f"{published.image.id} was made from another context: facts, templates or tfbuild have changed since",
            hint="build it again, and push it with --force",
        )


@dataclass(frozen=True, kw_only=True)
class PublishedBase:
    """An image's base; `now`: the digest that its tag names today, "" if that is unknown, for the reason `note`."""

    name: str
    digest: str
    now: str = ""
    note: str = ""

    @property
    def updated(self) -> bool:
        return self.now not in ("", self.digest)

    def to_json(self) -> dict[str, object]:
        return {"name": self.name, "digest": self.digest, "now": self.now or None}


def base_of(published: PublishedImage, ca: Path | None = None) -> PublishedBase:
    """Ask the base's registry, without downloading it, which digest its tag names now; never raises."""
    name, digest = published.labels.base_name, published.labels.base_digest
    if not name or "@" in name:
        return PublishedBase(name=name, digest=digest, note="it names no tag")
    if name.partition(":")[0] == MADE_HERE:
        return PublishedBase(name=name, digest=digest, note="it was made from Debian's packages")
    try:
        repository, tag = references.parse_image(name)
        now = Registry(repository, ca=ca).digest(tag)
    except (RegistryRefused, UsageError) as error:
        return PublishedBase(name=name, digest=digest, note=error.reason)
    return PublishedBase(name=name, digest=digest, now=now, note="" if now else f"{repository} has no tag {tag}")


def rebuild_options(published: PublishedImage) -> str:
    """Return the options of `invoke build` that rebuild an image on the current base and packages, without compiling.

    An official wheel is installed anew, with the newest versions of what it requires.
    """
    reuse = "" if published.labels.get("wheel") == "official" else f" --reuse {published.reference}"
    return f"--no-cache{reuse}"


def refuse_unfinished(registry: Registry, published: PublishedImage, base: PublishedBase | None) -> None:
    """Raise Yanked if the image was yanked, Stale if its base was updated, Unfinished if its push did not finish."""
    identifier = published.image.id
    indexes.refuse_yanked(registry, identifier)
    if base is not None and base.updated:
        raise Stale(
            f"{identifier} should be rebuilt: its base {base.name} was {base.digest} and is now {base.now}",
            hint=f"build it again with {rebuild_options(published)}, and push it with --force",
        )
    _refuse_incomplete(registry, identifier, published.manifest.digest)
    image = published.image
    if tags := indexes.state(registry, image.release, image.target, lambda _: None)[1]:
        raise Unfinished(
            f"{', '.join(tags)} in {registry.repository} do not match the fixed tags",
            hint=f"invoke push {registry.repository}:{identifier} --indexes",
        )
