"""Whether an image in a registry is published as this checkout would publish it, which decides what CI has to do.

It is there under its fixed tag, of an equal context, on today's base, with SBOM and provenance attached, and in its
indexes. Nothing is downloaded.
"""

from dataclasses import dataclass
from pathlib import Path

from tfbuild.context.dockerfile import image_digest
from tfbuild.context.labels import ImageLabels, configured_labels, read_labels
from tfbuild.errors import RegistryRefused, Stale, Unfinished, UnknownImage, UsageError
from tfbuild.oci import manifests, references, referrers
from tfbuild.oci.client import Registry
from tfbuild.oci.manifests import Manifest
from tfbuild.pipeline.base_image import REPOSITORY as MADE_HERE
from tfbuild.publish import index_updates, indexes, pushing, yanking
from tfbuild.publish.choose import Published
from tfbuild.publish.signing import Demand


@dataclass(frozen=True, kw_only=True)
class PublishedImage:
    """An image under its fixed tag. `reference`: by its digest."""

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


def read(registry: Registry, name: str, demand: Demand | None = None) -> PublishedImage:
    """Return the image that an identifier names. Its signature is demanded before anything else is believed.

    Raises UnknownImage if there is none, RegistryRefused if its tag names something else.
    """
    identifier = pushing.tag_of(registry, name)
    manifest = registry.manifest(identifier)
    if manifest is None:
        raise UnknownImage(f"{registry.repository} has no {identifier}", hint="invoke push publishes it")
    if demand is not None:
        demand(f"{registry.repository}@{manifest.digest}")
    config = registry.config(manifest) if manifest.media_type in manifests.IMAGES else {}
    image = indexes.of_config(config, manifest.digest)
    if image is None or image.id != identifier:
        raise RegistryRefused(
            f"{registry.repository}:{identifier} is not that image by its labels: its tag was moved",
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
    yanking.refuse_yanked(registry, identifier)
    if base is not None and base.updated:
        raise Stale(
            f"{identifier} should be rebuilt: its base {base.name} was {base.digest} and is now {base.now}",
            hint=f"build it again with {rebuild_options(published)}, and push it with --force",
        )
    if not referrers.complete(registry, published.manifest.digest):
        raise Unfinished(f"{identifier} has no SBOM or no provenance: its push did not finish", hint="push it again")
    if tags := index_updates.lacking(registry, published.image):
        raise Unfinished(
            f"{', '.join(tags)} in {registry.repository} are not what the fixed tags say",
            hint=f"invoke push {identifier} --indexes",
        )
